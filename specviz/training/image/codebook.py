"""A codebook on the unit sphere that follows what is encoded: spherical k-means to start with, then a moving average.

Van den Oord et al. 2017 (arXiv 1711.00937), appendix A.1; codes that nobody uses are put where the error is largest.
Axis names: ``place`` (of a batch), ``code``, ``dim``.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


class Codebook:
    """``vectors`` [code, dim] of length one, moved in place."""

    def __init__(self, vectors: Tensor) -> None:
        self.vectors = vectors
        self.sums = vectors.clone()
        self.counts = torch.ones(len(vectors), device=vectors.device)

    def nearest(self, places: Tensor) -> Tensor:
        """Codes [place] nearest to vectors [place, dim]."""
        return (places @ self.vectors.T).argmax(-1)

    @torch.no_grad()
    def start(self, places: Tensor, rounds: int = 12) -> None:
        """Spread the codes over what was encoded [place, dim]; a thousand equal backgrounds count as few."""
        cells, inverse, counts = torch.unique((places * 6).round(), dim=0, return_inverse=True, return_counts=True)
        means = torch.zeros_like(cells).index_add_(0, inverse, places)
        weights = counts.float().sqrt()
        order = torch.randperm(len(cells), device=places.device)[: len(self.vectors)]
        chosen = F.normalize(means[order], dim=-1)
        self.vectors[: len(chosen)] = chosen
        points = F.normalize(means, dim=-1) * weights[:, None]
        for _ in range(rounds):
            sums = torch.zeros_like(self.vectors).index_add_(0, self.nearest(points), points)
            filled = sums.norm(dim=-1) > 0
            self.vectors[filled] = F.normalize(sums[filled], dim=-1)
        self.sums.copy_(self.vectors)
        self.counts.fill_(1.0)

    @torch.no_grad()
    def follow(self, places: Tensor, codes: Tensor, keep: float = 0.99) -> None:
        """Move towards what was encoded as each code."""
        used = torch.bincount(codes, minlength=len(self.vectors)).float()
        self.sums.mul_(keep).add_(torch.zeros_like(self.sums).index_add_(0, codes, places), alpha=1 - keep)
        self.counts.mul_(keep).add_(used, alpha=1 - keep)
        moved = self.counts > 1e-3
        self.vectors[moved] = F.normalize(self.sums[moved], dim=-1)

    @torch.no_grad()
    def revive(self, places: Tensor, codes: Tensor, below: float) -> int:
        """Put codes used less often than ``below`` times a batch where the error is large. How many."""
        dead = (self.counts < below).nonzero()[:, 0]
        if len(dead) == 0:
            return 0
        error = 1 - (places * self.vectors[codes]).sum(-1)
        chosen = torch.multinomial(error.clamp_min(1e-6) ** 2, min(len(dead), 8))
        dead = dead[torch.randperm(len(dead))[: len(chosen)]]
        self.vectors[dead] = places[chosen]
        self.sums[dead] = places[chosen] * below * 4
        self.counts[dead] = below * 4
        return len(dead)
