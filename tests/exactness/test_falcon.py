"""The ladder for trees drafted in blocks: whatever a network of two levels a forward drafts, the text is the target's own."""

import pytest
import torch

from specviz.engine.interfaces import Composition
from specviz.engine.sampling import Warp
from specviz.targets.text import TextTarget
from tests.support.tiny.networks import block_net
from tests.support.tiny.text import decode, tiny_target
from tests.support.worlds.foretold import foretold
from tests.support.worlds.text import GREEDY, PROMPT, WARM, alone, baseline, compose

CASES = {
    "fitted": {"tree": "fitted", "nodes": 20},
    "four forwards": {"tree": "fitted", "nodes": 60, "width": 12, "forwards": 4},
    "published": {"tree": "published"},
    "drawn": {"tree": "drawn"},
}


def composed(case: str, target: TextTarget, warp: Warp) -> Composition:
    """The method with a random network."""
    return compose("falcon", CASES[case], target, warp)


@pytest.mark.spread(1)
@pytest.mark.parametrize("block", [1, 3])
def test_other_block_lengths_write_the_same_text(block):
    target = tiny_target()
    text, net = baseline("eager", torch.float64, WARM), block_net(target, block, draft=target.vocab_size)
    run = decode(target, foretold("falcon", CASES["fitted"], target, WARM, text, 4, net), PROMPT, 100, WARM, 7)
    assert run.ids == text[:100]
    lengths = {len(step.path) for step in run.steps}
    assert len(lengths) > 1 and max(lengths) > 1


def test_drawn_trees_are_judged_by_the_distributions_they_were_drawn_from():
    target = tiny_target()
    run = decode(target, composed("drawn", target, WARM), PROMPT, 120, WARM, 7)
    assert {step.rule for step in run.steps} == {"without_replacement"}
    assert any(step.path for step in run.steps)
    assert run.ids != baseline("eager", torch.float64, WARM)[:120], "another draw from the same distribution"


def test_two_levels_a_forward_and_the_drafter_starts_as_soon_as_a_block_is_there():
    target = tiny_target()
    run = decode(target, composed("published", target, GREEDY), PROMPT, 40, GREEDY)
    assert all(step.draft_calls == 4 and step.verified == 165 and max(step.depths) == 8 for step in run.steps)
    short = decode(target, composed("published", target, GREEDY), [5, 6], 30, GREEDY)
    assert [step.draft_calls for step in short.steps[:2]] == [0, 4]
    assert short.ids == alone(target, GREEDY, [5, 6]).ids
