"""Trees for many positions of one dialogue at once, and what the target would make of them: the reward that GTO trains on.

The trees are those of ``growth.dynamic`` (expand, then rerank), grown together: every start attends to the same true keys up
to its place and to its own nodes' ancestors, as in ``unrolling``. The target then runs once over all of a group's trees,
which share what they have in common, and is not asked about leaves: a token's probability stands in its parent's row.
Axis names: ``start`` (a position that drafts), ``beam``, ``node``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from specviz.drafters.networks.feature_net import FeatureNet, attend
from specviz.engine.interfaces import Target
from specviz.engine.tree import DraftTree
from specviz.methods.gto.expected_length import branch_lengths, tree_reward


@dataclass(frozen=True)
class Size:
    """Of every tree: how deep, how many children and beam nodes, how many nodes are kept (the root not counted)."""

    depth: int = 5
    width: int = 4
    nodes: int = 24


@dataclass(frozen=True)
class Tree:
    """``tokens`` and ``parents`` by node, parents before children; the root's token is not looked at."""

    tokens: tuple[int, ...]
    parents: tuple[int, ...]

    @cached_property
    def paths(self) -> frozenset[tuple[int, ...]]:
        """The tokens down to each node: equal for two trees that differ only in the order of their nodes."""
        return frozenset(self.down_to(node) for node in range(len(self.tokens)))

    def along(self, text: Sequence[int]) -> int:
        """How many tokens of ``text``, which comes after the root, the tree holds one below the other."""
        below = {
            (parent, token): node for node, (parent, token) in enumerate(zip(self.parents, self.tokens, strict=False)) if node
        }
        node, length = 0, 0
        for token in text:
            if (node, token) not in below:
                break
            node, length = below[node, token], length + 1
        return length

    def down_to(self, node: int) -> tuple[int, ...]:
        """The tokens from below the root to ``node``."""
        path: tuple[int, ...] = ()
        while node:
            node, path = self.parents[node], (self.tokens[node], *path)
        return path


@torch.no_grad()
def grown(net: FeatureNet, tokens: Tensor, features: Tensor, starts: Tensor, size: Size) -> list[Tree]:
    """The tree of each of ``starts`` (int64 [start]); start i drafts behind root i + 1.

    ``tokens`` [token] and ``features`` [token, tap * hidden] are the whole dialogue's.
    """
    truth = Truth(net, tokens, features, starts)
    candidates = _Candidates(len(starts))
    output, parents = truth.first(), torch.zeros(len(starts), 1, dtype=torch.long, device=starts.device)
    value = torch.zeros(len(starts), 1, dtype=torch.float64, device=starts.device)
    own: list[tuple[Tensor, Tensor]] = []
    for depth in range(1, size.depth + 1):
        ids, shares = _offers(net, output, size.width)
        below = value[:, :, None] + shares.view(*value.shape, -1)
        fresh = candidates.add(ids.view(len(starts), -1), parents, below.flatten(1))
        if depth == size.depth:
            break
        # A stable sort, so that of two equal candidates the earlier one wins, as it does while drafting.
        beam = below.flatten(1).sort(dim=1, descending=True, stable=True).indices[:, : size.width]
        row = beam // below.shape[2] + torch.arange(len(starts), device=beam.device)[:, None] * value.shape[1]
        value, parents = below.flatten(1).gather(1, beam), fresh + beam
        own = [(keys[row.flatten()], values[row.flatten()]) for keys, values in own]
        output = truth.deeper(candidates.tokens[-1].gather(1, beam), output[row.flatten()], own, depth)
    return candidates.best(size.nodes)


def _offers(net: FeatureNet, output: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """The likeliest tokens after each output, [row, width], and their log-probabilities (float64)."""
    logits = _wide(net.logits(output))
    best = logits.topk(min(width, logits.shape[-1]))
    ids = best.indices if net.draft_ids is None else net.draft_ids[best.indices]
    return ids, (best.values - logits.logsumexp(-1, keepdim=True)).clamp_max(0.0).double()


def _wide(logits: Tensor) -> Tensor:
    return logits if logits.dtype == torch.float64 else logits.float()


class Truth:
    """The network over the true features: keys and values that every start sees up to its own place."""

    def __init__(self, net: FeatureNet, tokens: Tensor, features: Tensor, starts: Tensor) -> None:
        self._net, self._starts = net, starts
        count = int(starts.max()) + 1
        net.reach(count + 64)
        places = torch.arange(count, device=tokens.device)
        self._x, self._residual = net.inputs(tokens[1 : count + 1], net.fuse(features[:count]))
        self._keys, self._values = net.keys_values(self._x, places)
        self._hidden = places[None] > starts[:, None]

    def first(self) -> Tensor:
        """Outputs [start, hidden] at the starts themselves: each has its root's children to offer."""
        net, starts = self._net, self._starts
        attention = attend(net.queries(self._x[starts], starts), self._keys, self._values, self._hidden)
        return net.finish(self._residual[starts], attention)

    def deeper(self, tokens: Tensor, features: Tensor, own: list[tuple[Tensor, Tensor]], depth: int) -> Tensor:
        """Outputs [start * beam, hidden] at nodes ``tokens`` [start, beam] below nodes whose outputs are ``features``.

        ``own`` are the keys and values of each node's ancestors; the nodes' own are appended to it.
        """
        net, beam = self._net, tokens.shape[1]
        x, residual = net.inputs(tokens.flatten(), features)
        places = self._starts.repeat_interleave(beam) + depth
        own.append(net.keys_values(x, places))
        hidden = self._hidden.repeat_interleave(beam, 0)
        return net.finish(residual, attend(net.queries(x, places), self._keys, self._values, hidden, own))


class _Candidates:
    """All that was considered at each start, in order; candidate 0 is the root. A list entry a level, [start, beam * width]."""

    def __init__(self, starts: int) -> None:
        self._starts = starts
        self._count = 1
        self.tokens: list[Tensor] = []
        self._parents: list[Tensor] = []
        self._values: list[Tensor] = []

    def add(self, tokens: Tensor, parents: Tensor, values: Tensor) -> int:
        """Children of the candidates ``parents`` [start, beam]; the number of the first."""
        first, self._count = self._count, self._count + tokens.shape[1]
        self.tokens.append(tokens)
        self._parents.append(parents.repeat_interleave(tokens.shape[1] // parents.shape[1], 1))
        self._values.append(values)
        return first

    def best(self, nodes: int) -> list[Tree]:
        """The ``nodes`` candidates of highest value at each start. A parent is never worth less, and it is earlier."""
        order = torch.cat(self._values, 1).sort(dim=1, descending=True, stable=True).indices[:, :nodes]
        candidates = order.sort(dim=1).values
        tokens, parents = (torch.cat(levels, 1).gather(1, candidates).tolist() for levels in (self.tokens, self._parents))
        return [self._tree(*rows) for rows in zip(candidates.tolist(), tokens, parents, strict=True)]

    @staticmethod
    def _tree(candidates: list[int], tokens: list[int], parents: list[int]) -> Tree:
        place = {0: 0} | {candidate + 1: node for node, candidate in enumerate(candidates, start=1)}
        return Tree((-1, *tokens), (-1, *(place[parent] for parent in parents)))


@dataclass(frozen=True)
class Worth:
    """A tree's ``reward``, and its ``longest`` branch by expectation, as tokens."""

    reward: float
    longest: tuple[int, ...]

    @staticmethod
    def of(tree: Tree, probability: Sequence[float]) -> Worth:
        """From the target's probability of each drafted node."""
        lengths = branch_lengths(tree.parents, (1.0, *probability))
        return Worth(tree_reward(lengths.values()), tree.down_to(max(lengths, key=lengths.__getitem__)))


def worth(
    target: Target, text: Sequence[int], roots: Sequence[int], forests: Sequence[Sequence[Tree]], group: int = 8
) -> list[list[Worth]]:
    """``[forest][root]``: what the target makes of each forest's tree behind ``text[root]``. ``roots`` ascend.

    Trees that stand behind ``group`` adjacent tokens are scored in one pass.
    """
    session = target.open(len(text))
    worths: list[list[Worth]] = [[] for _ in forests]
    place = 0
    try:
        while place < len(roots):
            numbers = [number for number in range(place, len(roots)) if roots[number] < roots[place] + group]
            if session.length < roots[place]:
                session.prefill(text[session.length : roots[place]])
            shared = _Shared(text[roots[place] : roots[numbers[-1]] + 1])
            pairs_by_forest = [
                [shared.pairs_of(roots[number] - roots[place], forest[number]) for number in numbers] for forest in forests
            ]
            distribution = shared.distribution(
                session.score(shared.tree(target)).logits, [pairs for rows in pairs_by_forest for pairs in rows]
            )
            session.keep(range(shared.text))
            scored = iter(distribution)
            for forest, into in zip(forests, worths, strict=True):
                into += [Worth.of(forest[number], next(scored)) for number in numbers]
            place = numbers[-1] + 1
    finally:
        session.close()
    return worths


class _Shared:
    """One tree that holds a stretch of text and all inner nodes of the trees behind its tokens, each only once."""

    def __init__(self, text: Sequence[int]) -> None:
        self.text = len(text)
        self._tokens = list(text)
        self._parents = list(range(-1, len(text) - 1))
        self._below = {(node - 1, token): node for node, token in enumerate(text) if node}

    def pairs_of(self, root: int, tree: Tree) -> list[tuple[int, int]]:
        """Of each drafted node of ``tree``, which stands behind token ``root``: its parent here, and its token."""
        inner, place = set(tree.parents), {0: root}
        pairs = []
        for node, (parent, token) in enumerate(zip(tree.parents[1:], tree.tokens[1:], strict=True), start=1):
            pairs.append((place[parent], token))
            if node in inner:
                place[node] = self._node(place[parent], token)
        return pairs

    def _node(self, parent: int, token: int) -> int:
        if (parent, token) not in self._below:
            self._below[parent, token] = len(self._tokens)
            self._tokens.append(token)
            self._parents.append(parent)
        return self._below[parent, token]

    def tree(self, target: Target) -> DraftTree:
        """What the target has to run over."""
        return DraftTree.of(self._tokens, self._parents, target.device)

    @staticmethod
    def distribution(logits: Tensor, pair_rows: Sequence[Sequence[tuple[int, int]]]) -> list[list[float]]:
        """The target's probability of each (row, token)."""
        pairs = torch.tensor([pair for rows in pair_rows for pair in rows], dtype=torch.long, device=logits.device).view(-1, 2)
        wide = _wide(logits)
        probabilities = (wide[pairs[:, 0], pairs[:, 1]] - wide.logsumexp(-1)[pairs[:, 0]]).exp().tolist()
        remaining = iter(probabilities)
        return [[next(remaining) for _ in rows] for rows in pair_rows]
