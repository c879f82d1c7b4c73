"""Glancing: show the network some of the answers it got wrong, and teach it the rest of the same blocks.

Coupled sequential glancing distillation of Falcon (Gao et al., arXiv 2412.12639), after glancing transformers (Qian et al.,
arXiv 2008.07905). Where a block begins, feature and token together are replaced by the truth k steps ahead, so that the
network learns how the later places of a block hang on the first. Such an input holds its own answer and is left out of the
loss. Axis names: ``input``, ``hidden``.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Inputs:
    """What the network reads: the tokens after each place [input], the features there [input, hidden]."""

    tokens: Tensor
    features: Tensor


def glances(wrong: int, ratio: float, beginnings: Tensor, block: int, generator: torch.Generator) -> Tensor:
    """Inputs to replace, int64, ascending: ``ratio`` of the number that were ``wrong``, at random ``beginnings`` of blocks.

    With k = 2 a block is shown its first place. With larger blocks a random run of 1 to k - 1 places from the first on.
    """
    runs = max(1, block - 1)
    count = min(round(ratio * wrong / ((1 + runs) / 2)), len(beginnings))
    order = torch.randperm(len(beginnings), generator=generator)[:count]
    length = torch.randint(1, runs + 1, (count,), generator=generator)
    chosen = [beginnings[order] + step for step in range(runs)]
    parts = [places[length > step] for step, places in enumerate(chosen)]
    return torch.cat(parts).sort().values if parts else beginnings[:0]


def reveal(text: Inputs, places: Tensor, block: int) -> Inputs:
    """``text`` with the truth ``block`` steps ahead at ``places``; it goes at least so much further."""
    tokens, features = text.tokens.clone(), text.features.clone()
    tokens[places] = text.tokens[places + block]
    features[places] = text.features[places + block]
    return Inputs(tokens, features)
