"""Sparse feed-forward of a drafter's layer: a router chooses a few experts for each row, a shared one may see them all.

Routers differ in how they score (softmax over all experts, or a sigmoid each), in what they choose by and in what the weights sum
to: data of :class:`Experts`. Axis names: ``row``, ``hidden``, ``expert``, ``chosen``.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from specviz.drafting.networks.feature_head import Experts
from specviz.drafting.runtimes.feature_stepper import Layout


class ExpertLayer:
    """Called with what the norm before it gives without its weight, which is folded into the matrices here."""

    def __init__(self, experts: Experts, part: Mapping[str, Tensor], layout: Layout) -> None:
        self._experts, norm = experts, part["post_attention_layernorm.weight"]
        self._router = part["mlp.gate.weight"] * norm
        self._correction = part.get("mlp.gate.e_score_correction_bias")
        self._widening, self._narrowing = part["mlp.experts.gate_up_proj"] * norm, part["mlp.experts.down_proj"]
        self._shared = None
        if experts.shared:
            both = torch.cat([part[f"mlp.shared_expert.{name}_proj.weight"] for name in ("gate", "up")]) * norm
            self._shared = (layout(both.contiguous()), layout(part["mlp.shared_expert.down_proj.weight"]))
        self._shared_gate = part["mlp.shared_expert_gate.weight"] * norm if experts.shared_gate else None

    def __call__(self, x: Tensor) -> Tensor:
        """[row, hidden] to the same."""
        weights, chosen = self.routed(x)
        total = torch.zeros_like(x)
        for expert in chosen.unique().tolist():
            row, place = (chosen == expert).nonzero(as_tuple=True)
            gate, up = F.linear(x[row], self._widening[expert]).chunk(2, dim=-1)
            output = F.linear(F.silu(gate) * up, self._narrowing[expert])
            total = total.index_add(0, row, output * weights[row, place, None])
        if self._shared is None:
            return total
        widen, narrow = self._shared
        gate, up = widen(x).chunk(2, dim=-1)
        shared = narrow(F.silu(gate) * up)
        return total + (shared if self._shared_gate is None else shared * F.linear(x, self._shared_gate).sigmoid())

    def routed(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Weights and numbers of the experts of each row, both [row, chosen]."""
        experts, wide = self._experts, torch.promote_types(x.dtype, torch.float32)
        logits = F.linear(x.to(wide), self._router.to(wide))
        scores = logits.softmax(-1) if experts.scores == "softmax" else logits.sigmoid()
        by = scores if self._correction is None else scores + self._correction.to(wide)
        if experts.groups > 1:  # a group counts by its best two
            grouped = by.unflatten(-1, (experts.groups, -1))
            best = grouped.topk(2, dim=-1).values.sum(-1).topk(experts.chosen_groups, dim=-1).indices
            kept = torch.zeros(grouped.shape[:-1], dtype=torch.bool, device=x.device).scatter(-1, best, True)
            by = grouped.masked_fill(~kept[..., None], -torch.inf).flatten(-2)
        chosen = by.topk(experts.chosen, dim=-1).indices
        weights = scores.gather(-1, chosen)
        if experts.normed:
            weights = weights / (weights.sum(-1, keepdim=True) + (1e-20 if experts.scores == "sigmoid" else 0.0))
        return (weights * experts.scale).to(x.dtype), chosen
