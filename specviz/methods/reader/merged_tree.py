"""Draft tree merged from a drafter's tree and continuations retrieved from suffix trees, pruned to a size that
pays off.

READER (arXiv 2508.09072) grafts retrieved branches onto a drafter's tree, but does not define the value of a node. Here each
node has a *kind*: its source with a range of confidence, a rank or a match length; for a node of several sources, their number
and a range of their combined probability. The acceptance probability of every kind is estimated
while decoding, and the value of a node is the product of the probabilities along the path. Values fall along a path, so the
best n nodes form a tree: the one with the largest expected number of accepted tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace

from specviz.drafting.memory.retrieval import MemoryGuess, Retrieval
from specviz.drafting.runtimes.language_model import LanguageModelDrafter
from specviz.drafting.trees.dynamic import SizePolicy
from specviz.engine.interfaces import Context, Controller, Draft, Round, TargetPass
from specviz.engine.sampling import Warp
from specviz.engine.tree import DraftTree
from specviz.trace.notes.drafts import Graft, MergedTreeNote
from specviz.trace.schema import MAX_PRUNED, Note

DRAFTER = "drafter"
LARGEST = 255
# Prior acceptance probability of a retrieved token that is the only known continuation, by log2 of the match length, in this
# run's text (BY_MATCH) and in earlier outputs (BY_DISTANT_MATCH). Measured on the calibration prompts.
BY_MATCH = (0.16, 0.55, 0.76, 0.89, 0.95, 0.97)
BY_DISTANT_MATCH = (0.1, 0.3, 0.5, 0.7, 0.85, 0.95)
# Prior acceptance of a token by rank among siblings, for drafters without probabilities.
BY_RANK = (0.4, 0.12, 0.07, 0.04, 0.03)
# Minimum value of a leaf for which continuations are retrieved.
FAINT = 0.02


@dataclass
class _Leaf:
    """A candidate node. ``sources``: (kind, prior acceptance) by source."""

    parent: int
    token: int
    depth: int
    sources: dict[str, tuple[Hashable, float]] = field(default_factory=dict)
    kind: Hashable = None
    probability: float = 1.0
    value: float = 1.0


class _Merging:
    """Tree of candidates from all sources. Equal tokens below one parent share a node."""

    def __init__(self, root: int, deepest: int) -> None:
        self.leaves = [_Leaf(-1, root, 0)]
        self.below: list[dict[int, int]] = [{}]
        self.grafts: list[Graft] = []
        self._deepest = deepest

    def add(self, parent: int, token: int, source: str, kind: Hashable, prior: float) -> int | None:
        """Return the node for ``token`` below ``parent``, created if missing; None beyond the maximum depth."""
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

    def hang(
        self, at: int, tokens: Sequence[int], parents: Sequence[int], source: str,
        kind_of: Callable[[int, int], tuple[Hashable, float]],
    ) -> None:  # fmt: skip
        """Add the nodes of a tree, numbered from 1, below the node ``at``.

        ``kind_of(number, parent)``: function from a node's number in the added tree, and its parent here, to (kind, prior).
        """
        place: dict[int, int | None] = {0: at}
        for node, (token, parent) in enumerate(zip(tokens, parents, strict=True), start=1):
            above = place.get(parent)
            if above is not None:
                place[node] = self.add(above, token, source, *kind_of(node, above))

    def draft(self, draft: Draft) -> None:
        """Add the tree of a drafter."""
        shape = draft.tree.shape

        def kind_of(node: int, above: int) -> tuple[Hashable, float]:
            q = draft.confidence[node] if node < len(draft.confidence) else None
            if q is not None:
                return (DRAFTER, "q", _tenth(q)), q
            rank = min(shape.children[shape.parents[node]].index(node), len(BY_RANK) - 1)
            return (DRAFTER, "rank", rank), BY_RANK[rank]

        self.hang(0, draft.tree.host_tokens[1:], shape.parents[1:], DRAFTER, kind_of)

    def graft(self, node: int, held: MemoryGuess) -> None:
        """Add a retrieved continuation of the text up to ``node``."""
        guess = held.guess

        def kind_of(number: int, above: int) -> tuple[Hashable, float]:
            certainty = guess.certainty(number)
            reach = guess.matched + self.leaves[above].depth - self.leaves[node].depth
            length = min(reach.bit_length() - 1, len(BY_MATCH) - 1)
            prior = BY_MATCH[length] if held.near else BY_DISTANT_MATCH[length]
            return (held.source, length, _tenth(certainty) // 2), certainty * prior

        self.hang(node, guess.tokens, guess.parents, held.source, kind_of)
        if guess.tokens:
            self.grafts.append(Graft(node, held.source, guess.matched, len(guess.tokens)))

    def path(self, node: int) -> list[int]:
        """Return the tokens on the path to ``node``, without the root's."""
        tokens = []
        while node:
            tokens.append(self.leaves[node].token)
            node = self.leaves[node].parent
        return tokens[::-1]

    def weigh(self, estimates: Estimates) -> None:
        """Set the probability and the value of every node. Probabilities of siblings are scaled to sum to at most 1."""
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
        """Return all nodes but the root by descending value. Ties keep the order of insertion, so parents precede children."""
        return sorted(range(1, len(self.leaves)), key=lambda node: -self.leaves[node].value)


class Merged:
    """Controller that merges the drafts of ``inner`` (None: no drafter) with continuations from ``memories``.

    ``size``: number of nodes to verify, or a policy that chooses it. ``deepened``: maximum number of
    leaves, the most valuable ones, at which continuations are retrieved in addition to the root. The inner drafter drafts as at
    temperature 0, so trees are deterministic.
    """

    def __init__(
        self, inner: Controller | None, memories: Retrieval, estimates: Estimates, size: int | SizePolicy, deepened: int = 4
    ) -> None:
        self.inner, self.memories, self.estimates = inner, memories, estimates
        self.size, self.deepened = size, deepened
        self._kinds: list[Hashable] = []

    def begin(self, context: Context, prefill: TargetPass | None) -> None:
        self.memories.begin(context, prefill)
        if self.inner:
            self.inner.begin(context, prefill)

    def draft(self, context: Context) -> Draft:
        merging, calls = _Merging(context.ids[-1], context.max_depth - 1), 0
        if self.inner:
            drafted = self.inner.draft(replace(context, warp=Warp(), record_notes=False))
            merging.draft(drafted)
            calls = drafted.calls
        merging.weigh(self.estimates)
        ends = [node for node in merging.ranked() if not merging.below[node] and merging.leaves[node].value >= FAINT]
        for node in [0, *ends[: self.deepened]]:
            for held in self.memories.guesses(merging.path(node)):
                merging.graft(node, held)
        merging.weigh(self.estimates)
        ranked = merging.ranked()
        size = self.size
        if not isinstance(size, int):
            size = size([merging.leaves[node].value for node in ranked[:LARGEST]], calls or 1)  # look-ups count as one call
        kept_nodes = ranked[:size]
        self._kinds = [None, *(merging.leaves[node].kind for node in kept_nodes)]
        # If notes are recorded, the best pruned nodes are listed too, outside the tree.
        nodes = [0, *(ranked[: len(kept_nodes) + MAX_PRUNED] if context.record_notes else kept_nodes)]
        place = {node: number for number, node in enumerate(nodes)}
        leaves = [merging.leaves[node] for node in nodes]
        parents = [place.get(leaf.parent, -1) for leaf in leaves]
        kept = 1 + len(kept_nodes)
        tree = DraftTree.of([leaf.token for leaf in leaves[:kept]], parents[:kept], context.device)
        pruned = [(parent, leaf.token, leaf.probability) for parent, leaf in zip(parents[kept:], leaves[kept:], strict=True)]
        confidence = [None, *(leaf.probability for leaf in leaves[1:kept])]
        notes = context.notes(lambda: [self._note(merging, leaves, kept, place)])
        return Draft(tree, confidence=confidence, calls=calls or int(kept > 1), pruned=pruned, notes=notes)

    def _note(self, merging: _Merging, leaves: Sequence[_Leaf], size: int, place: dict[int, int]) -> Note:
        return MergedTreeNote(
            sources=["root", *("+".join(leaf.sources) for leaf in leaves[1:])],
            value=[leaf.value for leaf in leaves],
            kept=size,
            considered=len(merging.leaves) - 1,
            expected=sum(leaf.value for leaf in leaves[:size]),
            fitted=not isinstance(self.size, int),
            grafts=[graft.replace(node=place[graft.node]) for graft in merging.grafts if graft.node in place],
        ).to_note()

    def observe(self, finished: Round) -> None:
        """Update the estimates from all nodes with an accepted parent."""
        shape = finished.draft.tree.shape
        accepted = set(finished.verdict.path)
        for node in finished.verdict.visited[: len(finished.emitted)]:
            for child in shape.children[node]:
                self.estimates.learn(self._kinds[child], child in accepted)
        self.memories.observe(finished)
        if self.inner:
            self.inner.observe(finished)

    def close(self) -> None:
        try:
            self.memories.close()
        finally:
            if self.inner:
                self.inner.close()


def _tenth(share: float) -> int:
    """Return the tenth of [0, 1] that contains ``share``: 0 to 9."""
    return min(9, int(share * 10))


# Weight of a prior, in observations.
WEIGHT = 6.0
# Number of observations of a kind after which older ones are discounted, so that estimates adapt to the text.
MOST = 200.0


class Estimates:
    """Estimated acceptance probability of each kind of node. May be kept across runs."""

    def __init__(self) -> None:
        self._counts: dict[Hashable, tuple[float, float]] = {}

    def probability(self, kind: Hashable, prior: float) -> float:
        """Return the weighted mean of the observed acceptance and ``prior``, clamped to [0.001, 0.999]."""
        hits, tried = self._counts.get(kind, (0.0, 0.0))
        return min(0.999, max(0.001, (hits + WEIGHT * prior) / (tried + WEIGHT)))

    def learn(self, kind: Hashable, accepted: bool) -> None:
        """Count a node of this kind with an accepted parent."""
        hits, tried = self._counts.get(kind, (0.0, 0.0))
        fade = MOST / (MOST + 1) if tried >= MOST else 1.0
        self._counts[kind] = (hits * fade + accepted, tried * fade + 1)


class Ladder:
    """Tree builder that extends the chain of top tokens, with the top ``width`` tokens as siblings at each of ``depth`` levels.

    The tree ends when the probability of the chain falls below ``floor``. Tokens are point masses.
    """

    def __init__(self, depth: int, width: int, floor: float = 0.1) -> None:
        self.depth = depth
        self.width = width
        self.floor = floor

    def build(self, drafter: LanguageModelDrafter, context: Context) -> Draft:
        chain, tokens, parents = [context.ids[-1]], [context.ids[-1]], [-1]
        confidence: list[float | None] = [None]
        end, probability = 0, 1.0
        for depth in range(min(self.depth, context.max_depth - 1)):
            (distribution,) = drafter.rows(context, chain, range(-1, depth), [depth])
            if distribution is None:
                break
            best = distribution.probability.topk(min(self.width, distribution.probability.numel()))
            ids = best.indices if distribution.ids is None else distribution.ids[best.indices]
            tokens += ids.tolist()
            parents += [end] * len(ids)
            confidence += best.values.tolist()
            end = len(tokens) - len(ids)
            chain.append(tokens[end])
            probability *= confidence[end] or 0.0
            if probability < self.floor:
                break
        tree = DraftTree.of(tokens, parents, context.device)
        return Draft(tree, confidence=confidence, calls=drafter.calls())
