"""Quality of generated pictures: the latent distance between their codes and the target's own choice, and a retrieval score.

The target scores the finished codes once more, in one pass; each position's noise then yields the code that the baseline would
have chosen there. A token-exact method has distance 0 except for rounding; one that is exact in distribution lies between 0
and about the distance of two independent draws.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, cast

import torch
from torch import Tensor

from specviz.bench.kit import PictureQuestion, TimedRun
from specviz.engine.sampling import Noise
from specviz.engine.tree import DraftTree
from specviz.errors import ModelUnavailable
from specviz.models.image.image_score import ImageScore, load
from specviz.models.image.load import weights_of
from specviz.pipeline.runner import Prepared

BLOCK = 1024
"""Codes per block of distances to all others."""


@dataclass(frozen=True)
class Distances:
    """Mean distances over a picture's codes: to the target's own choice, and between two independent draws of the target."""

    own: float
    independent: float


@torch.inference_mode()
def code_distances(ready: Prepared, codes: Sequence[int], seed: int) -> Distances:
    """Return the distances of a picture's ``codes``, drawn with ``seed``, between codebook vectors: at most 2."""
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
    return Distances(distance(book, codes, own_choice.tolist()), independent(book, warp.probabilities(logits)))


def distance(codebook: Tensor, ours: Sequence[int], others: Sequence[int]) -> float:
    """Return the mean distance between the codes' vectors, position by position."""
    gaps = codebook[list(ours)] - codebook[list(others)]
    return float(gaps.norm(dim=-1).mean())


def independent(codebook: Tensor, distributions: Tensor) -> float:
    """Return the expected distance between two independent draws from each of ``distributions`` [position, code], averaged over
    positions."""
    distributions, wide = distributions.double(), codebook.double()
    expected = torch.zeros_like(distributions)
    for start in range(0, len(wide), BLOCK):
        gaps = torch.cdist(wide[start : start + BLOCK], wide, compute_mode="donot_use_mm_for_euclid_dist")
        expected += distributions[:, start : start + BLOCK] @ gaps
    return float((expected * distributions).sum(-1).mean())


@cache
def _score() -> ImageScore | None:
    try:
        return load(weights_of("image_score"))
    except ModelUnavailable:
        return None


def quality(ready: Prepared, timed: TimedRun, prompt: str | PictureQuestion) -> Mapping[str, float]:
    """Return ``distance`` and ``independent`` of one picture's codes, drawn with seed 0, and its ``score`` if the scorer is
    available."""
    distances, score, loaded = code_distances(ready, timed.ids, 0), _score(), cast(Any, ready.loaded)
    numbers = {"distance": distances.own, "independent": distances.independent}
    if score is not None:
        numbers["score"] = float(score.of([loaded.picture(list(timed.ids))], [str(prompt)])[0, 0])
    return numbers
