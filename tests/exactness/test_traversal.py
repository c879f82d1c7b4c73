"""Judging leaves first keeps the target's distribution, by enumeration over whole rounds, and as a rule accepts more.

On a chain it never accepts less on average than judging from the root; on a tree it may, and the lesson's one is here.
Wrong updates of the weight go through the same harness, which has to notice them.
"""

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from specviz.acceptance.exact import Rejection
from specviz.engine.interfaces import Proposal
from specviz.engine.tree import TreeShape, chain, shape_from_counts
from specviz.methods.traversal.verification import NodeResidual, Traversal
from tests.support.worlds.three_tokens import (
    Outcome,
    World,
    best,
    distribution_of,
    drawn,
    exact_distribution,
    exact_rounds,
    total_variation,
)

SHAPES = {
    "chain of 2": chain(2),
    "chain of 3": chain(3),
    "siblings": shape_from_counts([[2]]),
    "binary": shape_from_counts([[2], [2, 2]]),
    "skewed": shape_from_counts([[3], [2, 1]]),
    "deep on the left": shape_from_counts([[2], [2, 1], [2]]),
}


def world_for(shape: TreeShape, vocab: int = 3, seed: int = 1, sparse: bool = False) -> World:
    return World(vocab, seed, sparse=sparse, length=max(shape.depths) + 1)


def off(world: World, outcomes: Sequence[Outcome]) -> float:
    return float((distribution_of(world, outcomes) - world.distribution()).abs().max())


def accepted(outcomes: Sequence[Outcome]) -> float:
    """The mean number of accepted tokens."""
    return sum(weight * len(path) for weight, path, _ in outcomes)


@pytest.mark.spread(1)
@pytest.mark.parametrize("growth", ["drawn", "listed", "certain"])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_round_keeps_the_distribution_and_on_these_shapes_accepts_no_less(shape, growth, monkeypatch):
    """Of children that were drawn, over the vocabulary or a list of tokens, and of the drafter's best ones."""
    world = world_for(SHAPES[shape], sparse=growth == "listed")
    drafts = [(1.0, best(world, SHAPES[shape]))] if growth == "certain" else list(drawn(world, SHAPES[shape]))
    upwards, downwards = (exact_rounds(world, drafts, rule, monkeypatch) for rule in (Traversal(), Rejection()))
    assert off(world, upwards) < 1e-12
    gains = world.length > 2 and growth != "certain"
    gain = accepted(upwards) - accepted(downwards)
    assert gain > 1e-6 if gains else abs(gain) < 1e-12


class Few(World):
    """The drafter knows two tokens of four, and lists no others."""

    def q(self, prefix):
        q = super().q(prefix) * torch.tensor([1, 0, 1, 0])
        return q / q.sum()

    def proposal(self, prefix):
        return Proposal(self.q(prefix)[[2, 0]], torch.tensor([2, 0]))


def test_a_drafter_of_few_tokens_keeps_the_distribution_of_the_vocabulary(monkeypatch):
    """What the drafter does not know is still written as often as the target would."""
    world = Few(4, 7)
    assert off(world, exact_rounds(world, drawn(world, SHAPES["binary"]), Traversal(), monkeypatch)) < 1e-12


# A chain is block verification.


def block_outcomes(world: World, text: Sequence[int]) -> list[Outcome]:
    """Block verification of a drafted chain by its own formulas: uniform draws for every length, the longest that wins."""
    weight, prefixes = [1.0], [tuple(text[:place]) for place in range(len(text) + 1)]
    p = [world.p[len(prefix)][prefix] for prefix in prefixes]
    for place, token in enumerate(text):
        weight.append(min(1.0, weight[-1] * float(p[place][token] / world.q(prefixes[place])[token])))
    found, left = [(weight[-1], prefixes[-1], p[-1])], 1.0 - weight[-1]
    for length in range(len(text) - 1, -1, -1):
        surplus = (weight[length] * p[length] - world.q(prefixes[length])).clamp_min(0)
        mass = float(surplus.sum())
        heads = mass / (mass + 1 - weight[length]) if length else 1.0
        found.append((left * heads, prefixes[length], surplus / mass if mass > 0 else p[length]))
        left *= 1 - heads
    return found


@pytest.mark.parametrize("seed", range(4))
def test_on_a_chain_every_outcome_is_that_of_block_verification(seed, monkeypatch):
    world = world_for(chain(3), seed=seed)
    for _, draft in drawn(world, chain(3)):
        expected = {path: (weight, bonus) for weight, path, bonus in block_outcomes(world, draft.tree.host_tokens[1:])}
        for weight, path, bonus in exact_rounds(world, [(1.0, draft)], Traversal(), monkeypatch):
            assert weight == pytest.approx(expected[path][0], abs=1e-12)
            assert weight < 1e-12 or (bonus - expected[path][1]).abs().max() < 1e-9


# Where a later sibling goes on and an earlier one does not, the rule may accept less.

LESSON = Path(__file__).parents[2] / "assets" / "lessons" / "10-from-the-leaves.json"


@pytest.mark.parametrize(
    ("shape", "p", "upwards", "downwards"),
    [
        (chain(2), 1 / 3, 11 / 9, 10 / 9),  # the paper's own example
        (chain(2), 0.3, 1.08, 0.96),
        (shape_from_counts([[1], [2], [0, 1]]), 0.3, 1.272, 1.344),
        (shape_from_counts([[1], [2], [1, 0]]), 0.3, 1.56, 1.416),
    ],
    ids=["paper", "chain", "short branch first", "long branch first"],
)
def test_the_papers_and_the_lessons_numbers(shape, p, upwards, downwards, monkeypatch):
    """Two tokens everywhere: the target says p and 1 - p, the drafter the reverse."""
    world = world_for(shape, vocab=2)
    law = torch.tensor([p, 1 - p], dtype=torch.float64).log()
    world.target, world.drafter = (tuple(row.expand(table.shape) for table in world.target) for row in (law, law.flip(0)))
    drafts = list(drawn(world, shape))
    found, usual = (exact_rounds(world, drafts, rule, monkeypatch) for rule in (Traversal(), Rejection()))
    assert off(world, found) < 1e-12
    assert (accepted(found), accepted(usual)) == pytest.approx((upwards, downwards), abs=1e-12)
    told = LESSON.read_text(encoding="utf-8")
    assert p != 0.3 or (f"**{upwards:.2f}**" in told and f"**{downwards:.2f}**" in told)


# What the harness has to notice; other slips are in test_distributions.py.


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
    """Wrong: w stays as it was, while anything is left."""
    owed = float(left.sum()) + self._rest
    factor = self.weight / owed if owed > 0 else 0.0
    self._mass, self._rest, self._scale = left * factor, self._rest * factor, self._scale * factor
    self.weight = self.weight if owed > 0 else 0.0


@pytest.mark.spread(3)
@pytest.mark.parametrize("shape", ["chain of 2", "binary"])
@pytest.mark.parametrize("wrong", [surplus_alone, surplus_over_undrawn, weight_kept])
def test_noticed_wrong_updates_of_the_weight(wrong, shape, monkeypatch):
    fail = NodeResidual.fail

    def remembering(self, token):
        self._drawn = float(self._q[self._slot(token)])
        fail(self, token)

    monkeypatch.setattr(NodeResidual, "fail", remembering)
    monkeypatch.setattr(NodeResidual, "_settle", wrong)
    world = World(3, 9)
    found = exact_distribution(world, drawn(world, SHAPES[shape]), Traversal(), monkeypatch)
    assert total_variation(found, world.distribution()) > 1e-3
