"""Greedy verification and sample-and-match: the target draws its own token first, then the tree is searched for it.

Exact for any draft fixed before the draw. Distribution and acceptance equal those of rejecting point-mass drafts one by one;
with noise keyed by position, the tokens equal the autoregressive run's. At temperature 0 the choice is the argmax.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from specviz.engine.interfaces import Context, Draft, TargetPass, Verdict
from specviz.engine.tree import DraftTree, TreeShape
from specviz.trace.schema import ACCEPTED, REJECTED, ROOT, SKIPPED


def statuses(shape: TreeShape, path: Sequence[int], judged: Sequence[int]) -> tuple[str, ...]:
    """Return a status per node: accepted on the path, rejected for other judged nodes, skipped for nodes never reached."""
    marks = [SKIPPED] * len(shape)
    marks[0] = ROOT
    for node in judged:
        marks[node] = REJECTED
    for node in path:
        marks[node] = ACCEPTED
    return tuple(marks)


class TargetTokens:
    """The target's own token at each node: argmax at temperature 0, else a draw with the noise of the next position.

    On CUDA all nodes are chosen at once and copied once, since node-by-node reads would synchronize each time. On a CPU
    the softmax is computed only for nodes that the walk visits.
    """

    def __init__(self, logits: Tensor, tree: DraftTree, context: Context) -> None:
        self._logits = logits
        self._tree = tree
        self._context = context
        self._all: list[int] | None = None
        if logits.device.type != "cpu":
            self._all = self._choose(range(len(tree)))

    def _choose(self, nodes: Sequence[int]) -> list[int]:
        context, depths = self._context, self._tree.shape.depths
        rows = self._logits[list(nodes)] if len(nodes) != len(self._tree) else self._logits
        places = [context.position + 1 + depths[node] for node in nodes]
        return [int(token) for token in context.warp.choose(rows, places, context.noise).tolist()]

    def at(self, node: int) -> int:
        """Return the target's own token after ``node``."""
        return self._all[node] if self._all is not None else self._choose([node])[0]


class Match:
    """Rule that follows the child with the target's own choice; without such a child, that choice is the bonus token."""

    def judge(self, draft: Draft, target: TargetPass, context: Context) -> Verdict:
        tree = draft.tree
        tokens, children = tree.host_tokens, tree.shape.children
        choices = TargetTokens(target.logits, tree, context)
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
