"""A world of three tokens or a few: tables of target and drafter distributions, and every way a round over a drafted tree can go
in it.

``token`` axes follow each other: ``p[2][a, b]`` is the distribution of the third token after a, b.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import pytest
import torch
from torch import Tensor

from specviz.acceptance import exact as rules
from specviz.drafting.trees.sampled import Sampled
from specviz.engine.interfaces import Acceptance, Composition, Context, Draft, Pick, Proposal, TargetPass
from specviz.engine.sampling import Noise, Warp
from specviz.engine.tree import DraftTree, TreeShape
from specviz.methods.traversal import verification
from tests.support import rounds
from tests.support.tiny.text import decode
from tests.support.worlds.host_levels import ByTokens

PLAIN = Warp(1.0)
VOCAB = 3
PROMPT = [1, 2, 0, 1]


def tables(vocab: int, seed: int, temperature: float, length: int) -> tuple[Tensor, ...]:
    """Random logits of the first token and of each after it, [token, …, vocab]."""
    generator = torch.Generator().manual_seed(seed)
    shapes = [(vocab,) * depth for depth in range(1, length + 1)]
    return tuple(temperature * torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes)


@dataclass
class World(ByTokens):
    """``target`` and ``drafter`` are logits by prefix, of texts of ``length`` tokens; both distributions are those under
    ``warp``."""

    vocab: int = 4
    seed: int = 0
    warp: Warp = PLAIN
    sparse: bool = False
    length: int = 3

    def __post_init__(self) -> None:
        self.target = tables(self.vocab, self.seed, 1.5, self.length)
        near = tables(self.vocab, self.seed + 1000, 1.0, self.length)
        self.drafter = tuple(0.6 * ours + theirs for ours, theirs in zip(self.target, near, strict=True))
        self.support = torch.arange(self.vocab).flip(0) if self.sparse else None

    @cached_property
    def p(self) -> tuple[Tensor, ...]:
        """The target's distributions by prefix."""
        return tuple(map(self.warp.probabilities, self.target))

    def q(self, prefix: Sequence[int]) -> Tensor:
        """What the drafter draws from after ``prefix``, [vocab]."""
        return self.warp.probabilities(self.drafter[len(prefix)][tuple(prefix)])

    def distribution(self) -> Tensor:
        """The target's own distribution of a text, [token, …]."""
        found = torch.zeros((self.vocab,) * self.length, dtype=torch.float64)
        self.complete(found, (), self.p[0])
        return found

    def proposal(self, prefix: Sequence[int]) -> Proposal:
        """What the drafter draws from after ``prefix``, over the vocabulary or as a list of tokens."""
        distribution = self.q(prefix)
        return Proposal(distribution.flip(0), torch.arange(self.vocab).flip(0)) if self.sparse else Proposal(distribution)

    def scored(self, tree: DraftTree) -> TargetPass:
        """The target's pass over a tree of one level fewer than a text has."""
        return TargetPass(torch.stack([self.target[len(prefix)][prefix] for prefix in _prefixes(tree)]))

    def complete(self, out: Tensor, path: Sequence[int], bonus: Tensor, weight: float = 1.0) -> None:
        """Add to ``out`` a round that emitted ``path`` and a token from ``bonus`` [vocab]; the target writes the rest."""
        spread = weight * bonus
        for table in self.p[len(path) + 1 :]:
            spread = spread[..., None] * table[tuple(path)]
        out[tuple(path)] += spread

    # What a growth asks of a drafter.

    def logits(self, context: Context, tokens: Sequence[int], parents: Sequence[int], nodes: Sequence[int]) -> Tensor:
        prefixes = _prefixes(DraftTree.of(tokens, parents))
        rows = torch.stack([self.drafter[len(prefixes[node])][prefixes[node]] for node in nodes])
        return rows.flip(1) if self.sparse else rows

    def calls(self) -> int:
        return 1

    def draft_notes(self, picks: Sequence[Pick]) -> tuple[()]:
        return ()


def _prefixes(tree: DraftTree) -> list[tuple[int, ...]]:
    """The drafted tokens up to each node."""
    found: list[tuple[int, ...]] = []
    for token, parent in zip(tree.host_tokens, tree.shape.parents, strict=True):
        found.append((*found[parent], token) if parent >= 0 else ())
    return found


def drawn(world: World, shape: TreeShape, again: bool = False) -> Iterator[tuple[float, Draft]]:
    """Every outcome of drawing the tree's children, with its probability: without replacement, or ``again`` with it."""

    def filled(tokens: dict[int, tuple[int, ...]], nodes: Sequence[int], weight: float) -> Iterator[tuple[float, Draft]]:
        inner = next((node for node in nodes if shape.children[node]), None)
        if inner is None:
            ids = [0] + [tokens[node][-1] for node in range(1, len(shape))]
            distributions = {node: world.proposal(tokens[node]) for node in range(len(shape)) if shape.children[node]}
            yield weight, Draft(DraftTree.of(ids, shape.parents), distributions)
            return
        q = world.q(tokens[inner]).tolist()
        picks = len(shape.children[inner])
        orders = itertools.product(range(world.vocab), repeat=picks)
        for order in orders if again else itertools.permutations(range(world.vocab), picks):
            generator, left = 1.0, 1.0
            for token in order:
                generator *= q[token] / left
                left -= 0.0 if again else q[token]
            if generator > 0:
                below = {child: (*tokens[inner], token) for child, token in zip(shape.children[inner], order, strict=True)}
                yield from filled({**tokens, **below}, [node for node in nodes if node > inner], weight * generator)

    yield from filled({0: ()}, range(len(shape)), 1.0)


def best(world: World, shape: TreeShape, with_proposals: bool = False) -> Draft:
    """The drafter's best tokens after each prefix: one tree, certain. ``with_proposals`` passes it off as drawn."""
    prefixes: list[tuple[int, ...]] = [()] * len(shape)
    for node, children in enumerate(shape.children):
        for child, token in zip(children, world.q(prefixes[node]).argsort(descending=True).tolist(), strict=False):
            prefixes[child] = (*prefixes[node], token)
    proposals = {node: world.proposal(prefixes[node]) for node, below in enumerate(shape.children) if below}
    tokens = [0, *(prefix[-1] for prefix in prefixes[1:])]
    return Draft(DraftTree.of(tokens, shape.parents), proposals if with_proposals else {})


class Coins:
    """Noise whose uniform draws fall as told, then all for acceptance."""

    def __init__(self, told: Sequence[bool]) -> None:
        self._told = list(told)

    def uniform(self, stream: int, *place: int) -> float:
        accepted = self._told.pop(0) if self._told else True
        return 0.0 if accepted else 1.0


def context(noise: object, warp: Warp, number: int = 0) -> Context:
    return rounds.context([0], number, warp=warp, noise=noise, story=False)


Outcome = tuple[float, tuple[int, ...], Tensor]
"""Probability, accepted tokens, distribution of the token after them."""


def exact_rounds(
    world: World, drafts: Iterable[tuple[float, Draft]], rule: Acceptance, monkeypatch: pytest.MonkeyPatch
) -> list[Outcome]:
    """All outcomes when drafts come as given and ``rule`` judges them: every way its uniform draws can fall is tried."""
    distributions: list[Tensor] = []

    def noted(distribution: Tensor, *place: object) -> int:
        distributions.append(distribution / distribution.sum())
        return 0

    for module in (rules, verification):
        monkeypatch.setattr(module, "draw", noted)
    found = []
    for generator, draft in drafts:
        scored, open_ends = world.scored(draft.tree), [[]]
        while open_ends:
            told = open_ends.pop()
            verdict = rule.judge(draft, scored, context(Coins(told), world.warp))
            weight = generator
            for place, (node, threshold) in enumerate(verdict.thresholds.items()):
                taken = node in verdict.path
                if taken and place >= len(told) and threshold < 1:
                    open_ends.append([*(one in verdict.path for one in list(verdict.thresholds)[:place]), False])
                weight *= threshold if taken else 1 - threshold
            if weight > 0:
                found.append((weight, tuple(draft.tree.host_tokens[node] for node in verdict.path), distributions[-1]))
    return found


def distribution_of(world: World, outcomes: Iterable[Outcome]) -> Tensor:
    """The distribution of a text when the target goes on after these outcomes of a round."""
    out = torch.zeros((world.vocab,) * world.length, dtype=torch.float64)
    for weight, path, bonus in outcomes:
        world.complete(out, path, bonus, weight)
    return out


def exact_distribution(
    world: World, drafts: Iterable[tuple[float, Draft]], rule: Acceptance, monkeypatch: pytest.MonkeyPatch
) -> Tensor:
    """The distribution of a text whose first tokens are those of a round: see :func:`exact_rounds`."""
    return distribution_of(world, exact_rounds(world, drafts, rule, monkeypatch))


def rebuilt(draft: Draft, children: Callable[[Draft, int], Sequence[int]]) -> Draft:
    """The draft with each node's children chosen and ordered anew by ``children``."""
    tokens, parents, distributions, queue = [draft.tree.host_tokens[0]], [-1], {}, [(0, 0)]
    while queue:
        old, new = queue.pop(0)
        kept = children(draft, old)
        if kept and old in draft.proposals:
            distributions[new] = draft.proposals[old]
        for child in kept:
            queue.append((child, len(tokens)))
            tokens.append(draft.tree.host_tokens[child])
            parents.append(new)
    return replace(draft, tree=DraftTree.of(tokens, parents), proposals=distributions)


def share(draft: Draft, parent: int, child: int) -> float:
    """The drafter's probability of a child."""
    distribution = draft.proposals[parent]
    token = draft.tree.host_tokens[child]
    return float(
        distribution.probability[token if distribution.ids is None else int((distribution.ids == token).nonzero()[0, 0])]
    )


def total_variation(found: Tensor, distribution: Tensor) -> float:
    return float((found - distribution).abs().sum()) / 2


def judged(world: World, shape: TreeShape, rule: Acceptance, drafts: int, times: int) -> Tensor:
    """The distribution of three tokens as counted over ``drafts`` grown trees, each judged ``times`` with fresh noise."""
    builder, counts = Sampled(shape), Counter[tuple[int, ...]]()
    for number in range(drafts):
        draft = builder.build(world, context(Noise(1), world.warp, number))
        scored = world.scored(draft.tree)
        for again in range(times):
            verdict = rule.judge(draft, scored, context(Noise(number * times + again + 2), world.warp, again))
            counts[(*(draft.tree.host_tokens[node] for node in verdict.path), verdict.bonus)] += 1
    certain = torch.eye(world.vocab, dtype=torch.float64)
    return distribution_of(world, [(n / (drafts * times), text[:-1], certain[text[-1]]) for text, n in counts.items()])


def spoken(target: Any) -> World:
    """The target's own distributions after every text of up to two tokens behind the prompt."""
    world, rows = World(VOCAB, 0, PLAIN), []
    for depth in range(3):
        texts = [[*PROMPT, *more] for more in itertools.product(range(VOCAB), repeat=depth)]
        logits = torch.stack([target.open(20).prefill(text).logits[0] for text in texts])
        rows.append(logits.view(*[VOCAB] * depth, VOCAB))
    world.target = tuple(rows)
    return world


def keeps_distribution(target: Any, composed: Callable[[], Composition], runs: int) -> bool:
    """Whether whole runs, through the loop with its noise, write texts of three tokens as often as the target would:
    Pearson's statistic over all 27, of 26 degrees of freedom, is exceeded one time in a million."""
    expected = runs * spoken(target).distribution()
    counts = torch.zeros_like(expected)
    for seed in range(runs):
        counts[tuple(decode(target, composed(), PROMPT, 3, PLAIN, seed, "off").ids)] += 1
    return float(((counts - expected) ** 2 / expected).sum()) < 76.0
