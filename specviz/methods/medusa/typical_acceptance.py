"""Typical acceptance: a drafted token is kept if its probability exceeds a threshold set by the target's entropy.

Medusa (Cai et al., arXiv 2401.10774): token x is kept if p(x) > min(epsilon, delta * exp(-H(p))), H being the entropy
of the warped distribution p in nats. Of all paths with every token kept, the longest is accepted, and of equally long ones the
one with the largest product of p. The text's distribution changes: the drafter decides which of several likely tokens is
emitted. With epsilon 1 and unbounded delta no token is kept, and the run equals the autoregressive one (with ``greedy_root``,
the one at temperature 0).
"""

from __future__ import annotations

import math
from contextlib import nullcontext
from dataclasses import dataclass, field

import torch

from specviz.acceptance.match import Match
from specviz.engine.interfaces import Context, Draft, TargetPass, Verdict
from specviz.engine.to_device import to_device
from specviz.engine.verdict import TargetTokens, statuses
from specviz.trace.notes.verdicts import TypicalAcceptanceNote, TypicalPosition
from specviz.trace.schema import ACCEPTED, RELAXED


@dataclass(frozen=True)
class Typical:
    """The rule at T > 0; at temperature 0 it is plain greedy matching, which is exact.

    A node's entry in the verdict's ``thresholds`` is the threshold at its parent; no random numbers are used. A node on the path
    is *accepted* if exact matching would have chosen the same token, else *relaxed*. A node that passed, but whose path lost
    against a longer or more likely one, is *rejected*. Nodes below one that failed are not verified.

    The token after the path is a sample from the target's distribution or, with ``greedy_root``, its most likely token, as
    published ("greedy decoding for the first token", section 2.3.1).
    """

    epsilon: float = 0.09
    delta: float = 0.3
    greedy_root: bool = False

    def judge(self, draft: Draft, target: TargetPass, context: Context) -> Verdict:
        if context.warp.greedy:
            return Match().judge(draft, target, context)
        search = _Search(self, draft, target, context)
        search.run()
        shape = draft.tree.shape
        path = shape.path(search.best())[1:]
        end = path[-1] if path else 0
        choices = TargetTokens(target.logits, draft.tree, context)
        marks = list(statuses(shape, path, list(search.thresholds)))
        # The rule does not need the target's own choices. On a CPU they are extra work for display only; on a GPU they were
        # computed with the bonus token.
        with context.untimed if target.logits.device.type == "cpu" else nullcontext():
            for node in path:
                same = draft.tree.host_tokens[node] == choices.at(shape.parents[node])
                marks[node] = ACCEPTED if same else RELAXED
        return Verdict(
            rule="typical",
            path=path,
            bonus=int(target.logits[end].argmax()) if self.greedy_root else choices.at(end),
            source="target",
            statuses=tuple(marks),
            visited=(*(node for node in search.read_nodes if node != end), end),
            thresholds=search.thresholds,
            notes=context.notes(lambda: [TypicalAcceptanceNote(search.positions).to_note()] if search.positions else []),
        )


@dataclass
class _Search:
    """Level-by-level search for nodes that pass the threshold along their whole path."""

    rule: Typical
    draft: Draft
    target: TargetPass
    context: Context
    path_log_p: dict[int, float] = field(default_factory=lambda: {0: 0.0})
    read_nodes: list[int] = field(default_factory=list)
    thresholds: dict[int, float] = field(default_factory=dict)
    positions: list[TypicalPosition] = field(default_factory=list)

    def run(self) -> None:
        """Fill ``path_log_p``: the nodes whose path passes, with the path's log-probability."""
        shape = self.draft.tree.shape
        if self._device.type != "cpu":  # on a GPU, one copy for all nodes that may be needed
            every = [node for node in range(len(shape)) if shape.children[node]]
            known = dict(zip(every, self._ask(every), strict=True)) if every else {}
        for level in shape.levels:
            inner_nodes = [node for node in level if node in self.path_log_p and shape.children[node]]
            if not inner_nodes:
                break
            self.read_nodes += inner_nodes
            rows = self._ask(inner_nodes) if self._device.type == "cpu" else [known[node] for node in inner_nodes]
            for node, (entropy, *log_p) in zip(inner_nodes, rows, strict=True):
                self._keep(node, entropy, log_p)

    def best(self) -> int:
        """Return the deepest kept node; if tied, the one with the most likely path."""
        depths = self.draft.tree.shape.depths
        return max(self.path_log_p, key=lambda node: (depths[node], self.path_log_p[node], -node))

    @property
    def _device(self) -> torch.device:
        return self.target.logits.device

    def _ask(self, nodes: list[int]) -> list[list[float]]:
        """Return, for each node, its distribution's entropy and log p of its children's tokens, in one copy to the host."""
        rows = self.context.warp.log_probabilities(self.target.logits.index_select(0, to_device(nodes, self._device)))
        children = [self.draft.tree.shape.children[node] for node in nodes]
        width = max(map(len, children))
        tokens = self.draft.tree.host_tokens
        child_ids = to_device([[tokens[child] for child in row] + [0] * (width - len(row)) for row in children], self._device)
        entropy = -(rows.exp() * rows.clamp_min(-1e4)).sum(-1, keepdim=True)
        numbers: list[list[float]] = torch.cat((entropy, rows.gather(-1, child_ids)), dim=-1).tolist()
        return numbers

    def _keep(self, node: int, entropy: float, log_p: list[float]) -> None:
        threshold = min(self.rule.epsilon, self.rule.delta * math.exp(-entropy))
        for child, child_log_p in zip(self.draft.tree.shape.children[node], log_p, strict=False):
            self.thresholds[child] = threshold
            p = math.exp(child_log_p)
            if p > threshold:
                self.path_log_p[child] = self.path_log_p[node] + child_log_p
        if self.context.record_notes:
            with self.context.untimed:
                self._show(node, threshold, entropy, log_p)

    def _show(self, node: int, threshold: float, entropy: float, log_p: list[float]) -> None:
        for child, child_log_p in zip(self.draft.tree.shape.children[node], log_p, strict=False):
            token, p = self.draft.tree.host_tokens[child], math.exp(child_log_p)
            self.positions.append(TypicalPosition(child, token, p, threshold, entropy))
