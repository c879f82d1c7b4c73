"""Greedy verification and sample-and-match: the target draws its own token first, then the tree is searched for it.

Exact for any draft fixed before the draw. Distribution and acceptance equal those of rejecting point-mass drafts one by one;
with noise keyed by position, the tokens equal the autoregressive run's. At temperature 0 the choice is the argmax.
"""

from __future__ import annotations

from specviz.engine.interfaces import Context, Draft, TargetPass, Verdict
from specviz.engine.verdict import TargetTokens, statuses


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
