"""Graphs are captured once for all runs and on no run's clock, and what a model held goes with it."""

import gc
import time
import weakref
from contextlib import contextmanager

import pytest
import torch

import specviz
from specviz.engine.cached import cached
from specviz.targets.text import TextTarget
from tests.support.ladder import TREE
from tests.support.tiny.text import composed, decode, tiny_llama
from tests.support.worlds.image import World
from tests.support.worlds.text import PROMPT, WARPS, network, resources

METHODS = {
    "eagle3": {**TREE, "rule": "match"}, "autoregressive": {}, "token_recycling": {"tree": "published"}, "medusa": {}
}  # fmt: skip
HOUR = 3600 * 10**9


class Captures:
    """How many graphs were captured, on a clock on which each takes an hour."""

    def __init__(self):
        self.count = 0


@pytest.fixture
def captures(device, monkeypatch):
    made, real, now = Captures(), torch.cuda.graph, time.perf_counter_ns

    @contextmanager
    def graph(*args, **options):
        with real(*args, **options):
            yield
        made.count += 1

    monkeypatch.setattr(torch.cuda, "graph", graph)
    monkeypatch.setattr(time, "perf_counter_ns", lambda: now() + made.count * HOUR)
    return made


def target_on(device):
    return TextTarget(tiny_llama(device=device), "tiny", (), "graph")


def decoded(target, name, seed=7, budget=40):
    """A run on networks that are made once for a target, as a user's are."""
    warp = WARPS["warm"]
    parts = resources(target, warp).using(
        drafter_weights=lambda kind: cached(target, ("a test's", kind), lambda: network(kind, target))
    )
    return decode(target, composed(name, METHODS[name], parts), PROMPT, budget, warp, seed)


PICTURES = {"lantern": {"delta": 0.3, "nodes": 20}, "mulo_sd": {"tau": 0.3, "pool": 4}}


@pytest.mark.spread(3)
@pytest.mark.parametrize("name", METHODS)
def test_no_step_and_no_prefill_has_capturing_in_its_time(device, captures, name):
    run = decoded(target_on(device), name)
    assert (captures.count > 0) == (device == "cuda")
    assert run.outcome.prefill_ns + sum(step.time.total + step.time.aside for step in run.steps) < HOUR
    assert run.outcome.capture_ns // HOUR == captures.count


def allocated(device):
    gc.collect()
    return int(torch.cuda.memory_allocated()) if device == "cuda" else 0


@pytest.mark.slow
def test_a_model_that_was_let_go_gives_its_memory_back(device):
    def use():
        target = target_on(device)
        for name in METHODS:
            decoded(target, name)
        world = World(device=device, tier="graph")
        for name, values in PICTURES.items():
            world.draw(name, values)
        return [weakref.ref(one) for one in (target.model, target, world.loaded.model, world.small.model, world.target)]

    use()  # tables of noise and of shapes are kept for all models
    before = allocated(device)
    gone = use()
    assert allocated(device) <= before
    assert not any(one() for one in gone)


@pytest.mark.gpu
@pytest.mark.model
@pytest.mark.parametrize("name", ["prompt_lookup", "eagle3"])
def test_a_real_run_on_the_device_says_so_and_keeps_the_text(name):
    trace = specviz.run(
        method=name, prompt="Repeat after me: one, two, three, four.", device="cuda", dtype="float32", tier="graph",
        baseline=True, max_new_tokens=64,
    )  # fmt: skip
    assert trace.run.device.startswith("cuda") and trace.run.tier == "graph"
    assert trace.end.baseline.equal
