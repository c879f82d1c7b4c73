"""Parallel heads (Medusa) on the target's last hidden state, each for one token further ahead.

Medusa (Cai et al., arXiv 2401.10774): head k is W2 (h + SiLU(W1 h)), with one or several such residual blocks. Each published
head has its own W1 and a full W2. Ours share the target's head, restricted to the draft vocabulary, with a square matrix in front
of it: W2 of head k is (target's head) V_k. As the target's head is fixed and SiLU hardly goes below zero, heads without V could
add to the hidden state but hardly subtract from it.
In the shipped heads, which have one trunk block and none per head, all V_k share the input h + SiLU(W1 h).

Axis names: ``row``, ``ahead`` (one entry per head), ``hidden``, ``support`` (the draft vocabulary).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specviz.drafting.networks.attention import Layout, Product, plain
from specviz.drafting.networks.network import Network
from specviz.errors import ModelUnavailable


@dataclass(frozen=True)
class ParallelConfig:
    """``heads`` heads on the target's hidden state ``tap`` (its last, normalised): ``trunk`` common residual blocks, then
    ``blocks`` per head, then a square matrix per head if ``turned``."""

    hidden: int
    heads: int
    tap: int
    blocks: int = 1
    trunk: int = 0
    turned: bool = False


class Residual(nn.Module):
    """x + SiLU(W x + b), the identity before training; named as in the published weights."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.linear = nn.Linear(hidden, hidden)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        return x + F.silu(self.linear(x))


def _head(config: ParallelConfig) -> nn.Sequential:
    """Return one head, which predicts like the target's own head before training."""
    parts: list[nn.Module] = [Residual(config.hidden) for _ in range(config.blocks)]
    if config.turned:
        turn = nn.Linear(config.hidden, config.hidden)
        nn.init.eye_(turn.weight)
        nn.init.zeros_(turn.bias)
        parts.append(turn)
    return nn.Sequential(*parts)


class ParallelNet(Network):
    """Set of heads. ``outputs`` is [support, hidden], common to all heads, or [ahead, support, hidden]; it is not trained here.
    ``draft_ids`` [support] are the tokens of its rows, None for the whole vocabulary."""

    title, shape = "set of parallel heads", ParallelConfig
    outputs: Tensor

    def __init__(self, config: ParallelConfig, outputs: Tensor, draft_ids: Tensor | None = None) -> None:
        super().__init__(config, draft_ids=draft_ids)
        if outputs.shape[-1] != config.hidden:
            raise ModelUnavailable(
                f"These heads need hidden states of width {config.hidden}, but the target's are "
                f"{outputs.shape[-1]}: choose the target they were trained for."
            )
        self.trunk = nn.Sequential(*(Residual(config.hidden) for _ in range(config.trunk)))
        self.heads = nn.ModuleList(_head(config) for _ in range(config.heads))
        shared = outputs.ndim == 2 and draft_ids is not None and len(outputs) != len(draft_ids)
        rows = outputs[draft_ids] if shared else outputs
        self.register_buffer("outputs", rows.contiguous(), persistent=False)
        self._product: Product | None = None

    def runtime(self, layout: Layout = plain) -> ParallelNet:
        """Return the network itself, with common outputs laid out for drafting; outputs per head stay unchanged."""
        self._product = layout(self.outputs) if self.outputs.ndim == 2 else None
        return self

    def thoughts(self, features: Tensor) -> Tensor:
        """Map the target's hidden states [row, hidden] to each head's features, [ahead, row, hidden]."""
        shared = self.trunk(features)
        return torch.stack([head(shared) for head in self.heads])

    def logits(self, features: Tensor) -> Tensor:
        """Map hidden states [row, hidden] to logits [ahead, row, support]: entry k predicts the token k + 2 after the row's."""
        thoughts = self.thoughts(features)
        if self.outputs.ndim == 3:
            return thoughts @ self.outputs.transpose(1, 2)
        if self._product is None:
            return F.linear(thoughts, self.outputs)
        return self._product(thoughts.flatten(0, 1)).view(*thoughts.shape[:2], -1)
