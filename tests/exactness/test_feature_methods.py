"""Methods that draft from the target's hidden states, composed as a user gets them, on tiny networks, beyond the ladder."""

import pytest

from specviz.engine.interfaces import SingleDrafter
from specviz.engine.sampling import Warp
from specviz.methods.ddd import CANDIDATES, CalibratedDepth
from specviz.methods.registry import TREES, published_tree
from tests.support.rounds import context
from tests.support.tiny.text import composed, decode, parts_for, tiny_target
from tests.support.worlds.fancy import Fancy, outside
from tests.support.worlds.feature import tiny_net
from tests.support.worlds.text import GREEDY, PROMPT, WARM, compose

Values = dict[str, object]
# Wide enough that an untrained network hits now and then.
TREE: Values = {"depth": 3, "width": 6, "nodes": 24}
# Parameters that change the tree or the rule, not the way a tree is run: the plain tier says enough about them.


def test_drawn_trees_are_judged_without_replacement_and_tell_of_overlap():
    target = tiny_target()
    run = decode(target, compose("eagle", {"tree": "published"}, target, WARM), PROMPT, 60, WARM)
    assert "without_replacement" in {step.rule for step in run.steps}
    assert any(note.type == "overlap" for step in run.steps for note in step.notes)
    assert all(node.q is not None for step in run.steps for node in step.nodes[1:])


def test_the_fixed_tree_of_likeliest_tokens_stays_inside_the_nucleus():
    warp, drafter = Warp(0.8, top_p=0.7), Fancy(3)
    composition = compose("eagle", {"tree": "published", "rule": "rejection"}, tiny_target(), warp)
    assert isinstance(composition.controller, SingleDrafter)
    draft = composition.controller.builder.build(drafter, context(warp=warp))
    assert 1 < len(draft.tree) < len(published_tree("eagle")) and not outside(draft, drafter, warp)


def test_trees_that_follow_confidence_tell_how_they_grew():
    target = tiny_target()
    run = decode(target, compose("ddd", {**TREE, "threshold": "own", "log_mass": -1.2}, target, GREEDY), PROMPT, 30, GREEDY)
    for step in run.steps:
        told = {note.type: note.data for note in step.notes}
        assert told["growth"]["kept"] == step.verified + 1
        assert len(told["growth"]["value"]) == len(step.nodes)
        assert len(told["beam_mass"]["mass"]) == step.draft_calls or step.draft_calls > len(told["beam_mass"]["mass"])


CALIBRATED = CalibratedDepth.load(TREES / "ddd.json")


@pytest.mark.spread(3)
@pytest.mark.parametrize(
    ("values", "threshold", "levels"),
    [
        ({}, None, ()),
        ({"levels": "published"}, None, (5, 7, 9)),
        ({"threshold": "paper"}, -0.3, (5, 7, 9)),
        ({"threshold": "paper", "levels": "every"}, -0.3, ()),
        ({"threshold": "paper", "drafter": "eagle"}, -0.3, (5, 7, 9)),
        ({"threshold": "own", "log_mass": -2.0, "drafter": "eagle"}, -2.0, ()),
    ],
)
def test_each_choice_of_threshold_brings_its_levels(
    values, threshold, levels
):  # fmt: skip
    """None stands for one of the calibration's, chosen by costs."""
    target = tiny_target()
    made = compose("ddd", {**TREE, **values}, target, GREEDY)
    stop = made.controller.builder.stop
    assert (stop.levels, made.warnings) == (levels, ())
    if threshold is None:
        assert stop.threshold in CANDIDATES and stop.forward > 0
        assert stop.below == CALIBRATED.below(stop.threshold)
    else:
        assert (stop.threshold, stop.below, stop.forward) == (threshold, (), None)


@pytest.mark.parametrize(("drafter", "own"), [("eagle", True), ("eagle3", False)])
def test_a_threshold_of_other_heads_is_not_taken_and_that_is_said(drafter, own):
    target = tiny_target()
    parts = parts_for(target, GREEDY).using(
        drafter_weights=lambda kind: tiny_net(target.model, kind == "eagle3").runtime(),
        uses_shipped_weights=own,
        draft_name="" if own else "some/heads",
    )
    made = composed("ddd", {**TREE, "drafter": drafter}, parts)
    stop = made.controller.builder.stop
    assert (stop.threshold, stop.levels, stop.below) == (-0.3, (5, 7, 9), ())
    (said,) = made.warnings
    assert f"calibrated on eagle3 for {CALIBRATED.target}" in said
    assert f"drafts with {'eagle' if own else 'some/heads'}" in said


def test_eagle_drafts_its_published_tree_unless_asked_otherwise():
    target = tiny_target()
    run = decode(target, compose("eagle", {}, target, WARM), PROMPT, 30, WARM)
    assert {step.verified for step in run.steps[:4]} == {25}
    fitted = decode(target, compose("eagle", {"tree": "fitted"}, target, WARM), PROMPT, 30, WARM)
    assert {step.verified for step in fitted.steps[:4]} != {25}


def test_the_drafters_taps_reach_the_target():
    target = tiny_target()
    assert compose("eagle2", TREE, target, GREEDY).hidden_state_layers == (2,)
    assert compose("eagle3", TREE, target, GREEDY).hidden_state_layers == (1, 1, 0)
