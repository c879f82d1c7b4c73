"""Greedy verification and sample-and-match: at each node, the target's token is chosen first and then looked up in the tree.

Exact if the draft does not depend on the draw. Output distribution and acceptance rate equal those of rejection sampling with
point-mass drafts. Noise is keyed by position, so the tokens equal those of the autoregressive run.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from specviz.engine.interfaces import Context, Draft, TargetPass, Verdict
from specviz.engine.tree import DraftTree, TreeShape
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
    only visited nodes are computed.
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
        """Return the target's token after ``node``."""
        return self._all[node] if self._all is not None else self._choose([node])[0]


class Match:
    """Rule that descends to the child with the target's token. If no child has this token, the token is the bonus."""

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
