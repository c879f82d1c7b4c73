"""The paired comparison computes what both rules really do, and says so in rows with goals."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from specviz.acceptance.rejection import Rejection
from specviz.bench.kit.prompts import KINDS
from specviz.bench.suites.traversal import BothRules, compare, cut_at, leaves_first, root_first, rows
from specviz.engine.interfaces import Composition, Context, Draft, Proposal, TargetPass
from specviz.engine.sampling import Noise, Warp
from specviz.engine.tree import DraftTree, chain, shape_from_counts
from specviz.methods.traversal.verification import Traversal
from specviz.trees.sampled import Sampled
from tests.support.worlds.three_tokens import World

BINARY = shape_from_counts([[2], [2, 2]])
WORLD = World(4, 3)


def context(seed: int = 0, number: int = 0) -> Context:
    return Context([0], 1, number, Warp(1.0), Noise(seed), torch.device("cpu"), 100, record_notes=False)


def drawn(number: int = 0) -> tuple[Draft, TargetPass]:
    draft = Sampled(BINARY).build(WORLD, context(1, number))
    return draft, WORLD.scored(draft.tree)


@pytest.mark.parametrize("number", range(2))
def test_expected_lengths_are_those_of_many_judged_rounds(number: int) -> None:
    draft, scored = drawn(number)
    for rule, expected in ((Traversal(), leaves_first), (Rejection(), root_first)):
        lengths = [len(rule.judge(draft, scored, context(seed)).path) for seed in range(600)]
        assert abs(sum(lengths) / 600 - expected(draft, scored, context())) < 0.15


def test_children_nobody_drew_are_expected_alike() -> None:
    draft = Draft(DraftTree.of([0, 1, 2, 3, 0], [-1, 0, 0, 1, 2]))
    scored = WORLD.scored(draft.tree)
    assert leaves_first(draft, scored, context()) == pytest.approx(root_first(draft, scored, context()), abs=1e-12)


def test_a_tree_cut_at_a_depth_keeps_its_nodes_and_distributions() -> None:
    draft, scored = drawn()
    smaller, rest = cut_at(draft, scored, 1)
    assert smaller.tree.host_tokens == draft.tree.host_tokens[:3]
    assert set(smaller.proposals) == {0}
    assert torch.equal(rest.logits, scored.logits[:3])
    whole, _ = cut_at(draft, scored, 2)
    assert whole.tree.shape == draft.tree.shape


def test_judging_notes_every_depth_of_a_full_tree() -> None:
    both = BothRules(2)
    for number in range(120):
        draft, scored = drawn(number)
        verdict = both.judge(draft, scored, context(number))
        assert verdict == Traversal().judge(draft, scored, context(number))
    assert {depth: len(pairs) for depth, pairs in both.pairs.items()} == {1: 120, 2: 120}
    assert all(ours == pytest.approx(theirs, abs=1e-9) for ours, theirs in both.pairs[1])
    assert sum(ours - theirs for ours, theirs in both.pairs[2]) > 0
    short = BothRules(3)
    draft, scored = drawn()
    short.judge(draft, scored, context())
    assert not short.pairs


@pytest.mark.slow
def test_the_chains_of_a_real_distribution_gain_more_the_deeper_they_are() -> None:
    p, q = torch.tensor([1 / 3, 2 / 3]).double(), torch.tensor([2 / 3, 1 / 3]).double()
    both, generator = BothRules(4), torch.Generator().manual_seed(0)
    for number in range(250):
        tokens = torch.multinomial(q, 4, replacement=True, generator=generator).tolist()
        draft = Draft(DraftTree.of([0, *tokens], chain(4).parents), dict.fromkeys(range(4), Proposal(q)))
        both.judge(draft, TargetPass(p.log().expand(5, -1)), context(number))
    made = rows("chain", both.pairs, 1.0)
    gains = [row.value for row in made[:-2]]
    assert gains[0] == 1.0
    assert gains == sorted(gains)
    assert gains[1] == pytest.approx(1.1, abs=0.05)  # 11/9 against 10/9
    assert all(row.reached for row in made)
    assert "least rise" in made[-2].name and made[-2].value > 1
    assert made[-1].detail.startswith("+0.00 %")


def test_a_gain_that_is_none_is_told_as_not_reached() -> None:
    made = rows("chain", {1: [(1.0, 1.0)], 2: [(1.0, 1.2), (1.1, 1.2)]}, 1.0)
    assert [row.reached for row in made] == [True, False, False, False]


def test_below_the_first_depth_no_gain_is_not_enough() -> None:
    made = rows("chain", {depth: [(1.0, 1.0), (1.2, 1.2)] for depth in (1, 2, 3)}, 1.0)
    depths, rise, whole = made[:3], made[3], made[4]
    assert [row.reached for row in depths] == [True, False, False]
    assert rise.reached, "it does not fall"
    assert not whole.reached


def test_a_gain_that_falls_between_two_depths_is_told() -> None:
    made = rows("chain", {1: [(1.0, 1.0)], 2: [(1.2, 1.0)], 3: [(1.1, 1.0)], 4: [(1.3, 1.0)]}, 1.0)
    rise = made[-2]
    assert rise.value == pytest.approx(1.1 / 1.2) and rise.reached is False and made[-1].reached


class _Asked:
    """A bench that counts the prompts it is asked to decode."""

    def __init__(self) -> None:
        self.prompts: list[str] = []

    def prepared(self, method: str, prompt: str, temperature: float, **more: Any) -> SimpleNamespace:
        self.prompts.append(prompt)
        nothing = SimpleNamespace(steps=lambda: iter(()))
        return SimpleNamespace(compose=lambda: Composition(None, None), decoding=lambda *asked: nothing)  # type: ignore[arg-type]


def test_every_prompt_of_the_suite_is_decoded() -> None:
    bench = _Asked()
    compare(bench, KINDS, {"shape": "chain", "depth": 4})  # type: ignore[arg-type]
    assert bench.prompts == [text for texts in KINDS.values() for text in texts]
    assert all(len(texts) >= 10 for texts in KINDS.values())
