"""Distance of a drawn picture's codes from the target's own choice in their places, under coupled noise.

The finished codes are read by the target once more, in one pass: that gives its distribution at every place, behind the very
codes that were drawn before it, and with the place's own noise the code that the baseline would have chosen there. So a
method that is exact token for token has distance 0 but for rounding. One that is exact but draws with noise of its own has
not: its distance is between 0 and about that of two independent draws from these distributions, which is the scale beside it.
What a relaxed method adds shows against an exact one with the same drafter and the same kind of rule.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specviz.engine.sampling import Noise
from specviz.engine.tree import DraftTree
from specviz.runner import Prepared

BLOCK = 1024
"""Codes whose distances to all others are held at once."""


@dataclass(frozen=True)
class CodeDistances:
    """Mean distances over a picture's codes: to the target's own choice, and of two independent draws from its distributions."""

    own: float
    independent: float


@torch.inference_mode()
def code_distances(ready: Prepared, codes: Sequence[int], seed: int) -> CodeDistances:
    """Distances of a picture's ``codes``, drawn with ``seed``, between the codebook's vectors: at most 2."""
    prompt, target, warp = ready.prompt_ids, ready.target, ready.parts.warp
    session = target.open(len(prompt) + len(codes))
    try:
        session.prefill(prompt[:-1])
        chain = DraftTree.of([prompt[-1], *codes[:-1]], range(-1, len(codes) - 1), target.device)
        logits = session.score(chain).logits
    finally:
        session.close()
    places = range(len(prompt), len(prompt) + len(codes))
    own_choice = warp.choose(logits, places, Noise(seed))
    book = ready.loaded.codebook
    return CodeDistances(distance(book, codes, own_choice.tolist()), independent(book, warp.probabilities(logits)))


def distance(codebook: Tensor, ours: Sequence[int], others: Sequence[int]) -> float:
    """Mean distance of the codes' vectors, place by place."""
    gaps = codebook[list(ours)] - codebook[list(others)]
    return float(gaps.norm(dim=-1).mean())


def independent(codebook: Tensor, distributions: Tensor) -> float:
    """Expected distance of two codes drawn independently from each of ``distributions`` [place, code], mean over places."""
    distributions, wide = distributions.double(), codebook.double()
    expected = torch.zeros_like(distributions)
    for start in range(0, len(wide), BLOCK):
        gaps = torch.cdist(wide[start : start + BLOCK], wide, compute_mode="donot_use_mm_for_euclid_dist")
        expected += distributions[:, start : start + BLOCK] @ gaps
    return float((expected * distributions).sum(-1).mean())
