"""GTO's draft-tree reward: the expected accepted length of each branch, and their log-sum-exp over the tree.

With p the target's probabilities, a branch of l tokens has ``L = sum_{j<=l} prod_{k<=j} p(token k | its prefix)``. The tree's
reward over its branches is ``r = log(sum_i exp(η L_i)) / η`` (Hu et al., arXiv 2509.22134).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from specviz.engine.interfaces import Acceptance, Context, Draft, TargetPass, Verdict
from specviz.engine.to_device import to_device
from specviz.engine.tree import DraftTree
from specviz.trace.notes.verdicts import Branch, ReferenceTree, TreeRewardNote
from specviz.trace.schema import Note

Scored = tuple[Draft, TargetPass]


def branch_lengths(parents: Sequence[int], probability: Sequence[float]) -> dict[int, float]:
    """Return, by leaf, the expected number of accepted tokens of its branch; a lone root is a branch of length 0.

    ``probability[node]`` is the target's probability of the node's token given its ancestors (the root's is ignored).
    """
    reached, length = [1.0], [0.0]
    for parent, p in zip(parents[1:], probability[1:], strict=True):
        reached.append(reached[parent] * p)
        length.append(length[parent] + reached[-1])
    inner = set(parents)
    return {node: length[node] for node in range(len(parents)) if node not in inner}


def tree_reward(lengths: Iterable[float], eta: float = 1.0) -> float:
    """Return ``log(sum(exp(eta * L))) / eta``: at least the largest L, and more if others are nearly as large."""
    scaled = [eta * length for length in lengths]
    most = max(scaled)
    return (most + math.log(sum(math.exp(value - most) for value in scaled))) / eta


def probabilities(tree: DraftTree, target: TargetPass, context: Context) -> list[float]:
    """Return the target's warped probability of every node's token given its ancestors; the root's is 1.

    At temperature 0 it is the plain softmax, as in all displayed probabilities.
    """
    if len(tree) == 1:
        return [1.0]
    children, device = tree.shape.children, target.logits.device
    inner = [node for node in range(len(tree)) if children[node]]
    place = {node: row for row, node in enumerate(inner)}
    distribution = context.warp.log_probabilities(target.logits.index_select(0, to_device(inner, device)))
    rows = to_device([place[parent] for parent in tree.shape.parents[1:]], device)
    return [1.0, *distribution[rows, tree.tokens[1:]].exp().tolist()]


class Rewarded:
    """Acceptance by ``rule`` that also notes the drafted tree's reward if notes are recorded.

    ``other`` returns another scored draft from the same root for comparison, or None.
    """

    def __init__(self, rule: Acceptance, other: Callable[[], Scored | None] = lambda: None) -> None:
        self._rule = rule
        self._other = other

    def judge(self, draft: Draft, target: TargetPass, context: Context) -> Verdict:
        verdict = self._rule.judge(draft, target, context)
        return replace(verdict, notes=(*verdict.notes, *context.notes(lambda: [self._note(draft, target, context)])))

    def _note(self, draft: Draft, target: TargetPass, context: Context) -> Note:
        lengths = _lengths(draft, target, context)
        branches = [Branch(node, length) for node, length in lengths.items()]
        note = TreeRewardNote(tree_reward(lengths.values()), before=None, branches=branches, reference=None)
        other = self._other()
        if other is not None:
            tree = other[0].tree
            before = tree_reward(_lengths(*other, context).values())
            note = note.replace(before=before, reference=ReferenceTree(tree.host_tokens, tree.shape.parents))
        return note.to_note()


def _lengths(draft: Draft, target: TargetPass, context: Context) -> dict[int, float]:
    return branch_lengths(draft.tree.shape.parents, probabilities(draft.tree, target, context))
