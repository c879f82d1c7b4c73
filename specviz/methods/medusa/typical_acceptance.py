"""Typical acceptance: a drafted token is kept if its probability exceeds a threshold set by the target's entropy.

Medusa (Cai et al., arXiv 2401.10774): token x is kept if p(x) > min(epsilon, delta * exp(-H(p))), H being the entropy
of the warped distribution p in nats. Of all paths with every token kept, the longest is accepted, and of equally long ones the
one with the largest product of p. The text's distribution changes: the drafter decides which of several likely tokens is
emitted. With epsilon 1 and unbounded delta no token is kept, and the run equals the autoregressive one (with ``greedy_root``,
the one at temperature 0).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import torch

from specviz.acceptance.match import Match, TargetTokens, statuses
from specviz.engine.interfaces import Context, Draft, TargetPass, Verdict
from specviz.engine.to_device import to_device
from specviz.trace.notes.verdicts import TypicalAcceptanceNote, TypicalPosition
from specviz.trace.schema import ACCEPTED, RELAXED, Note


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
        shape, on_cpu = draft.tree.shape, target.logits.device.type == "cpu"
        path_log_p, thresholds, read = {0: 0.0}, dict[int, float](), dict[int, tuple[float, list[float]]]()
        # On a GPU, one copy for all nodes that may be needed; on a CPU only nodes whose path passes are read, level by level.
        known = {} if on_cpu else _read(draft, target, context, range(len(shape)))
        for level in shape.levels:
            nodes = [node for node in level if node in path_log_p]
            if on_cpu:
                known = _read(draft, target, context, nodes)
            for node in (node for node in nodes if shape.children[node]):
                entropy, log_p = read[node] = known[node]
                for child, child_log_p in zip(shape.children[node], log_p, strict=False):
                    thresholds[child] = min(self.epsilon, self.delta * math.exp(-entropy))
                    if math.exp(child_log_p) > thresholds[child]:
                        path_log_p[child] = path_log_p[node] + child_log_p
        best = max(path_log_p, key=lambda node: (shape.depths[node], path_log_p[node], -node))
        path = shape.path(best)[1:]
        choices = TargetTokens(target.logits, draft.tree, context)
        marks = list(statuses(shape, path, list(thresholds)))
        # The rule does not need the target's own choices. On a CPU they are extra work for display only; on a GPU they were
        # computed with the bonus token.
        with context.untimed if on_cpu else nullcontext():
            for node in path:
                same = draft.tree.host_tokens[node] == choices.at(shape.parents[node])
                marks[node] = ACCEPTED if same else RELAXED

        def notes() -> list[Note]:
            tokens = draft.tree.host_tokens
            positions = [
                TypicalPosition(child, tokens[child], math.exp(child_log_p), thresholds[child], entropy)
                for node, (entropy, log_p) in read.items()
                for child, child_log_p in zip(shape.children[node], log_p, strict=False)
            ]
            return [TypicalAcceptanceNote(positions).to_note()] if positions else []

        return Verdict(
            rule="typical",
            path=path,
            bonus=int(target.logits[best].argmax()) if self.greedy_root else choices.at(best),
            source="target",
            statuses=tuple(marks),
            visited=(*(node for node in read if node != best), best),
            thresholds=thresholds,
            notes=context.notes(notes),
        )


def _read(
    draft: Draft, target: TargetPass, context: Context, nodes: Sequence[int]
) -> dict[int, tuple[float, list[float]]]:  # fmt: skip
    """Return, for each of ``nodes`` with children, its distribution's entropy and log p of its children's tokens, in one copy to
    the host."""
    tokens, device = draft.tree.host_tokens, target.logits.device
    children = {node: draft.tree.shape.children[node] for node in nodes if draft.tree.shape.children[node]}
    if not children:
        return {}
    rows = context.warp.log_probabilities(target.logits.index_select(0, to_device(list(children), device)))
    width = max(map(len, children.values()))
    padded = [[tokens[child] for child in row] + [0] * (width - len(row)) for row in children.values()]
    entropy = -(rows.exp() * rows.clamp_min(-1e4)).sum(-1, keepdim=True)
    numbers = torch.cat((entropy, rows.gather(-1, to_device(padded, device))), dim=-1).tolist()
    return {node: (own, log_p) for node, (own, *log_p) in zip(children, numbers, strict=True)}
