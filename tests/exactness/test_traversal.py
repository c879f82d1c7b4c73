"""Judging leaves first keeps the target's distribution, by enumeration over whole rounds, and as a rule accepts more.

On a chain it never accepts less on average than judging from the root; on a tree it may, and the lesson's one is here.
Wrong updates of the weight, and other slips, go through the same harness, which has to notice them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

import numpy
import pytest
import torch
from torch import Tensor

from specviz.engine.interfaces import Proposal
from specviz.engine.tree import DraftTree
from specviz.methods.traversal import verification as traversal
from specviz.methods.traversal.verification import NodeResidual, Traversal
from tests.support.worlds.enumerated import (
    LEAF,
    MODES,
    SHAPES,
    Outcome,
    Placed,
    Shape,
    Tables,
    as_draft,
    as_pass,
    distribution_of,
    drawn,
    height,
    struck,
    upward_outcomes,
)

Judging = Callable[[Placed, Sequence[int]], list[Outcome]]


@pytest.fixture
def distributions(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """The distributions that the rule draws its last token from."""
    noted: list[Tensor] = []

    def note(distribution: Tensor, *place: object) -> int:
        noted.append(distribution)
        return 0

    monkeypatch.setattr(traversal, "draw", note)
    return noted


def leaves_first(tables: Tables, mode: str, distributions: list[Tensor], listed: bool = False) -> Judging:
    """The rule itself."""

    def outcomes(placed: Placed, parents: Sequence[int]) -> list[Outcome]:
        draft = as_draft(tables, placed, parents, mode, listed)
        return upward_outcomes(Traversal(), draft, as_pass(tables, placed), distributions)

    return outcomes


def root_first(tables: Tables, mode: str) -> Judging:
    """Rejection from the root downwards, written out once more: what the rule is compared with."""

    def outcomes(placed: Placed, parents: Sequence[int], node: int = 0) -> list[Outcome]:
        p, q = tables.p[placed[node]], tables.q[placed[node]]
        found, left = [], 1.0
        for child in [child for child, parent in enumerate(parents) if parent == node]:
            token = placed[child][-1]
            distribution = numpy.eye(tables.vocab)[token] if mode == "best" else q
            taken = min(1.0, p[token] / distribution[token])
            found += [(left * taken * probability, *rest) for probability, *rest in outcomes(placed, parents, child)]
            left *= 1 - taken
            p = numpy.maximum(p - distribution, 0)
            p, q = p / p.sum() if p.sum() > 0 else p, struck(q, token, mode)
        return [*found, (left, placed[node], p)]

    return outcomes


def with_replacement(monkeypatch: pytest.MonkeyPatch) -> None:
    """Siblings drawn with replacement share one distribution; no growth of ours draws so, but the rule is sound for it too."""
    without = NodeResidual.fail

    def fail(self: NodeResidual, token: int) -> None:
        q = self._q
        without(self, token)
        self._q = q

    monkeypatch.setattr(NodeResidual, "fail", fail)


@pytest.mark.spread(1)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("shape", list(SHAPES))
def test_a_round_keeps_the_distribution_and_on_these_shapes_accepts_no_less(
    shape: str, mode: str, distributions: list[Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    if mode == "with":
        with_replacement(monkeypatch)
    tree = SHAPES[shape]
    worlds = ((1, 0.3), (2, 1.0)) if len(list(drawn(Tables(3, 4, 0), tree, mode))) < 200 else ((1, 0.5),)
    for seed, concentration in worlds:
        tables = Tables(3, height(tree) + 1, seed, concentration)
        distribution, accepted = distribution_of(tables, tree, mode, leaves_first(tables, mode, distributions))
        downwards, usual = distribution_of(tables, tree, mode, root_first(tables, mode))
        assert abs(distribution - tables.distribution()).max() < 1e-12
        assert abs(downwards - tables.distribution()).max() < 1e-12
        gains = height(tree) > 1 and mode != "best"
        assert accepted > usual + 1e-6 if gains else accepted == pytest.approx(usual, abs=1e-12)


@pytest.mark.parametrize("shape", ["chain of 2", "skewed"])
def test_a_drafter_that_lists_its_tokens_gives_the_same_distribution(shape: str, distributions: list[Tensor]) -> None:
    tables = Tables(3, height(SHAPES[shape]) + 1, 5)
    distribution, _ = distribution_of(
        tables, SHAPES[shape], "without", leaves_first(tables, "without", distributions, listed=True)
    )
    assert abs(distribution - tables.distribution()).max() < 1e-12


def test_a_drafter_of_few_tokens_keeps_the_distribution_of_the_vocabulary(distributions: list[Tensor]) -> None:
    """The drafter knows two tokens of four; what it does not know is still written as often as the target would."""
    tables = Tables(4, 3, 7)
    for prefix, q in tables.q.items():
        tables.q[prefix] = q * [1, 0, 1, 0] / (q[0] + q[2])

    def outcomes(placed: Placed, parents: Sequence[int]) -> list[Outcome]:
        draft = as_draft(tables, placed, parents, "without")
        few = {
            node: Proposal(distribution.probability[[2, 0]], torch.tensor([2, 0]))
            for node, distribution in draft.proposals.items()
        }
        return upward_outcomes(Traversal(), type(draft)(draft.tree, few), as_pass(tables, placed), distributions)

    distribution, _ = distribution_of(tables, SHAPES["binary"], "without", outcomes)
    assert abs(distribution - tables.distribution()).max() < 1e-12


# A chain is block verification.


def block_outcomes(tables: Tables, text: Sequence[int]) -> list[Outcome]:
    """Block verification of a drafted chain by its own formulas: uniform draws for every length, the longest that wins."""
    weight = [1.0]
    for place, token in enumerate(text):
        before = tuple(text[:place])
        weight.append(min(1.0, weight[-1] * tables.p[before][token] / tables.q[before][token]))
    found, left = [], 1.0
    for length in range(len(text), -1, -1):
        before = tuple(text[:length])
        surplus = numpy.maximum(weight[length] * tables.p[before] - tables.q[before], 0) if length < len(text) else None
        if surplus is None:
            heads, bonus = weight[length], tables.p[before]
        else:
            heads = surplus.sum() / (surplus.sum() + 1 - weight[length]) if length else 1.0
            bonus = surplus / surplus.sum() if surplus.sum() > 0 else tables.p[before]
        found.append((left * heads, before, bonus))
        left *= 1 - heads
    return found


@pytest.mark.parametrize("seed", range(4))
def test_on_a_chain_every_outcome_is_that_of_block_verification(seed: int, distributions: list[Tensor]) -> None:
    tables = Tables(3, 4, seed, 0.7)
    judging = leaves_first(tables, "without", distributions)
    for _, placed, parents in drawn(tables, SHAPES["chain of 3"], "without"):
        expected = {tokens: (probability, bonus) for probability, tokens, bonus in block_outcomes(tables, placed[-1])}
        for probability, tokens, bonus in judging(placed, parents):
            assert probability == pytest.approx(expected[tokens][0], abs=1e-12)
            assert probability < 1e-12 or abs(bonus - expected[tokens][1]).max() < 1e-9


def test_the_mean_accepted_length_of_a_chain_is_the_sum_of_its_weights(distributions: list[Tensor]) -> None:
    for seed in range(4):
        tables = Tables(3, 4, seed, 0.5)
        _, accepted = distribution_of(tables, SHAPES["chain of 3"], "without", leaves_first(tables, "without", distributions))
        expected = 0.0
        for probability, placed, _ in drawn(tables, SHAPES["chain of 3"], "without"):
            weight = 1.0
            for before, text in pairwise(placed):
                weight = min(1.0, weight * tables.p[before][text[-1]] / tables.q[before][text[-1]])
                expected += probability * weight
        assert accepted == pytest.approx(expected, abs=1e-12)


def test_the_papers_own_example_of_two_tokens(distributions: list[Tensor]) -> None:
    """Target (1/3, 2/3), drafter (2/3, 1/3), two drafted tokens: 11/9 accepted, where token by token it is 10/9."""
    tables = Tables(2, 3, 0)
    for prefix in tables.p:
        tables.p[prefix], tables.q[prefix] = numpy.array([1 / 3, 2 / 3]), numpy.array([2 / 3, 1 / 3])
    shape = SHAPES["chain of 2"]
    assert distribution_of(tables, shape, "without", leaves_first(tables, "without", distributions))[1] == pytest.approx(11 / 9)
    assert distribution_of(tables, shape, "without", root_first(tables, "without"))[1] == pytest.approx(10 / 9)


# Where a later sibling goes on and an earlier one does not, the rule may accept less.

LESSON = Path(__file__).parents[2] / "assets" / "lessons" / "08-from-the-leaves.json"
SHORT_FIRST: Shape = ((LEAF, (LEAF,)),)
LONG_FIRST: Shape = (((LEAF,), LEAF),)


@pytest.mark.parametrize(
    ("shape", "upwards", "downwards"),
    [(SHAPES["chain of 2"], 1.08, 0.96), (SHORT_FIRST, 1.272, 1.344), (LONG_FIRST, 1.56, 1.416)],
    ids=["chain", "short branch first", "long branch first"],
)
def test_the_lessons_numbers(shape: Shape, upwards: float, downwards: float, distributions: list[Tensor]) -> None:
    """Two tokens everywhere: the target says 0.3 and 0.7, the drafter 0.7 and 0.3."""
    tables = Tables(2, height(shape) + 1, 0)
    for prefix in tables.p:
        tables.p[prefix], tables.q[prefix] = numpy.array([0.3, 0.7]), numpy.array([0.7, 0.3])
    distribution, accepted = distribution_of(tables, shape, "without", leaves_first(tables, "without", distributions))
    assert abs(distribution - tables.distribution()).max() < 1e-12
    assert accepted == pytest.approx(upwards, abs=1e-12)
    assert distribution_of(tables, shape, "without", root_first(tables, "without"))[1] == pytest.approx(downwards, abs=1e-12)
    told = LESSON.read_text(encoding="utf-8")
    assert f"**{upwards:.2f}**" in told and f"**{downwards:.2f}**" in told


# What the harness has to notice.


def surplus_alone(self: NodeResidual, left: Tensor) -> None:
    """Wrong: w becomes S."""
    owed = float(left.sum()) + self._rest
    self._mass, self._rest, self._scale, self.weight = left, self._rest, self._scale, owed


def surplus_over_undrawn(self: NodeResidual, left: Tensor) -> None:
    """Wrong: w becomes S / (1 - q(x)), here with the q of whatever was drawn last."""
    owed = float(left.sum()) + self._rest
    undrawn = 1.0 - self._drawn
    weight = min(1.0, owed / undrawn) if undrawn > 1e-15 else 0.0
    factor = weight / owed if owed > 0 else 0.0
    self._mass, self._rest, self._scale, self.weight = left * factor, self._rest * factor, self._scale * factor, weight


def weight_kept(self: NodeResidual, left: Tensor) -> None:
    """Wrong: w stays as it was."""
    owed = float(left.sum()) + self._rest
    factor = self.weight / owed if owed > 0 else 0.0
    self._mass, self._rest, self._scale = left * factor, self._rest * factor, self._scale * factor


@pytest.mark.spread(3)
@pytest.mark.parametrize("shape", ["chain of 2", "binary"])
@pytest.mark.parametrize("wrong", [surplus_alone, surplus_over_undrawn, weight_kept])
def test_noticed_wrong_updates_of_the_weight(
    wrong: Callable[[NodeResidual, Tensor], None], shape: str, distributions: list[Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    fail = NodeResidual.fail

    def remembering(self: NodeResidual, token: int) -> None:
        self._drawn = float(self._q[self._slot(token)])
        fail(self, token)

    monkeypatch.setattr(NodeResidual, "fail", remembering)
    monkeypatch.setattr(NodeResidual, "_settle", wrong)
    tables = Tables(3, 3, 1)
    distribution, _ = distribution_of(tables, SHAPES[shape], "without", leaves_first(tables, "without", distributions))
    assert abs(distribution - tables.distribution()).sum() / 2 > 1e-3


def test_noticed_siblings_judged_in_another_order(distributions: list[Tensor]) -> None:
    tables = Tables(3, 3, 1)

    def likeliest_first(placed: Placed, parents: Sequence[int]) -> list[Outcome]:
        tree = DraftTree.of([0, *(prefix[-1] for prefix in placed[1:])], parents)
        order, queue = [0], [0]
        while queue:
            below = sorted(tree.shape.children[queue[0]], key=lambda child: -tables.q[placed[queue[0]]][placed[child][-1]])
            order += below
            queue = [*queue[1:], *below]
        place = {node: at for at, node in enumerate(order)}
        moved = tuple(placed[node] for node in order)
        above = tuple(-1 if node == 0 else place[parents[node]] for node in order)
        return leaves_first(tables, "without", distributions)(moved, above)

    distribution, _ = distribution_of(tables, SHAPES["binary"], "without", likeliest_first)
    assert abs(distribution - tables.distribution()).sum() / 2 > 0.01


def test_noticed_distributions_of_a_drawn_tree_cut_after_the_fact(distributions: list[Tensor]) -> None:
    """Keeping only the better of two drawn siblings is a choice by outcome, which no verifier can undo."""
    tables = Tables(3, 2, 1)

    def better(placed: Placed, parents: Sequence[int]) -> list[Outcome]:
        best = max(placed[1:], key=lambda prefix: tables.q[()][prefix[-1]])
        return leaves_first(tables, "without", distributions)(((), best), (-1, 0))

    distribution, _ = distribution_of(tables, SHAPES["siblings"], "without", better)
    assert abs(distribution - tables.distribution()).sum() / 2 > 0.01


@pytest.mark.slow
def test_noticed_draws_with_replacement_judged_as_without(distributions: list[Tensor]) -> None:
    tables = Tables(3, 3, 2, 0.5)
    distribution, _ = distribution_of(tables, SHAPES["binary"], "with", leaves_first(tables, "without", distributions))
    assert abs(distribution - tables.distribution()).sum() / 2 > 0.01
