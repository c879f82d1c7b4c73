"""Exact acceptance rules: greedy verification, sample-and-match, and speculative rejection sampling.

Matching chooses the target's token at each node first and then looks it up in the tree. It is exact if the draft does not depend
on the draw. Output distribution and acceptance rate equal those of rejection sampling with point-mass drafts. Noise is keyed by
position, so the tokens equal those of the autoregressive run.

Rejection sampling works on a chain, and without replacement among the siblings of a tree. Chains: algorithm 1 of Leviathan et
al. (arXiv 2211.17192) and Chen et al. (arXiv 2302.01318). Trees: the recursive form of SpecInfer and EAGLE. A child is accepted
with probability min(1, r/q), where r is the target's residual. Exact for children sampled from q and judged in the order sampled.
Deterministically chosen children count as point masses (q = 1).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from specviz.acceptance.residual import remaining
from specviz.acceptance.tree_probabilities import TreeProbabilities
from specviz.engine.interfaces import Context, Draft, TargetPass, Verdict
from specviz.engine.sampling import ACCEPT, draw
from specviz.engine.tree import DraftTree, TreeShape
from specviz.trace.notes.verdicts import OverlapNote, OverlapPosition
from specviz.trace.schema import ACCEPTED, REJECTED, ROOT, SKIPPED


def statuses(shape: TreeShape, path: Sequence[int], judged: Sequence[int]) -> tuple[str, ...]:
    """Return the status of each node: accepted on the path, else rejected if judged and skipped if not."""
    marks = [SKIPPED] * len(shape)
    marks[0] = ROOT
    for node in judged:
        marks[node] = REJECTED
    for node in path:
        marks[node] = ACCEPTED
    return tuple(marks)


class TargetTokens:
    """The target's token after each node: the argmax at temperature 0, else a sample with the noise of the next position.

    On CUDA, the tokens after all nodes are computed at once, because reading node by node would synchronize each time. On a CPU,
    only visited nodes are computed. ``known``: the tokens, if the host already has them.
    """

    def __init__(self, logits: Tensor, tree: DraftTree, context: Context, known: list[int] | None = None) -> None:
        self._logits = logits
        self._tree = tree
        self._context = context
        self._all = known
        if not known and logits.device.type != "cpu":
            self._all = self._choose(range(len(tree)))

    def _choose(self, nodes: Sequence[int]) -> list[int]:
        context, depths = self._context, self._tree.shape.depths
        rows = self._logits[list(nodes)] if len(nodes) != len(self._tree) else self._logits
        places = [context.position + 1 + depths[node] for node in nodes]
        return context.warp.choose(rows, places, context.noise).tolist()

    def at(self, node: int) -> int:
        """Return the target's token after ``node``."""
        return self._all[node] if self._all is not None else self._choose([node])[0]


@dataclass(frozen=True)
class Match:
    """Rule that descends to the child with the target's token. If no child has this token, the token is the bonus.

    ``known``: the target's token after each node, if the host already has them.
    """

    known: list[int] | None = None

    def judge(self, draft: Draft, target: TargetPass, context: Context) -> Verdict:
        tree = draft.tree
        tokens, children = tree.host_tokens, tree.shape.children
        choices = TargetTokens(target.logits, tree, context, self.known)
        judged: list[int] = []
        visited: list[int] = []
        node: int | None = 0
        while node is not None:
            visited.append(node)
            judged += children[node]
            choice = choices.at(node)
            node = next((child for child in children[node] if tokens[child] == choice), None)
        path = tuple(visited[1:])
        return Verdict(
            rule="greedy" if context.warp.greedy else "match",
            path=path,
            bonus=choice,
            source="target",
            statuses=statuses(tree.shape, path, judged),
            visited=tuple(visited),
        )


class Rejection:
    """Top-down rejection sampling; greedy matching at temperature 0."""

    def judge(self, draft: Draft, target: TargetPass, context: Context) -> Verdict:
        if context.warp.greedy:
            return Match().judge(draft, target, context)
        tree, probabilities = draft.tree, TreeProbabilities(draft, target, context.warp)
        shape, tokens = tree.shape, tree.host_tokens
        visited, judged = [0], list[int]()
        thresholds, draws, overlaps = dict[int, float](), dict[int, float](), list[OverlapPosition]()
        node, children = 0, shape.children[0]
        while children:
            sampled, table = node in draft.proposals, probabilities.table(node)
            left = remaining(probabilities.row(node), table, sampled)
            if context.record_notes and sampled:
                with context.untimed:  # judging the children will change the residual
                    overlaps.append(left.overlap(node))
            for child in children:
                judged.append(child)
                thresholds[child] = left.threshold(tokens[child])
                # Keyed by round too, because a later round may judge the same position again and needs a fresh draw.
                draws[child] = context.noise.uniform(ACCEPT, context.round, child)
                if draws[child] < thresholds[child]:
                    visited.append(child)
                    node, children = child, shape.children[child]
                    break
                left.reject(tokens[child])
            else:  # no child was accepted, so the bonus is drawn from the residual
                break
        path, rest = tuple(visited[1:]), left.distribution() if children else probabilities.row(node)
        return Verdict(
            rule="ratio" if all(len(row) <= 1 for row in shape.children) else "without_replacement",
            path=path,
            bonus=draw(rest, context.noise, context.position + 1 + shape.depths[node]),
            source="residual" if children else "target",
            statuses=statuses(shape, path, judged),
            visited=tuple(visited),
            thresholds=thresholds,
            draws=draws,
            certain=not draft.proposals,
            notes=context.notes(lambda: [OverlapNote(overlaps).to_note()] if overlaps else []),
        )
