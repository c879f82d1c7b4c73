"""What a step asks of a GPU, counted on tiny models: few calls, hardly a wait, and the text that the CPU writes."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from specviz.bench.kit.counting_device import CountingDevice
from specviz.bench.suites import dispatch
from specviz.engine.loop import Decoding
from specviz.engine.recorder import Recorder
from specviz.engine.sampling import Noise, Warp
from specviz.requests.image import CodeText
from specviz.targets.text import TextTarget
from tests.support.emulated_cuda import emulated_cuda
from tests.support.tiny.text import Letters, decode, tiny_llama
from tests.support.worlds.image import World
from tests.support.worlds.text import PROMPT, WARPS, compose

TOKENS = 50
BEAM = {"depth": 5, "width": 6, "nodes": 24}


def _target(device: str) -> TextTarget:
    return TextTarget(tiny_llama(dtype=torch.float64).to(device), "tiny", (), "graph")


def counted(name: str, values: dict[str, Any], warped: str) -> list[dispatch.StepCounts]:
    """Warmed-up steps of a run that is asserted to write what the CPU writes."""
    warp, here = WARPS[warped], _target("cpu")
    expected = decode(here, compose(name, values, here, warp), PROMPT, TOKENS, warp, 7)
    device = CountingDevice()
    with device.present():
        there = _target("cuda")
        run = Decoding(there, compose(name, values, there, warp), PROMPT, warp, Noise(7), TOKENS, Recorder(Letters(), "off"))
        steps = dispatch.count(device, run)
    assert run.outcome.output_ids == expected.ids
    return steps


@pytest.mark.parametrize("warped", ["greedy", "warm"])
def test_five_levels_of_eagle3_are_a_few_calls_and_one_copy(warped: str) -> None:
    steps = counted("eagle3", {**BEAM, "rule": "match"}, warped)
    for step in steps:
        draft = step.phases["draft"]
        assert draft.calls <= 20 and draft.waits <= 1 and draft.captured > 100
        assert step.phases["judge"].waits <= 1
    assert sum(step.total("calls") for step in steps) / len(steps) <= dispatch.EAGLE3_CALLS + (warped == "warm") * 10


@pytest.mark.parametrize(
    ("name", "values", "most"),
    [
        ("eagle", {"tree": "published"}, 3),
        ("speculative_sampling", {"gamma": 4}, 3),
        ("easyspec", {"group": 2}, 4),  # its draft is the target's own layers, which copy a new shape too
        ("medusa", {"tree": "published", "rule": "typical"}, 3),
        ("traversal", {"shape": "sparse"}, 3),
        ("ddd", {"depth": 8, "width": 6, "nodes": 24, "threshold": "own", "log_mass": -2.0}, 4),
    ],
)
def test_a_step_waits_for_the_device_a_few_times_however_large_its_tree(
    name: str, values: dict[str, Any], most: int
) -> None:  # fmt: skip
    for step in counted(name, values, "warm"):
        # A shape that was never seen is copied there by the target, which is not the method's doing.
        assert sum(step.phases[phase].waits for phase in ("draft", "judge", "commit")) <= most


@pytest.mark.parametrize("values", [{"depth": 5, "width": 6, "nodes": 24}, {"depth": 3, "width": 4, "nodes": 9}])
def test_a_tree_of_drawn_tokens_asks_once(values: dict[str, int]) -> None:
    for step in counted("eagle3", values, "warm"):
        assert step.phases["draft"].waits <= 1 and step.phases["judge"].waits <= 2


@pytest.mark.parametrize("guidance", [1.0, 2.0])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(
    ("name", "values", "most"),
    [
        ("eagle", {"tree": "published"}, 3),
        ("eagle2", {"nodes": 12}, 3),
        ("lantern", {"delta": 0.3, "nodes": 20}, 2),
        ("lantern_pp", {"factor": 3.0, "tree": "57"}, 2),
    ],
)
def test_a_step_of_a_picture_waits_for_the_device_a_few_times(
    name: str, values: dict[str, Any], most: int, temperature: float, guidance: float
) -> None:  # fmt: skip
    warp, device = Warp(temperature), CountingDevice()
    expected = World(guidance).draw(name, values, warp).ids
    with device.present():
        world = World(guidance, device="cuda", tier="graph")
        recorder = Recorder(CodeText(world.loaded), "off")
        composition = world.compose(name, values, warp)
        run = Decoding(world.target, composition, world.prompt, warp, Noise(7), world.loaded.cells, recorder)
        steps = dispatch.count(device, run)
    assert run.outcome.output_ids == expected
    assert max(step.total("waits") for step in steps) <= most <= dispatch.MOST_WAITS


def test_a_run_that_never_leaves_capturing_is_said_to_be_too_short() -> None:
    row = dispatch.row("x", [dispatch.StepCounts()])
    assert row.reached and row.cells["calls"] == "0"


def test_another_device_that_had_the_name_before_changes_nothing() -> None:
    """What is kept of one device's tensors by its name must not be taken for the next one's."""
    warp, values = WARPS["warm"], {"tree": "published"}
    before = [step.total("waits") for step in counted("eagle", values, "warm")]
    with emulated_cuda():
        target = _target("cuda")
        decode(target, compose("eagle", values, target, warp), PROMPT, TOKENS, warp, 7)
    assert [step.total("waits") for step in counted("eagle", values, "warm")] == before
