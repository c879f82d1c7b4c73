"""Rotary positions: a table of cosines and signed sines, and the rotation.

A head's two halves rotate together (NeoX). The sign of the sines replaces the negation of one half. Axis names: ``position``,
``size`` (of a head), ``rate``.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def rates_of(size: int, theta: float) -> Tensor:
    """Return the rotary inverse frequencies in radians per position, float64 [size / 2]."""
    half = size // 2
    return theta ** -(torch.arange(half, dtype=torch.float64) / half)


def table(rates: Tensor, positions: int, scale: float = 1.0) -> Tensor:
    """Return cosines and signed sines [2, position, size] times ``scale``, in float64; callers round to other dtypes."""
    angle = torch.arange(positions, dtype=torch.float64)[:, None] * rates
    return halves(torch.stack((angle.cos(), angle.sin())) * scale)


class Rotating:
    """Base class of a network with a table of rotary positions."""

    rotary: Tensor
    """Cosines and signed sines [2, position, size] of the current length."""
    _table: Callable[[int], Tensor]
    """Function from a number of positions to their table."""

    def reach(self, positions: int) -> None:
        """Extend the rotary table to at least ``positions``."""
        if self.rotary.shape[1] < positions:
            self.rotary = self._table(2 * positions).to(self.rotary)

    def turns(self, positions: Tensor) -> Tensor:
        """Return rotary cosines and signed sines [2, .., size] at ``positions`` [..] within the table."""
        return self.rotary[:, positions]


def halves(both: Tensor) -> Tensor:
    """Convert cosines and sines [2, position, rate] to a table [2, position, size] with signed sines."""
    cosine, sine = both
    return torch.stack((torch.cat((cosine, cosine), -1), torch.cat((-sine, sine), -1)))


def turn(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Rotate x [.., size] by rows of a table, which broadcast."""
    return torch.addcmul(x * cosine, x.roll(x.shape[-1] // 2, -1), sine)


def grid_rotary(places: int, grid: int, first: int, size: int, theta: float) -> Tensor:
    """Return two-dimensional cosines and sines, float64 [2, place, rate], as in LlamaGen (Sun et al. 2024, arXiv 2406.06525).

    The first half of the frequencies rotates by the row of an image's cell, the second by the column. The image has ``grid``
    cells per row and starts at index ``first``; later indices continue in further rows. Earlier tokens have factor zero, not one,
    so their queries and keys vanish and they are attended to with a score of zero.
    """
    rates = theta ** -(torch.arange(0, size // 2, 2, dtype=torch.float64) / (size // 2))
    cell = torch.arange(places) - first
    row, column = (axis.clamp_min(0)[:, None] * rates for axis in (cell // grid, cell % grid))
    angle = torch.cat((row, column), dim=-1)
    return torch.stack((angle.cos(), angle.sin())) * (cell >= 0)[:, None]
