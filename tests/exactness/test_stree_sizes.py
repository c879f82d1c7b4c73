"""How large trees on state-space targets get: at the parameters' bounds, and where the size is what pays."""

import pytest
import torch

from specviz.drafting.runtimes.language_model import DraftModel, SessionModel
from specviz.engine.cost import CostCurve
from specviz.errors import BadInput
from specviz.methods.registry import all_methods, build, describe
from specviz.methods.stree import Parameters
from tests.support.tiny.text import parts_for
from tests.support.worlds.hybrid import BEAM, GREEDY, WARM, WARPS, alone, compose, models, run


@pytest.mark.slow
@pytest.mark.parametrize("tree", ["beam", "fixed", "drawn"])
def test_the_largest_tree_that_can_be_asked_for_runs(tree):
    largest = {one.name: one.bounds.high for one in describe(Parameters) if one.kind == "int"}
    assert largest == {"depth": 16, "width": 8, "nodes": 96}
    kept = run({**largest, "tree": tree}, models("pure"), WARM, 20)
    assert tuple(kept.ids) == alone("pure", torch.float64, "warm")[:20]
    assert max(step.verified for step in kept.steps) == 96


@pytest.mark.parametrize("tree", ["fixed", "drawn"])
def test_only_a_beam_is_sized_by_what_pays(tree):
    with pytest.raises(BadInput, match="choose 1 to 96 nodes"):
        compose({"nodes": 0, "tree": tree}, *models("hybrid"), GREEDY)


@pytest.mark.slow
@pytest.mark.parametrize("warped", ["greedy", "warm"])
def test_a_tree_that_is_sized_by_what_pays_writes_the_same_tokens(warped):
    kept = run({**BEAM, "nodes": 0}, models("hybrid"), WARPS[warped], 100)
    assert tuple(kept.ids) == alone("hybrid", torch.float64, warped)[:100]
    assert len({step.verified for step in kept.steps}) > 1, "sure rounds get more nodes than doubtful ones"


def test_the_drafter_s_own_passes_are_paid_for():
    """Level by level the drafter's pass is over one node, then over the beam too, then over both beams."""
    pair = models("hybrid")
    method = all_methods()["stree"]
    parts = parts_for(pair[0], WARM).using(
        draft_model=lambda: DraftModel("near", 1 << 20, lambda room: SessionModel(pair[1].open(room), pair[1]), (), pair[1]),
        cost_curve=lambda: CostCurve((1, 96), (10.0, 105.0)),
        cost_curve_of=lambda draft: CostCurve((1, 96), (3.0, 98.0)) if draft is pair[1] else pytest.fail("another model"),
    )
    composed = method.compose(build(Parameters, {**BEAM, "nodes": 0}, "stree"), parts)
    builder = composed.controller.builder
    assert builder.size.now().forward == pytest.approx((3 + 6 + 9) / 3)
    assert builder.size.now().cost[4] == pytest.approx(14.0)
