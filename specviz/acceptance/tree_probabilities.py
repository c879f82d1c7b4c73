"""Target and draft probabilities at the inner nodes of a scored tree, for acceptance rules that run on the host.

On a GPU, the inner nodes are computed together and copied in one transfer. On a CPU, nodes are computed when visited. The axis
``support`` runs over the tokens from which a node's children are drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from specviz.engine.interfaces import Draft, Proposal, TargetPass
from specviz.engine.sampling import Warp
from specviz.engine.to_device import to_device, to_host


@dataclass(frozen=True)
class NodeTable:
    """Target probabilities ``p`` and draft probabilities ``q`` of the tokens ``ids`` at one node, [support], on the host.

    ``ids``: None for the whole vocabulary; ``outside``: target mass outside the support, float64, or None. For
    deterministically chosen children, ``q`` is all ones.
    """

    p: Tensor
    q: Tensor
    ids: Tensor | None
    outside: Tensor | None


class TreeProbabilities:
    """Probabilities at the nodes of a scored tree under ``warp``. ``outside``: whether to compute the mass outside the supports.

    A draft network on the device has one support for many nodes; lookup drafters have one support per node, on the host.
    """

    def __init__(self, draft: Draft, target: TargetPass, warp: Warp, outside: bool = False) -> None:
        self._draft, self._logits, self._warp, self._outside = draft, target.logits, warp, outside
        self._rows: dict[int, Tensor] = {}
        self._tables: dict[int, NodeTable] = {}
        self.remote = target.logits.device.type != "cpu"
        """Whether the target is on a device other than the host."""

    @cached_property
    def _inner(self) -> list[int]:
        return [node for node, below in enumerate(self._draft.tree.shape.children) if below]

    def row(self, node: int) -> Tensor:
        """Return the warped target distribution [vocab] after ``node``, on the target's device."""
        if self.remote and not self._rows:
            self._compute(self._inner)
        if node not in self._rows:
            self._rows[node] = self._warp.probabilities(self._logits[node])
        return self._rows[node]

    def table(self, node: int) -> NodeTable:
        """Return both distributions at the inner node ``node``. Also computes :meth:`row` for ``node``."""
        if node not in self._tables:
            self._compute(self._inner if self.remote else [node])
        return self._tables[node]

    def _compute(self, nodes: Sequence[int]) -> None:
        """Compute the distributions at ``nodes``, grouped by support, with a single copy from the device."""
        if not nodes:
            return
        rows = self._warp.probabilities(self._logits.index_select(0, to_device(nodes, self._logits.device)))
        self._rows.update(zip(nodes, rows.unbind(), strict=True))
        proposals = [self._proposal(node) for node in nodes]
        if not self.remote:
            for row, node, proposal in zip(rows[:, None], nodes, proposals, strict=True):
                self._store([node], [*self._group(row, proposal.ids), proposal.probability[None]], proposal.ids is not None)
            return
        on_host: dict[int, Tensor] = {}
        groups: dict[int, list[int]] = {}
        for place, proposal in enumerate(proposals):
            if proposal.ids is not None and proposal.ids.device.type == "cpu":
                on_host[place] = proposal.ids
            else:
                groups.setdefault(id(proposal.ids), []).append(place)
        parts: list[Tensor] = []
        for places in groups.values():
            same = rows if len(places) == len(nodes) else rows.index_select(0, to_device(places, rows.device))
            q = torch.stack([proposals[place].probability for place in places])
            parts += [*self._group(same, proposals[places[0]].ids), q]
        wanted = [token + place * rows.shape[1] for place, ids in on_host.items() for token in ids.tolist()]
        parts.append(rows.flatten().index_select(0, to_device(wanted, rows.device)))
        *copies, found = to_host(parts)
        for start, places in zip(range(0, len(copies), 4), groups.values(), strict=True):
            self._store([nodes[place] for place in places], copies[start : start + 4], proposals[places[0]].ids is not None)
        for (place, ids), p in zip(on_host.items(), found.split([len(ids) for ids in on_host.values()]), strict=True):
            outside = (1.0 - p.sum(dtype=torch.float64)).clamp_min(0.0)
            self._tables[nodes[place]] = NodeTable(p, proposals[place].probability, ids, outside)

    def _store(self, nodes: Sequence[int], copies: Sequence[Tensor], listed: bool) -> None:
        p, outside, ids, q = copies
        for row, node in enumerate(nodes):
            self._tables[node] = NodeTable(p[row], q[row], ids if listed else None, outside[row] if self._outside else None)

    def _group(self, rows: Tensor, ids: Tensor | None) -> list[Tensor]:
        """Return p [node, support] on the tokens ``ids`` [support], the mass outside [node] if requested, and ``ids``."""
        outside = rows.new_zeros(len(rows), dtype=torch.float64) if self._outside else rows.new_empty(0)
        if ids is None:
            return [rows, outside, rows.new_empty(0)]
        if self._outside:
            outside = rows.index_fill(1, ids, 0.0).sum(1, dtype=torch.float64)
        return [rows.index_select(1, ids), outside, ids]

    def _proposal(self, node: int) -> Proposal:
        """Return the distribution from which the children were drawn, or all ones for deterministically chosen children."""
        proposal = self._draft.proposals.get(node)
        if proposal is not None:
            return proposal
        tree = self._draft.tree
        offered = list(dict.fromkeys(tree.host_tokens[child] for child in tree.shape.children[node]))
        return Proposal(torch.ones(len(offered)), torch.tensor(offered, dtype=torch.long))
