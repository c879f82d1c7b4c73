"""Typical acceptance: a draft token is kept if its probability exceeds a threshold that depends on the target's entropy.

Medusa (Cai et al., arXiv 2401.10774): a token x is kept if p(x) > min(epsilon, delta * exp(-H(p))), with the warped distribution
p and its entropy H(p) in nats. The longest path of kept tokens is accepted; ties go to the largest product of p. The
output distribution changes: the drafter decides which of several likely tokens is emitted. With epsilon 1 and a large delta no
token is kept. The output then equals that of the autoregressive run, or with ``greedy_root`` that of the greedy run.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import torch

from specviz.acceptance.exact import Match, TargetTokens, statuses
from specviz.engine.interfaces import Context, Draft, TargetPass, Verdict
from specviz.engine.to_device import to_device
from specviz.trace.notes.verdicts import TypicalAcceptanceNote, TypicalPosition
from specviz.trace.schema import ACCEPTED, RELAXED, Note


@dataclass(frozen=True)
class Typical:
    """Typical acceptance; at temperature 0, greedy matching, which is exact.

    A node on the accepted path is *accepted* if sample-and-match would accept it, else *relaxed*. A kept node on a path that lost
    is *rejected*. Nodes below a node that was not kept are not verified. ``thresholds`` of the verdict maps a node to the
    threshold at its parent.

    ``greedy_root``: the bonus token is the target's most likely token, as published ("greedy decoding for the first token",
    section 2.3.1), instead of a sample.
    """

    epsilon: float = 0.09
    delta: float = 0.3
    greedy_root: bool = False

    def judge(self, draft: Draft, target: TargetPass, context: Context) -> Verdict:
        if context.warp.greedy:
            return Match().judge(draft, target, context)
        shape, on_cpu = draft.tree.shape, target.logits.device.type == "cpu"
        path_log_p, thresholds, read = {0: 0.0}, dict[int, float](), dict[int, tuple[float, list[float]]]()
        # On a GPU, all nodes are read in one copy. On a CPU, only nodes below kept nodes are read, level by level.
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
        # The target's choices only serve the display. On a GPU these choices come with the bonus token at no cost.
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
    """Return, for each of ``nodes`` with children, (entropy, log p of the children's tokens). Copies to the host once."""
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
