"""GTO (Hu et al. 2509.22134): EAGLE-3's drafter, fine-tuned on a reward for whole trees, with EAGLE-2's dynamic tree.

The expected accepted length of a branch of l tokens is ``L = sum_{j<=l} prod_{k<=j} p(token k | prefix)``, with the target's p.
The reward of a tree with branches i is ``r = log(sum_i exp(η L_i)) / η``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from specviz.methods.eagle2 import TreeSize, dynamic_tree
from specviz.methods.registry import TOKEN_EXACT, Card, MethodResources, number, parts, switch
from specviz.trace.notes.verdicts import Branch, ReferenceTree, TreeRewardNote
from specviz.trace.schema import Note

if TYPE_CHECKING:
    from specviz.methods.parts import (
        Acceptance,
        Context,
        Controller,
        Draft,
        DraftTree,
        Round,
        Session,
        Target,
        TargetPass,
        Verdict,
    )


@dataclass(frozen=True)
class Parameters(TreeSize):
    """For an 8B target, the paper uses depth 7, width 10 and 59 nodes (60 with the root)."""

    depth: int = number(
        0, 0, 12,
        "Depth of the tree; each level takes one drafter pass. 0: the fastest depth on this machine if the drafter "
        "was calibrated for this target and width, else 5. The paper uses 7.",
        "levels",
    )  # fmt: skip
    compare: bool = switch(
        False,
        "Also draft a tree with the drafter as it was before fine-tuning, and let the target score it. A round then takes about "
        "twice as long. No effect if trees are not recorded.",
    )


@Card(name="gto", exactness=TOKEN_EXACT, family="features", parameters=Parameters, weights=("eagle3", "gto"))
def compose(parameters: Parameters, resources: MethodResources) -> parts.Composition:
    network = resources.drafter_weights("gto")
    builder = dynamic_tree(parameters, resources, network, "gto", "gto", default_depth=5)
    after, taps = parts.SingleDrafter(parts.FeatureDrafter(network), builder), network.config.taps
    if not parameters.compare:
        return parts.Composition(after, Rewarded(parts.Match()), taps, draft_name="gto")
    before = parts.SingleDrafter(parts.FeatureDrafter(resources.drafter_weights("eagle3")), builder)
    both = ShadowDrafting(after, before, resources.target)
    return parts.Composition(both, Rewarded(parts.Match(), lambda: both.latest), taps, draft_name="gto")


class ShadowDrafting:
    """Controller that drafts with ``main`` and, for comparison, also with ``other`` from the same root.

    ``latest``: the last draft of ``other`` and the target pass over that draft. The comparison takes about as long as a round
    and uses a separate session; recorded times exclude it.
    """

    def __init__(self, main: Controller, other: Controller, target: Target) -> None:
        self._main, self._other, self._target = main, other, target
        self._session: Session | None = None
        self.latest: tuple[Draft, TargetPass] | None = None

    def begin(self, context: Context, prefill: TargetPass | None) -> None:
        self._main.begin(context, prefill)
        if context.record_notes:
            with context.untimed:
                self._other.begin(context, prefill)
                self._session = self._target.open(min(self._target.context_length, len(context.ids) + context.max_depth))

    def draft(self, context: Context) -> Draft:
        draft, session = self._main.draft(context), self._session
        if session:
            with context.untimed:
                if session.length < context.position:
                    session.prefill(context.ids[session.length : context.position])
                other = self._other.draft(context)
                self.latest = other, session.score(other.tree)
                session.rewind(session.length)
        return draft

    def observe(self, finished: Round) -> None:
        self._main.observe(finished)
        if self._session is not None:
            with finished.context.untimed:
                self._other.observe(finished)

    def close(self) -> None:
        session, self._session = self._session, None
        try:
            self._main.close()
            self._other.close()
        finally:
            if session:
                session.close()


class Rewarded:
    """Acceptance by ``rule``, with a note on the reward of the tree.

    ``other``: function that returns a second draft from the same root with its target pass, for comparison, or None.
    """

    def __init__(
        self, rule: Acceptance, other: Callable[[], tuple[Draft, TargetPass] | None] = lambda: None
    ) -> None:  # fmt: skip
        self._rule, self._other = rule, other

    def judge(self, draft: Draft, target: TargetPass, context: Context) -> Verdict:
        verdict = self._rule.judge(draft, target, context)
        return replace(verdict, notes=(*verdict.notes, *context.notes(lambda: [self._note(draft, target, context)])))

    def _note(self, draft: Draft, target: TargetPass, context: Context) -> Note:
        lengths = _lengths(draft.tree, target, context)
        branches = [Branch(node, length) for node, length in lengths.items()]
        note = TreeRewardNote(tree_reward(lengths.values()), before=None, branches=branches, reference=None)
        if other := self._other():
            tree = other[0].tree
            before = tree_reward(_lengths(tree, other[1], context).values())
            note = note.replace(before=before, reference=ReferenceTree(tree.host_tokens, tree.shape.parents))
        return note.to_note()


def _lengths(tree: DraftTree, target: TargetPass, context: Context) -> dict[int, float]:
    return branch_lengths(tree.shape.parents, probabilities(tree, target, context))


def branch_lengths(parents: Sequence[int], probability: Sequence[float]) -> dict[int, float]:
    """Return, by leaf, the expected accepted length of the branch that ends there; a lone root is a branch of length 0.

    ``probability`` [node]: the target's probability of the node's token, given the ancestors; the root's value is ignored.
    """
    reached, length = [1.0], [0.0]
    for parent, p in zip(parents[1:], probability[1:], strict=True):
        reached.append(reached[parent] * p)
        length.append(length[parent] + reached[-1])
    inner = set(parents)
    return {node: length[node] for node in range(len(parents)) if node not in inner}


def tree_reward(lengths: Iterable[float], eta: float = 1.0) -> float:
    """Return ``log(sum(exp(eta * L))) / eta``, a soft maximum of the branches' lengths L."""
    scaled = [eta * length for length in lengths]
    most = max(scaled)
    return (most + math.log(sum(math.exp(value - most) for value in scaled))) / eta


def probabilities(tree: DraftTree, target: TargetPass, context: Context) -> list[float]:
    """Return the target's warped probability of each node's token, given the ancestors; 1 for the root.

    At temperature 0 the probabilities are those at temperature 1.
    """
    if len(tree) == 1:
        return [1.0]
    children, device = tree.shape.children, target.logits.device
    inner = [node for node in range(len(tree)) if children[node]]
    place = {node: row for row, node in enumerate(inner)}
    distribution = context.warp.log_probabilities(target.logits.index_select(0, parts.to_device(inner, device)))
    rows = parts.to_device([place[parent] for parent in tree.shape.parents[1:]], device)
    return [1.0, *distribution[rows, tree.tokens[1:]].exp().tolist()]
