"""Medusa's parallel heads on the target's last hidden state; head k predicts the token k + 2 positions ahead (k from 0).

In Medusa (Cai et al., arXiv 2401.10774), head k is W2 (h + SiLU(W1 h)), with one or more residual blocks. Published heads have
a W1 and a full W2 each. The heads trained here share the target's output matrix U, restricted to the draft vocabulary. Each
head has a square matrix V_k before it: W2 = U V_k.

SiLU is bounded below (at about -0.28), so without V_k a head could barely subtract from the hidden state. The shipped heads
have one trunk block and none per head, so the V_k share the input h + SiLU(W1 h).

Axis names: ``row``, ``ahead`` (one entry per head), ``hidden``, ``support`` (the draft vocabulary).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specviz.drafting.networks.decoder_layer import Layout, Product, plain
from specviz.drafting.networks.network import Network
from specviz.errors import ModelUnavailable


@dataclass(frozen=True)
class ParallelConfig:
    """Sizes of the heads. ``heads``: number of heads. ``tap``: index of the hidden state that they read (the last, after the
    final norm).

    ``trunk``: number of shared residual blocks. ``blocks``: number of residual blocks per head. ``turned``: whether each head
    ends with a square matrix.
    """

    hidden: int
    heads: int
    tap: int
    blocks: int = 1
    trunk: int = 0
    turned: bool = False


class Residual(nn.Module):
    """x + SiLU(W x + b), the identity at initialisation. Parameter names match the published weights."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.linear = nn.Linear(hidden, hidden)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        return x + F.silu(self.linear(x))


def _head(config: ParallelConfig) -> nn.Sequential:
    """Return one head; at initialisation it is the identity, so it predicts what the target's head predicts."""
    parts: list[nn.Module] = [Residual(config.hidden) for _ in range(config.blocks)]
    if config.turned:
        turn = nn.Linear(config.hidden, config.hidden)
        nn.init.eye_(turn.weight)
        nn.init.zeros_(turn.bias)
        parts.append(turn)
    return nn.Sequential(*parts)


class ParallelNet(Network):
    """Set of parallel heads.

    ``outputs``: output matrix, [support, hidden] for all heads or [ahead, support, hidden] with one per head; it stays frozen.
    ``draft_ids`` [support]: token ids of the matrix rows, None for the whole vocabulary.
    """

    title, shape = "set of parallel heads", ParallelConfig
    outputs: Tensor

    def __init__(self, config: ParallelConfig, outputs: Tensor, draft_ids: Tensor | None = None) -> None:
        super().__init__(config, draft_ids=draft_ids)
        if outputs.shape[-1] != config.hidden:
            raise ModelUnavailable(
                f"These heads need hidden states of width {config.hidden}, but the target's have width "
                f"{outputs.shape[-1]}. Choose the target they were trained for."
            )
        self.trunk = nn.Sequential(*(Residual(config.hidden) for _ in range(config.trunk)))
        self.heads = nn.ModuleList(_head(config) for _ in range(config.heads))
        shared = outputs.ndim == 2 and draft_ids is not None and len(outputs) != len(draft_ids)
        rows = outputs[draft_ids] if shared else outputs
        self.register_buffer("outputs", rows.contiguous(), persistent=False)
        self._product: Product | None = None

    def runtime(self, layout: Layout = plain) -> ParallelNet:
        """Pack a shared output matrix with ``layout`` and return this network. Per-head matrices stay unpacked."""
        self._product = layout(self.outputs) if self.outputs.ndim == 2 else None
        return self

    def thoughts(self, features: Tensor) -> Tensor:
        """Map the target's hidden states [row, hidden] to the features of each head, [ahead, row, hidden]."""
        shared = self.trunk(features)
        return torch.stack([head(shared) for head in self.heads])

    def logits(self, features: Tensor) -> Tensor:
        """Map hidden states [row, hidden] to logits [ahead, row, support]: entry k predicts the token k + 2 positions after the
        row's token."""
        thoughts = self.thoughts(features)
        if self.outputs.ndim == 3:
            return thoughts @ self.outputs.transpose(1, 2)
        if self._product is None:
            return F.linear(thoughts, self.outputs)
        return self._product(thoughts.flatten(0, 1)).view(*thoughts.shape[:2], -1)
