"""How likely a drawn child is the one accepted, as measured: what decides how large trees of drawn tokens get."""

from __future__ import annotations

import math

import torch
from torch import Tensor

UNSEEN = 0.3
"""The likeliest token's probability where the drafter was not asked yet."""
_FIRST, _LATER, _DECAY, _OWN = (0.26, 0.66), (0.09, 0.33), 0.62, (0.22, 0.72)


def gains(likeliest: float, width: int) -> list[float]:
    """Probability that the first, second, ... of ``width`` children drawn is the one accepted, where the drafter gives its
    likeliest token this probability.

    A straight line through what the heads of EAGLE and EAGLE-3 had at temperature 1 on sixty held-out answers, where both have
    the same: the first is accepted with 0.30 below a likeliest probability of 0.1 and with 0.94 above 0.9, the second, once the
    first was rejected, with 0.08 and 0.37. They decide how large trees get, not what is accepted.
    """
    shares, left = [], 1.0
    for rank in range(width):
        start, slope = _LATER if rank else _FIRST
        accepted = (start + slope * likeliest) * (_DECAY ** (rank - 1) if rank else 1.0)
        shares.append(left * accepted)
        left *= 1 - accepted
    return shares


def gain_of(probability: float) -> float:
    """Probability that a first child is accepted which the drafter gives this probability; measured as :func:`gains`."""
    return min(1.0, _OWN[0] + _OWN[1] * math.sqrt(probability))


def decay(width: int) -> list[float]:
    """What :func:`gains_of_rows` multiplies each child's line by [child]."""
    return [1.0, *(_DECAY ** (rank - 1) for rank in range(1, width))]


def gains_of_rows(likeliest: Tensor, decayed: Tensor) -> Tensor:
    """:func:`gains` of many nodes, float64 [row, child], from each one's likeliest probability, float64 [row], and
    :func:`decay` [child]."""
    first, later = (start + slope * likeliest[:, None] for start, slope in (_FIRST, _LATER))
    accepted = torch.cat((first, later.expand(-1, len(decayed) - 1)), dim=1) * decayed
    left = (1 - accepted).cumprod(1)
    return accepted * torch.cat((torch.ones_like(first), left[:, :-1]), dim=1)


def gain_of_each(probability: Tensor) -> Tensor:
    """:func:`gain_of` for many, float64."""
    return (_OWN[0] + _OWN[1] * probability.sqrt()).clamp_max(1.0)
