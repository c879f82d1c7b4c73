"""Rotary positions in two dimensions: the first half of a head turns by the row of a picture's cell, the second by its column.

LlamaGen's (Sun et al. 2024, arXiv 2406.06525). What precedes the picture has no position: its factors are zero, not one, so
that its queries and keys vanish and every later place attends to it with a score of zero.
"""

from __future__ import annotations

import torch
from torch import Tensor


def grid_rotary(places: int, grid: int, first: int, size: int, theta: float = 10000.0) -> Tensor:
    """Cosines and sines, float64 [2, place, size / 2], of heads of ``size`` whose neighbouring channels turn together.

    The picture, ``grid`` cells a row, starts at place ``first``; places behind its last cell count on in further rows.
    """
    rates = theta ** -(torch.arange(0, size // 2, 2, dtype=torch.float64) / (size // 2))
    cell = torch.arange(places) - first
    row, column = (axis.clamp_min(0)[:, None] * rates for axis in (cell // grid, cell % grid))
    angle = torch.cat((row, column), dim=-1)
    return torch.stack((angle.cos(), angle.sin())) * (cell >= 0)[:, None]
