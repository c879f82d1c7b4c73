"""The profile of depths: what one text with a tree at every place foretells is what runs of each depth and size then do."""

import pytest

from specviz.acceptance.exact import Match
from specviz.bench.calibrate.depth import GrownPosition, TreeCollector, positions_of, table, tau
from specviz.drafting.runtimes.feature_drafter import FeatureDrafter
from specviz.drafting.trees.dynamic import MIN_CONFIDENCE_TEMPERATURE, Dynamic
from specviz.engine.interfaces import Composition, SingleDrafter
from tests.support.tiny.text import decode, tiny_target
from tests.support.worlds.feature import tiny_net
from tests.support.worlds.text import GREEDY, PROMPT, WARM

DEEPEST, WIDTH, BUDGET = 4, 5, 90


def run(builder, warp):
    target = tiny_target()
    drafter = FeatureDrafter(tiny_net(target.model, True, 40).runtime())
    return decode(target, Composition(SingleDrafter(drafter, builder), Match(), drafter.taps), PROMPT, BUDGET, warp, 7)


@pytest.mark.slow
@pytest.mark.parametrize("warp", [GREEDY, WARM], ids=["greedy", "warm"])
def test_the_profile_is_what_runs_of_every_depth_and_size_do(warp):
    collector = TreeCollector(DEEPEST, WIDTH)
    alone = run(collector, warp)
    assert all(len(step.emitted) == 1 for step in alone.steps), "the target writes as if alone"
    places = positions_of(collector, alone.ids, DEEPEST)
    assert len(places) == BUDGET - DEEPEST
    sizes = (1, 24)
    found = table([places], DEEPEST, sizes)
    for depth in (1, DEEPEST):
        for place, nodes in enumerate(sizes):
            real = run(Dynamic(depth, WIDTH, nodes, temperature_floor=MIN_CONFIDENCE_TEMPERATURE), warp)
            assert real.ids == alone.ids
            at, lengths = 0, []
            for step in real.steps:
                if at < len(places):
                    lengths.append(len(step.emitted))
                at += len(step.emitted)
            assert found[depth - 1][place] == pytest.approx(sum(lengths) / len(lengths)), (depth, nodes)
    assert found[-1][-1] > found[0][0] > 1, "nothing was ever accepted, so nothing was tested"


def test_rounds_begin_where_the_last_one_ended():
    easy, hard = GrownPosition(((0,), (0, 2))), GrownPosition(((), ()))
    assert [easy.accepted_count(*one) for one in ((1, 1), (2, 1), (2, 3))] == [1, 1, 2]
    text = [easy, hard, hard, easy, hard]
    assert tau([text], 1, 1) == pytest.approx((2 + 1 + 2) / 3)
    assert tau([text], 2, 3) == pytest.approx((3 + 3) / 2)
    assert tau([[hard] * 4, [easy] * 4], 2, 9) == pytest.approx((4 + 6) / 6)
    assert tau([[]], 1, 1) == 0.0
