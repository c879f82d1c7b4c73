"""Weights made of whole-number arithmetic alone, so that another library, version or machine makes the very same ones."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import torch
from torch import Tensor

_MASK = (1 << 32) - 1


def uniform(name: str, shape: Sequence[int]) -> Tensor:
    """Float32 in [-1, 1) that depends on ``name`` and the place alone: two rounds of multiply and shift over the places."""
    count = 1
    for side in shape:
        count *= side
    x = torch.arange(count, dtype=torch.int64) + zlib.crc32(name.encode()) % (1 << 20) * 7919
    for factor in (2654435761, 2246822519):
        x = (x * factor) & _MASK
        x = x ^ (x >> 15)
    return ((x & 0xFFFFFF).float() / (1 << 23) - 1).reshape(tuple(shape))


def weight(name: str, shape: Sequence[int]) -> Tensor:
    """A weight of a head: norms about one, everything else about zero."""
    drawn = uniform(name, shape)
    return 1 + 0.5 * drawn if len(shape) == 1 and "norm" in name else 0.5 * drawn


def vocabulary(rows: int, vocab: int) -> tuple[Tensor, Tensor]:
    """A draft vocabulary as published: ``d2t`` [rows], how far each row's token lies from its number, and ``t2d`` [vocab]."""
    ids = uniform("vocabulary", (vocab,)).argsort()[:rows].sort().values
    return ids - torch.arange(rows), torch.zeros(vocab, dtype=torch.bool).index_fill(0, ids, True)
