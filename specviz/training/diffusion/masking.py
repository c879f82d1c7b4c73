"""What a masked language model is given to learn from: which tokens are hidden, and what each of them counts.

The standard objective hides every answer token with the same probability t, and weighs by 1/t (MDLM, arXiv 2406.07524; LLaDA,
2502.09992). DEER (2512.15176) hides a continuation from a random cut, then only the last few tokens, the earliest of which
count most. Axis names: ``row``, ``token``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from specviz.training.common.data import Row

LEAST = 0.05
"""The smallest probability of being hidden: 1/t of a smaller one would drown all other rows."""
MEAN = (1 + LEAST) / 2
"""The probability of being hidden, on average."""


@dataclass(frozen=True)
class Masked:
    """Texts [row, token] with hidden places, what the loss of each place counts (0 where nothing is asked), and which
    places are text at all (None: all of them)."""

    ids: Tensor
    blank: Tensor
    weight: Tensor
    is_text: Tensor | None = None


@dataclass(frozen=True)
class Example:
    """One text [token] with its hidden places and their weights."""

    tokens: np.ndarray
    blank: np.ndarray
    weight: np.ndarray

    def last(self, window: int) -> Example:
        """The last ``window`` tokens of it."""
        return Example(self.tokens[-window:], self.blank[-window:], self.weight[-window:])


def probabilities(rows: int, generator: np.random.Generator) -> np.ndarray:
    """[row] shares of hidden tokens between LEAST and 1, evenly spread so that a small batch has easy and hard rows."""
    return LEAST + (1 - LEAST) * ((generator.random() + np.arange(rows) / rows) % 1)


def standard(rows: Sequence[Row], generator: np.random.Generator) -> Masked:
    """Every counted token of packed ``rows`` hidden with its row's probability t, its loss over t."""
    tokens = np.stack([row.tokens for row in rows])
    counted = np.zeros(tokens.shape, dtype=bool)
    counted[:, 1:] = np.stack([row.counts for row in rows])
    share = probabilities(len(rows), generator)[:, None]
    blank = counted & (generator.random(tokens.shape) < share)
    weight = blank / share / max(1, counted.sum())
    return Masked(torch.from_numpy(tokens), torch.from_numpy(blank), torch.from_numpy(weight).float())


def continuation(tokens: np.ndarray, first: int, share: float, generator: np.random.Generator) -> Example:
    """DEER's first stage: the answer (from ``first`` on) is cut anywhere; what follows is hidden, each with ``share``."""
    cut = int(generator.integers(first, len(tokens)))
    blank = (np.arange(len(tokens)) >= cut) & (generator.random(len(tokens)) < share)
    return Example(tokens, blank, blank / share)


def refinement(tokens: np.ndarray, first: int, reach: int, emphasis: float, generator: np.random.Generator) -> Example:
    """DEER's second stage: a text that ends anywhere in the answer, its last R <= ``reach`` tokens hidden.

    The i-th of them counts ``emphasis`` ** (R - i): where a mistake costs the whole block, it costs most. Every text
    counts 1 in all: by their bare sums the few with the longest ends would drown the rest, the more so the larger
    ``emphasis`` (the paper saw 1.05 diverge with R up to 96).
    """
    end = int(generator.integers(first + 1, len(tokens) + 1))
    hidden = int(generator.integers(1, min(reach, end - first) + 1))
    blank = np.arange(end) >= end - hidden
    weight = blank * float(emphasis) ** (end - 1.0 - np.arange(end))
    return Example(tokens[:end], blank, weight / weight.sum())


def joined(examples: Sequence[Example], total: float) -> Masked:
    """Texts of different length as one batch, padded behind; weights are over ``total``."""
    width = max(len(example.tokens) for example in examples)
    shape = (len(examples), width)
    tokens, blank, weight = np.zeros(shape, np.int64), np.zeros(shape, bool), np.zeros(shape, np.float32)
    is_text = np.zeros(shape, bool)
    for place, example in enumerate(examples):
        size = len(example.tokens)
        tokens[place, :size], blank[place, :size], weight[place, :size] = example.tokens, example.blank, example.weight
        is_text[place, :size] = True
    parts = [torch.from_numpy(part) for part in (tokens, blank, weight / np.float32(total), is_text)]
    return Masked(*parts[:3], None if is_text.all() else parts[3])


def in_parts(examples: Sequence[Example], size: int) -> list[Masked]:
    """The examples as batches of at most ``size`` texts of about the same length: little of them is padding."""
    total = sum(float(example.weight.sum()) for example in examples) or 1.0
    ordered = sorted(examples, key=lambda example: len(example.tokens))
    return [joined(ordered[start : start + size], total) for start in range(0, len(ordered), size)]
