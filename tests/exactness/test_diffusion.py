"""The ladder for blocks that a masked language model fills at once: searched paths and drawn blocks."""

from collections.abc import Sequence

import pytest
import torch

from specviz.acceptance.exact import Match, Rejection
from specviz.engine.interfaces import Composition
from specviz.engine.sampling import Warp
from specviz.targets.text import TextTarget
from tests.support.tiny.text import decode, tiny_target
from tests.support.worlds.foretold import foretold
from tests.support.worlds.text import GREEDY, PROMPT, WARM, baseline, compose

CASES = {
    "deer": ("deer", {"block": 6}),
    "diffuspec": ("diffuspec", {"longest": 9, "shortest": 3}),
    "fixed": ("diffuspec", {"longest": 6, "adaptive": False, "weight": 1.0}),
}


def composed(case: str, target: TextTarget, warp: Warp) -> Composition:
    """The method with a random network."""
    return compose(*CASES[case], target, warp)


def told(case: str, target: TextTarget, text: Sequence[int], gap: int = 0) -> Composition:
    """The method with a network that is told the greedy text."""
    return foretold(*CASES[case], target, GREEDY, text, gap)


def test_drawn_blocks_are_judged_by_the_ratio_of_their_distributions():
    target = tiny_target()
    run = decode(target, composed("deer", target, WARM), PROMPT, 150, WARM, 7)
    assert {step.rule for step in run.steps} == {"ratio"} and any(step.path for step in run.steps)
    for step in run.steps:
        judged = [node for node in step.nodes[1:] if node.threshold is not None]
        rejected = [node for node in judged if node.status == "rejected"]
        assert len(rejected) <= 1, "the first rejection ends the block"
        for node in judged:
            assert node.threshold == pytest.approx(min(1.0, node.p / node.q), rel=1e-4)
    assert all(step.draft_calls == 1 for step in run.steps)


@pytest.mark.parametrize(("case", "whole"), [("deer", 6), ("fixed", 6)])
def test_a_perfect_block_is_accepted_whole(case, whole):
    target, text = tiny_target(), baseline("eager", torch.float64, GREEDY)
    run = decode(target, told(case, target, text), PROMPT, 10 * (whole + 1), GREEDY)
    assert [len(step.path) for step in run.steps] == [whole] * 10
    assert run.ids == text[: 10 * (whole + 1)]


@pytest.mark.slow
def test_the_gauge_lengthens_blocks_that_are_kept_and_shortens_the_others():
    target, text = tiny_target(), baseline("eager", torch.float64, GREEDY)
    kept = decode(target, told("diffuspec", target, text), PROMPT, 120, GREEDY)
    lost = decode(target, composed("diffuspec", target, GREEDY), PROMPT, 120, GREEDY)
    longest = [step.verified for step in kept.steps][3:-1]
    shortest = [step.verified for step in lost.steps][3:-1]
    assert max(shortest) < min(longest) and max(longest) == 9


def test_searched_paths_are_composed_with_sample_and_match():
    target = tiny_target()
    assert isinstance(composed("diffuspec", target, WARM).acceptance, Match)
    assert isinstance(composed("deer", target, WARM).acceptance, Rejection)
