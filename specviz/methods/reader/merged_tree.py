"""Merged tree of two sources, a drafter and memories: joined by shared prefix and cut to the optimal size.

READER (arXiv 2508.09072) grafts retrieved branches on a drafter's tree, but does not define a node's value. Here the acceptance
probability of each kind of node is estimated while decoding, and a node's value is the product along its path. A parent's value
is at least its child's, so the best n nodes form a tree. The sum of their values, the expected number of accepted tokens, is the
largest of any tree of n nodes.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace

from specviz.drafting.memory.retrieval import MemoryGuess, Retrieval
from specviz.drafting.trees.dynamic import SizePolicy
from specviz.engine.interfaces import Context, Controller, Draft, Round, TargetPass
from specviz.engine.sampling import Warp
from specviz.engine.tree import DraftTree
from specviz.methods.reader.estimates import Estimates
from specviz.trace.notes.drafts import Graft, MergedTreeNote
from specviz.trace.schema import MAX_PRUNED, Note

DRAFTER = "drafter"
LARGEST = 255
# Prior probability that the only known successor is right, by the length of the match before it in powers of two, in the text
# itself and elsewhere. Measured on the calibration prompts.
BY_MATCH = (0.16, 0.55, 0.76, 0.89, 0.95, 0.97)
BY_DISTANT_MATCH = (0.1, 0.3, 0.5, 0.7, 0.85, 0.95)
# Prior of a drafter's token by its rank among its siblings, for drafters without probabilities.
BY_RANK = (0.4, 0.12, 0.07, 0.04, 0.03)
# Minimum value of a leaf that is looked up.
FAINT = 0.02


@dataclass
class _Leaf:
    """A candidate node. ``sources`` maps each source to the (kind, prior) of its estimate."""

    parent: int
    token: int
    depth: int
    sources: dict[str, tuple[Hashable, float]] = field(default_factory=dict)
    kind: Hashable = None
    probability: float = 1.0
    value: float = 1.0


class _Merging:
    """Candidates by their path: equal tokens below one parent are one node, whatever their source."""

    def __init__(self, root: int, deepest: int) -> None:
        self.leaves = [_Leaf(-1, root, 0)]
        self.below: list[dict[int, int]] = [{}]
        self.grafts: list[Graft] = []
        self._deepest = deepest

    def add(self, parent: int, token: int, source: str, kind: Hashable, prior: float) -> int | None:
        """Return the node of this token, created if needed; None beyond the end of the context."""
        depth = self.leaves[parent].depth + 1
        if depth > self._deepest:
            return None
        node = self.below[parent].get(token)
        if node is None:
            node = len(self.leaves)
            self.leaves.append(_Leaf(parent, token, depth))
            self.below.append({})
            self.below[parent][token] = node
        known = self.leaves[node].sources
        if source not in known or known[source][1] < prior:
            known[source] = (kind, prior)
        return node

    def draft(self, draft: Draft) -> None:
        """Add a drafter's tree."""
        shape, tokens, place = draft.tree.shape, draft.tree.host_tokens, {0: 0}
        for node in range(1, len(shape)):
            parent = shape.parents[node]
            above = place.get(parent)
            if above is None:
                continue
            q = draft.confidence[node] if node < len(draft.confidence) else None
            rank = min(shape.children[parent].index(node), len(BY_RANK) - 1)
            kind = (DRAFTER, "rank", rank) if q is None else (DRAFTER, "q", _tenth(q))
            leaf = self.add(above, tokens[node], DRAFTER, kind, BY_RANK[rank] if q is None else q)
            if leaf is not None:
                place[node] = leaf

    def graft(self, node: int, held: MemoryGuess) -> None:
        """Add a memory's proposal for the text that ends at ``node``."""
        guess, place = held.guess, {0: node}
        for number, (token, parent) in enumerate(zip(guess.tokens, guess.parents, strict=True), start=1):
            above = place.get(parent)
            if above is None:
                continue
            certainty = guess.certainty(number)
            reach = guess.matched + self.leaves[above].depth - self.leaves[node].depth
            length = min(reach.bit_length() - 1, len(BY_MATCH) - 1)
            kind = (held.source, length, _tenth(certainty) // 2)
            prior = BY_MATCH[length] if held.near else BY_DISTANT_MATCH[length]
            leaf = self.add(above, token, held.source, kind, certainty * prior)
            if leaf is not None:
                place[number] = leaf
        if guess.tokens:
            self.grafts.append(Graft(node, held.source, guess.matched, len(guess.tokens)))

    def path(self, node: int) -> list[int]:
        """Return the tokens from below the root down to ``node``."""
        tokens = []
        while node:
            tokens.append(self.leaves[node].token)
            node = self.leaves[node].parent
        return tokens[::-1]

    def weigh(self, estimates: Estimates) -> None:
        """Set every node's probability and value. Siblings are mutually exclusive, so their probabilities are scaled to sum to at
        most 1."""
        for leaf in self.leaves[1:]:
            weighted_kinds = [(estimates.probability(kind, prior), kind) for kind, prior in leaf.sources.values()]
            leaf.probability, leaf.kind = max(weighted_kinds, key=lambda pair: pair[0])
            if len(weighted_kinds) > 1:
                missed = 1.0
                for probability, _ in weighted_kinds:
                    missed *= 1.0 - probability
                leaf.kind = ("agreed", len(weighted_kinds), _tenth(1.0 - missed))
                leaf.probability = estimates.probability(leaf.kind, 1.0 - missed)
        for node, below in enumerate(self.below):
            total = max(1.0, sum(self.leaves[child].probability for child in below.values()))
            for child in below.values():
                leaf = self.leaves[child]
                leaf.probability /= total
                leaf.value = self.leaves[node].value * leaf.probability

    def ranked(self) -> list[int]:
        """Return all nodes but the root by descending value; ties are in order of insertion, so parents precede children."""
        return sorted(range(1, len(self.leaves)), key=lambda node: -self.leaves[node].value)


class Merged:
    """Controller that drafts with ``inner`` (None for memories alone) and ``memories``, and keeps the best ``nodes`` (0: the
    optimal number).

    The ``deepened`` most valuable leaves of the drafter's tree are looked up as well. Trees are deterministic at every
    temperature: the inner drafter always drafts as at temperature 0.
    """

    def __init__(
        self,
        inner: Controller | None,
        memories: Retrieval,
        estimates: Estimates,
        nodes: int = 0,
        deepened: int = 4,
        pays: SizePolicy | None = None,
    ) -> None:
        if not nodes and pays is None:
            raise ValueError("a tree without a given size needs a size policy")
        self.inner = inner
        self.memories = memories
        self.estimates = estimates
        self.nodes = nodes
        self.deepened = deepened
        self.pays = pays
        self._kinds: list[Hashable] = []

    def begin(self, context: Context, prefill: TargetPass | None) -> None:
        self.memories.begin(context, prefill)
        if self.inner is not None:
            self.inner.begin(context, prefill)

    def draft(self, context: Context) -> Draft:
        merging, calls = _Merging(context.ids[-1], context.max_depth - 1), 0
        if self.inner is not None:
            drafted = self.inner.draft(replace(context, warp=Warp(), record_notes=False))
            merging.draft(drafted)
            calls = drafted.calls
        merging.weigh(self.estimates)
        leaves = [node for node in merging.ranked() if not merging.below[node] and merging.leaves[node].value >= FAINT]
        for node in [0, *leaves[: self.deepened]]:
            for held in self.memories.guesses(merging.path(node)):
                merging.graft(node, held)
        merging.weigh(self.estimates)
        ranked = merging.ranked()
        kept_nodes = ranked[: self._size([merging.leaves[node].value for node in ranked[:LARGEST]], calls)]
        self._kinds = [None, *(merging.leaves[node].kind for node in kept_nodes)]
        return self._make_draft(merging, kept_nodes, ranked[len(kept_nodes) :], calls, context)

    def _size(self, values: Sequence[float], calls: int) -> int:
        if self.nodes or self.pays is None:
            return self.nodes
        return self.pays(values, calls)

    def _make_draft(
        self, merging: _Merging, kept_nodes: Sequence[int], pruned_nodes: Sequence[int], calls: int, context: Context
    ) -> Draft:
        """Return the kept nodes as a tree, and the best of the others as pruned nodes, numbered after them."""
        nodes, place = [0], {0: 0}
        for node in [*kept_nodes, *pruned_nodes[:MAX_PRUNED]] if context.record_notes else kept_nodes:
            place[node] = len(nodes)
            nodes.append(node)
        leaves = [merging.leaves[node] for node in nodes]
        parents = [place.get(leaf.parent, -1) for leaf in leaves]
        size = 1 + len(kept_nodes)
        tree = DraftTree.of([leaf.token for leaf in leaves[:size]], parents[:size], context.device)
        pruned = [(parent, leaf.token, leaf.probability) for parent, leaf in zip(parents[size:], leaves[size:], strict=True)]
        confidence = [None, *(leaf.probability for leaf in leaves[1:size])]
        notes = context.notes(lambda: [self._note(merging, leaves, size, place)])
        return Draft(tree, confidence=confidence, calls=calls or int(size > 1), pruned=pruned, notes=notes)

    def _note(self, merging: _Merging, leaves: Sequence[_Leaf], size: int, place: dict[int, int]) -> Note:
        return MergedTreeNote(
            sources=["root", *("+".join(leaf.sources) for leaf in leaves[1:])],
            value=[leaf.value for leaf in leaves],
            kept=size,
            considered=len(merging.leaves) - 1,
            expected=sum(leaf.value for leaf in leaves[:size]),
            fitted=not self.nodes,
            grafts=[graft.replace(node=place[graft.node]) for graft in merging.grafts if graft.node in place],
        ).to_note()

    def observe(self, finished: Round) -> None:
        """Update the estimates with every node whose parent was accepted."""
        shape = finished.draft.tree.shape
        accepted = set(finished.verdict.path)
        for node in finished.verdict.visited[: len(finished.emitted)]:
            for child in shape.children[node]:
                self.estimates.learn(self._kinds[child], child in accepted)
        self.memories.observe(finished)
        if self.inner is not None:
            self.inner.observe(finished)

    def close(self) -> None:
        try:
            self.memories.close()
        finally:
            if self.inner is not None:
                self.inner.close()


def _tenth(share: float) -> int:
    """Return the decile of a share, 0 to 9."""
    return min(9, int(share * 10))
