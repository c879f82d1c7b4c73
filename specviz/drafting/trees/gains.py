"""Measured probability that a sampled child is the accepted one, used to size trees of sampled tokens."""

from __future__ import annotations

import torch
from torch import Tensor

UNSEEN = 0.3
"""Assumed probability of the top token where the drafter has not been run yet."""
_FIRST, _LATER, _DECAY, _OWN = (0.26, 0.66), (0.09, 0.33), 0.62, (0.22, 0.72)


def decay(width: int) -> list[float]:
    """Return each child's factor in :func:`gains`, [child]."""
    return [1.0, *(_DECAY ** (rank - 1) for rank in range(1, width))]


def gains(likeliest: Tensor, decayed: Tensor) -> Tensor:
    """Return the probability that a node's first, second, ... sampled child is the accepted one, float64 [row, child].

    ``likeliest`` [row] is the drafter's probability of its top token, ``decayed`` the :func:`decay` [child]. Linear fit to
    measurements of EAGLE's and EAGLE-3's heads, which agree, at temperature 1 on sixty held-out answers. The first child is
    accepted with probability 0.30 if the top token's is below 0.1, and 0.94 if it is above 0.9; the second, after the first was
    rejected, with 0.08 and 0.37. The values determine the size of trees, not acceptance.
    """
    first, later = (start + slope * likeliest[:, None] for start, slope in (_FIRST, _LATER))
    accepted = torch.cat((first, later.expand(-1, len(decayed) - 1)), dim=1) * decayed
    left = (1 - accepted).cumprod(1)
    return accepted * torch.cat((torch.ones_like(first), left[:, :-1]), dim=1)


def gain_of(probability: Tensor) -> Tensor:
    """Return the probability, float64, that a first child with this drafter's probability is accepted; measured as in
    :func:`gains`."""
    return (_OWN[0] + _OWN[1] * probability.sqrt()).clamp_max(1.0)
