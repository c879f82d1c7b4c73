"""Small worlds in which every drafted tree, and every way its uniform draws can fall, is written out: the distribution of a whole
round.

Distributions are plain tables by prefix, so that nothing here shares code with the rules that are checked. Shapes are nested
tuples of children: ``((), ())`` is a root with two leaves.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy
import torch

from specviz.engine.interfaces import Acceptance, Draft, Proposal, TargetPass
from specviz.engine.tree import DraftTree
from tests.support.worlds.three_tokens import PLAIN, Coins, context

Prefix = tuple[int, ...]
Distributions = Mapping[Prefix, numpy.ndarray]
Shape = tuple["Shape", ...]
LEAF: Shape = ()
SHAPES: dict[str, Shape] = {
    "chain of 2": ((LEAF,),),
    "chain of 3": (((LEAF,),),),
    "siblings": (LEAF, LEAF),
    "binary": ((LEAF, LEAF), (LEAF, LEAF)),
    "skewed": ((LEAF, LEAF), (LEAF,), LEAF),
    "deep on the left": (((LEAF, LEAF), LEAF), (LEAF,)),
}
MODES = ("without", "with", "best")
"""Children drawn without replacement, with it, or the drafter's best taken as certain."""


def height(shape: Shape) -> int:
    return 1 + max(map(height, shape)) if shape else 0


@dataclass
class Tables:
    """Target distributions ``p`` and drafter distributions ``q`` after every prefix shorter than ``length`` tokens."""

    vocab: int
    length: int
    seed: int
    concentration: float = 1.0
    p: dict[Prefix, numpy.ndarray] = field(default_factory=dict)
    q: dict[Prefix, numpy.ndarray] = field(default_factory=dict)

    def __post_init__(self) -> None:
        generator = numpy.random.default_rng(self.seed)
        for depth in range(self.length):
            for prefix in itertools.product(range(self.vocab), repeat=depth):
                self.p[prefix], self.q[prefix] = generator.dirichlet([self.concentration] * self.vocab, 2)

    def distribution(self) -> numpy.ndarray:
        """The target's own distribution of ``length`` tokens."""
        found = numpy.ones((self.vocab,) * self.length)
        for text in itertools.product(range(self.vocab), repeat=self.length):
            found[text] = numpy.prod([self.p[text[:place]][text[place]] for place in range(self.length)])
        return found


Placed = tuple[Prefix, ...]
"""The prefixes of a tree's nodes, the root's empty one first, and every parent before its children."""


def drawn(tables: Tables, shape: Shape, mode: str) -> Iterator[tuple[float, Placed, tuple[int, ...]]]:
    """Every tree that can be drafted: its probability, its nodes' prefixes and parents, siblings in draw order."""

    def below(children: Shape, prefix: Prefix, q: numpy.ndarray) -> Iterator[tuple[float, list[tuple[Prefix, int]]]]:
        """Everything under ``prefix``; a parent is given as a place in the list, -1 being ``prefix`` itself."""
        if not children:
            yield 1.0, []
            return
        for token in [int(q.argmax())] if mode == "best" else numpy.flatnonzero(q).tolist():
            left = struck(q, token, "without" if mode == "best" else mode)
            generator = 1.0 if mode == "best" else float(q[token])
            here = (*prefix, token)
            for first, inside in below(children[0], here, tables.q[here]):
                moved = [(one, parent + 1) for one, parent in inside]
                for second, beside in below(children[1:], prefix, left):
                    after = [(one, parent if parent < 0 else parent + 1 + len(inside)) for one, parent in beside]
                    yield generator * first * second, [(here, -1), *moved, *after]

    for generator, nodes in below(shape, (), tables.q[()]):
        if generator > 0:
            yield generator, ((), *(one for one, _ in nodes)), (-1, *(parent + 1 for _, parent in nodes))


def struck(q: numpy.ndarray, token: int, mode: str) -> numpy.ndarray:
    """The distribution of the sibling drawn after ``token``."""
    if mode == "with":
        return q
    left = q.copy()
    left[token] = 0.0
    return left / left.sum() if left.sum() > 0 else left


def as_draft(tables: Tables, placed: Placed, parents: Sequence[int], mode: str, listed: bool = False) -> Draft:
    """The tree as a growth gives it; ``listed`` names the drafter's tokens instead of giving it the vocabulary."""
    tree = DraftTree.of([0, *(prefix[-1] for prefix in placed[1:])], parents)
    if mode == "best":
        return Draft(tree)
    distributions = {}
    for node in set(parents[1:]):
        distribution = torch.from_numpy(tables.q[placed[node]].copy())
        distributions[node] = (
            Proposal(distribution.flip(0), torch.arange(tables.vocab).flip(0)) if listed else Proposal(distribution)
        )
    return Draft(tree, distributions)


def as_pass(tables: Tables, placed: Placed) -> TargetPass:
    """The target's logits at every node."""
    return TargetPass(torch.from_numpy(numpy.stack([numpy.log(tables.p[prefix]) for prefix in placed])))


Outcome = tuple[float, Prefix, numpy.ndarray]
"""Probability, accepted tokens, distribution of the token after them."""


def upward_outcomes(rule: Acceptance, draft: Draft, scored: TargetPass, distributions: list[torch.Tensor]) -> list[Outcome]:
    """Every way a rule that stops at its first heads can judge this tree. ``distributions`` is where its bonus draws are
    noted."""
    found: list[Outcome] = []
    nobody = rule.judge(draft, scored, context(Coins([False] * 99), PLAIN))
    left = 1.0
    for heads, threshold in enumerate([*nobody.thresholds.values(), 1.0]):
        if threshold > 0 and left > 0:
            verdict = rule.judge(draft, scored, context(Coins([False] * heads), PLAIN))
            tokens = tuple(draft.tree.host_tokens[node] for node in verdict.path)
            found.append((left * threshold, tokens, (distributions[-1] / distributions[-1].sum()).numpy()))
        left *= 1 - threshold
    return found


def completed(tables: Tables, outcomes: Iterator[tuple[float, Outcome]]) -> tuple[numpy.ndarray, float]:
    """The distribution of ``length`` tokens when the target writes what a round leaves, and the mean number of accepted ones."""
    distribution, accepted = numpy.zeros((tables.vocab,) * tables.length), 0.0
    for weight, (generator, tokens, bonus) in outcomes:
        accepted += weight * generator * len(tokens)
        for last in range(tables.vocab):
            _write_on(tables, distribution, (*tokens, last), weight * generator * float(bonus[last]))
    return distribution, accepted


def _write_on(tables: Tables, distribution: numpy.ndarray, text: Prefix, weight: float) -> None:
    if weight == 0:
        return
    if len(text) == tables.length:
        distribution[text] += weight
        return
    for token in range(tables.vocab):
        _write_on(tables, distribution, (*text, token), weight * float(tables.p[text][token]))


Judging = Callable[[Placed, Sequence[int]], list[Outcome]]


def distribution_of(tables: Tables, shape: Shape, mode: str, judging: Judging) -> tuple[numpy.ndarray, float]:
    """Distribution of a round and mean accepted length when trees of ``shape`` are drawn in ``mode`` and judged."""
    trees = drawn(tables, shape, mode)
    return completed(tables, ((generator, one) for generator, at, up in trees for one in judging(at, up)))
