"""A depth that nobody stated: chosen from the measured profile for the heads it was made with, the usual one for others."""

from dataclasses import replace
from typing import Any

import pytest
from msgspec import to_builtins

from specviz.drafting.trees.depth_profile import MIN_LEVELS, DepthProfile
from specviz.engine.interfaces import Composition
from specviz.methods import registry
from specviz.methods.ddd import PUBLISHED_LEVELS, CalibratedDepth
from specviz.methods.registry import all_methods, describe
from specviz.trace.notes.drafts import TreeDepth
from tests.support.tiny.networks import block_net
from tests.support.tiny.text import composed, parts_for, tiny_target
from tests.support.worlds.feature import tiny_net
from tests.support.worlds.text import GREEDY, WARM

HEADS = {"eagle2": "eagle", "eagle3": "eagle3", "gto": "gto"}
USUAL = {"eagle2": 4, "eagle3": 5, "gto": 5}
COLD = tuple((1.5 + 0.3 * depth, 1.6 + 0.4 * depth) for depth in range(8))
WARM_ROWS = tuple((1.3, 1.4) for _ in range(8))
SIZES = (2, 16)
ROUNDS = ((4, -0.1, -0.3, -0.9, -1.6), (2, -0.2, -0.7, -1.4, -2.6))
CHEAP, DEAR = 0.001, 30.0
"""Milliseconds of a drafter forward, where a pass of one token takes ten."""


@pytest.fixture
def compose(monkeypatch, tmp_path):
    """Composes a method with profiles for the tiny target, and a forward that takes as long as is said."""
    monkeypatch.setattr(registry, "TREES", tmp_path)
    target = tiny_target()
    for name, kind in HEADS.items():
        DepthProfile(kind, target.name, 6, SIZES, {0.0: COLD, 1.0: WARM_ROWS}).save(tmp_path / f"{name}.json")
    CalibratedDepth(ROUNDS, 12, "eagle3", target.name).save(tmp_path / "ddd.json")

    def made(name, values, warp=GREEDY, forward=CHEAP, **more):
        values = {"rule": "match", **values} if name in ("eagle2", "eagle3") else values
        heads = {
            "drafter_weights": lambda kind: tiny_net(target.model, kind != "eagle", 40).runtime(),
            "forward_cost": lambda network, rows: forward * rows / 6,
        }
        parts = parts_for(target, warp).using(**{**heads, **more})
        return composed(name, values, parts)

    return made


@pytest.mark.parametrize("values", [{}, {"nodes": 2}, {"depth": 2}, {"levels": "published"}])
@pytest.mark.parametrize("forward", [CHEAP, 1.0, 3.0, DEAR])
def test_the_threshold_follows_from_the_cost_of_a_forward_and_from_what_was_asked(
    values, forward, compose
):  # fmt: skip
    made = compose("ddd", values, forward=forward).controller.builder
    costs = pays(compose("ddd", {}, forward=forward))
    levels = PUBLISHED_LEVELS if values.get("levels") == "published" else ()
    expected = CalibratedDepth(ROUNDS, 12, "", "").threshold_that_pays(costs, made.depth, levels, values.get("nodes", 0))
    assert (made.stop.threshold, made.stop.levels) == (expected, levels)
    assert made.stop.forward == pytest.approx(forward / 10)


def depth(composition: Composition) -> int:
    return composition.controller.builder.depth


def pays(composition: Composition) -> Any:
    policy = composition.controller.builder.size
    return None if isinstance(policy, int) else policy.now()


@pytest.mark.parametrize("name", HEADS)
def test_cheap_forwards_go_deep_and_dear_ones_do_not(name, compose):
    assert depth(compose(name, {})) == 8
    assert depth(compose(name, {}, forward=DEAR)) == MIN_LEVELS
    assert depth(compose(name, {}, WARM)) == MIN_LEVELS, "where deeper levels bring nothing"
    chosen = compose(name, {}).controller.builder.chosen
    assert (chosen.levels, chosen.nodes) == (8, 16)
    assert chosen.tau == pytest.approx(COLD[7][1]) and chosen.gain > 1
    to_builtins(chosen)


@pytest.mark.parametrize("name", HEADS)
def test_a_stated_depth_is_taken_as_stated(name, compose):
    for values in ({"depth": 3}, {"depth": 3, "nodes": 9}):
        found = compose(name, values, forward=DEAR).controller.builder
        assert (found.depth, found.chosen) == (3, None)


@pytest.mark.parametrize("values", [{"drafter": "some/heads"}, {"target": "another"}, {"width": 3}])
@pytest.mark.parametrize("name", HEADS)
def test_heads_a_target_or_a_beam_that_nobody_measured_take_the_usual_depth_and_say_so(name, values, compose, tmp_path):
    more = {"uses_shipped_weights": False, "draft_name": values["drafter"]} if "drafter" in values else {}
    if "target" in values:
        replace(DepthProfile.load(tmp_path / f"{name}.json"), target="another").save(tmp_path / f"{name}.json")
    found = compose(name, {"width": values.get("width", 6)}, **more).controller.builder
    assert (found.depth, found.chosen) == (USUAL[name], TreeDepth(USUAL[name]))
    said = {one.name: one.bounds.help for one in describe(all_methods()[name].parameters)}["depth"]
    assert f"else {USUAL[name]}." in said


def test_a_stated_size_is_weighed_and_kept(compose):
    found = compose("eagle3", {"nodes": 2}, forward=2.0).controller.builder
    assert (found.size, found.chosen.nodes) == (2, 2)


@pytest.mark.parametrize(("name", "values"), [*((name, {"depth": 4}) for name in HEADS), ("ddd", {})])
def test_the_measured_forward_sizes_the_trees(name, values, compose):
    if name == "ddd":
        values = {"threshold": "own"}
    assert pays(compose(name, values, forward=2.5)).forward == pytest.approx(2.5)
    assert pays(compose(name, {**values, "width": 3}, forward=2.5)).forward == pytest.approx(1.25), "a beam of three"
    assert pays(compose(name, {**values, "nodes": 5})) is None


def test_a_guided_picture_pays_for_two_rows_a_node(compose):
    assert pays(compose("eagle2", {"depth": 2}, forward=2.5, guidance=(3.0, (1, 2)))).forward == pytest.approx(5.0)


def test_a_forward_of_two_levels_is_measured_too(compose):
    def size(forward, levels, **values):
        network = block_net(tiny_target())
        composition = compose("falcon", {"width": 6, **values}, forward=forward, drafter_weights=lambda kind: network)
        return composition.controller.builder.builder.size([0.001] * 3, levels)

    assert size(CHEAP, 2) == 0, "hardly worth a row"
    assert size(90.0, 2) == 3, "but where the round is dear anyhow it is"
    assert size(30.0, 2) == 0 and size(30.0, 4) == 3, "one forward for two levels, two for four"
