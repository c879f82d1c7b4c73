"""Chains through a block are cut without looking ahead: with the paper's counter-example, which the wrong rule fails."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy
import pytest
import torch

from specviz.acceptance.exact import Rejection
from specviz.drafting.runtimes.fill_drafter import FillDrafter
from specviz.drafting.trees.block_chain import BlockChain
from specviz.drafting.trees.dynamic import SpeedupPolicy
from specviz.engine.interfaces import Draft
from specviz.engine.tree import DraftTree, chain
from tests.support.tiny.networks import block_fill
from tests.support.tiny.text import decode, tiny_target
from tests.support.worlds.text import GREEDY, PROMPT, WARM, compose
from tests.support.worlds.three_tokens import World, drawn, exact_distribution, total_variation

PAPER = (1.0, 0.5, 0.45)
"""Steps per second of appendix A of the paper, by number of drafted tokens."""
CLIFF = (1.0, 0.6, 0.59)
"""Here the first token pays, and the second where it is likely."""


def controller(speeds: Sequence[float], target: Any = None) -> BlockChain:
    """A chain of two slots on a machine of these speeds."""
    network = block_fill(target or tiny_target(), "dspark").runtime()
    return BlockChain(FillDrafter(network, 2), policy=SpeedupPolicy(1 / numpy.array(speeds), 0.0))


def rates(draft: Draft) -> list[float]:
    """The paper's confidences: the first is constant, the second depends on the first token, 0 or another one."""
    return [0.8, 0.9 if draft.tree.host_tokens[1] == 0 else 0.0]


def cut(world: World, size: Callable[[Sequence[float]], int]) -> Iterator[tuple[float, Draft]]:
    """Every drawn chain of two, cut to the size that its rates give."""
    for weight, draft in drawn(world, chain(2)):
        kept = size(rates(draft))
        tree = DraftTree.of(draft.tree.host_tokens[: kept + 1], range(-1, kept))
        yield weight, replace(draft, tree=tree, proposals={node: one for node, one in draft.proposals.items() if node < kept})


def in_retrospect(speeds: Sequence[float]) -> Callable[[Sequence[float]], int]:
    """The rule that compares whole chains: the size of the highest throughput."""

    def size(rates):
        expected = 1 + numpy.cumsum([0.0, *numpy.cumprod(rates)])
        return int((expected * numpy.array(speeds)).argmax())

    return size


@pytest.mark.parametrize("speeds", [PAPER, CLIFF], ids=["paper", "cliff"])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_chain_cut_slot_by_slot_keeps_the_distribution(seed, speeds, monkeypatch):
    world, rule = World(vocab=3, seed=seed), controller(speeds)
    found = exact_distribution(world, cut(world, rule.size), Rejection(), monkeypatch)
    torch.testing.assert_close(found, world.distribution(), rtol=0, atol=1e-12)


def test_the_cases_are_those_of_the_paper():
    rule, wrong = controller(PAPER), in_retrospect(PAPER)
    assert [rule.size(given) for given in ([0.8, 0.9], [0.8, 0.0])] == [0, 0]
    assert [wrong(given) for given in ([0.8, 0.9], [0.8, 0.0])] == [2, 0]
    assert [controller(CLIFF).size(given) for given in ([0.8, 0.9], [0.8, 0.0], [0.5, 0.9])] == [2, 1, 0]


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_noticed_a_chain_cut_in_retrospect(seed, monkeypatch):
    world = World(vocab=3, seed=seed)
    found = exact_distribution(world, cut(world, in_retrospect(PAPER)), Rejection(), monkeypatch)
    assert total_variation(found, world.distribution()) > 0.01


@pytest.mark.parametrize("method", ["dflash", "dspark"])
def test_a_cut_slot_is_drafted_in_one_pass_and_never_verified(method):
    target = tiny_target()
    values = {"threshold": 0.45} if method == "dspark" else {}
    run = decode(target, compose(method, values, target, WARM), PROMPT, 80, WARM, 7)
    assert all(step.draft_calls == 1 for step in run.steps[:-1])
    for step in run.steps:
        note = next(note.data for note in step.notes if note.type == "denoised")
        sent = [node for node in step.nodes[1:] if node.status != "pruned"]
        pruned = [node for node in step.nodes if node.status == "pruned"]
        assert len(sent) + len(pruned) == note["considered"] == len(note["places"])
        if method == "dspark":
            below = [rate < 0.45 for rate in note["rates"]]
            assert len(sent) == (below.index(True) if True in below else len(below))
    if method == "dspark":
        assert any(node.status == "pruned" for step in run.steps for node in step.nodes)


@pytest.mark.parametrize("method", ["dflash", "dspark"])
def test_a_round_without_room_shows_no_block(method):
    target = tiny_target(context=len(PROMPT) + 9)
    for budget, prompt in ((9, PROMPT), (1, [*PROMPT, *PROMPT[:8]])):
        *_, last = decode(target, compose(method, {}, target, WARM), prompt, budget, WARM, 5).steps
        assert (last.verified, last.draft_calls, last.notes) == (0, 0, ())


def test_rates_without_a_head_are_those_of_the_run():
    target = tiny_target()
    made = compose("dflash", {"nodes": 4}, target, GREEDY)
    chained = made.controller
    assert isinstance(chained, BlockChain)
    assert set(chained.rates()) == {0.7}
    run = decode(target, made, PROMPT, 60, GREEDY)
    reached = [sum(step.verified > depth + 1 and len(step.path) >= depth for step in run.steps) for depth in range(4)]
    accepted = [sum(len(step.path) > depth for step in run.steps) for depth in range(4)]
    expected = [(kept + 0.7 * 4) / (tried + 4) for kept, tried in zip(accepted, reached, strict=True)]
    assert chained.rates() == pytest.approx(expected, abs=0.02) and expected[0] < 0.2
