"""Quality of generated images: the latent distance of the codes from the target's choice, and a retrieval score.

The target scores the finished codes in one pass. With the noise of each position, the logits give the code that the baseline
would choose there. A token-exact method has a distance of 0, except for rounding. A method that is exact in distribution has a
distance between 0 and about that of two independent draws.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from specviz.bench.kit import PictureQuestion, TimedRun
from specviz.engine.sampling import Noise
from specviz.engine.tree import DraftTree
from specviz.models.image.image_score import load
from specviz.models.image.load import weights_of
from specviz.pipeline.runner import Prepared
from specviz.prompts import table

_scorer = cache(load)
BLOCK = 1024
"""Codes per block of the distance matrix."""


@dataclass(frozen=True)
class Distances:
    """Distances of the codes of an image.

    ``cells`` [position]: to the code that the target would choose. ``independent``: mean between two independent draws by the
    target.
    """

    cells: list[float]
    independent: float

    @property
    def own(self) -> float:
        """Mean of ``cells``."""
        return sum(self.cells) / len(self.cells)


@torch.inference_mode()
def code_distances(ready: Prepared, codes: Sequence[int], seed: int) -> Distances:
    """Return the distances for an image with ``codes`` [position], drawn with ``seed``. Distances between codebook vectors are
    at most 2.
    """
    prompt, target, warp = ready.prompt_ids, ready.target, ready.resources.warp
    session = target.open(len(prompt) + len(codes))
    try:
        session.prefill(prompt[:-1])
        chain = DraftTree.of([prompt[-1], *codes[:-1]], range(-1, len(codes) - 1), target.device)
        logits = session.score(chain).logits
    finally:
        session.close()
    places = range(len(prompt), len(prompt) + len(codes))
    own_choice = warp.choose(logits, places, Noise(seed))
    loaded: Any = ready.loaded
    book = loaded.codebook
    gaps = (book[list(codes)] - book[own_choice]).norm(dim=-1)
    return Distances(gaps.tolist(), independent(book, warp.probabilities(logits)))


def independent(codebook: Tensor, distributions: Tensor) -> float:
    """Return the expected distance of two draws from ``distributions`` [position, code], averaged over positions."""
    distributions, wide = distributions.double(), codebook.double()
    expected = torch.zeros_like(distributions)
    for start in range(0, len(wide), BLOCK):
        gaps = torch.cdist(wide[start : start + BLOCK], wide, compute_mode="donot_use_mm_for_euclid_dist")
        expected += distributions[:, start : start + BLOCK] @ gaps
    return float((expected * distributions).sum(-1).mean())


def quality(ready: Prepared, timed: TimedRun, prompt: str | PictureQuestion) -> Mapping[str, float]:
    """Return ``distance``, ``independent`` and ``score`` of an image drawn with seed 0.

    For the prompts of the sprites, also return ``first``: 1 if the concept's name scores best among all names, else 0.
    """
    loaded: Any = ready.loaded
    distances, score = code_distances(ready, timed.ids, 0), _scorer(weights_of("image_score"))
    text, picture, names = str(prompt), loaded.picture(list(timed.ids)), list(table("sprites").values())
    fit = float(score.of([picture], [text])[0, 0])
    numbers = {"distance": distances.own, "independent": distances.independent, "score": fit}
    if (name := table("sprites").get(text, text.rpartition(", ")[0])) in names:
        numbers["first"] = float(score.of([picture], names)[0].argmax() == names.index(name))
    return numbers
