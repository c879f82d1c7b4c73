"""Pictures in the graph tier: the same codes as eagerly, from passes captured once, whoever asks for them."""

import itertools
from functools import cache

import pytest
import torch

from specviz.engine import tiers
from specviz.engine.loop import Recorder
from specviz.engine.sampling import Warp
from specviz.engine.to_device import to_device
from specviz.engine.tree import DraftTree
from specviz.errors import BadInput
from specviz.pipeline.image import image_target
from specviz.targets.image import ImageTarget
from tests.support.emulated_cuda import emulated_cuda
from tests.support.fakes.graphs import Graphs
from tests.support.worlds.image import PROMPT, WARM, World, plain_rows

METHODS = {
    "alone": ("autoregressive", {}),
    "fixed tree": ("eagle", {"tree": "published"}),
    "matched": ("eagle2", {"nodes": 12, "rule": "match"}),
    "dynamic tree": ("eagle2", {"nodes": 12}),
    "lantern": ("lantern", {"delta": 0.3, "nodes": 20}),
    "lantern++": ("lantern_pp", {"factor": 3.0, "tree": "57"}),
    "window": ("speculative_jacobi", {"window": 8}),
    "rewritten rows": ("mulo_sd", {"tau": 0.3, "pool": 4}),
    "lone islands": ("mulo_sd", {"tau": 0.1, "pool": 4, "rows": 2, "radius": 0}),
    "stale rows": ("mulo_sd", {"tau": 0.1, "pool": 4, "radius": 0, "cache": "stale"}),
}


@pytest.fixture
def graphs(monkeypatch):
    return Graphs(monkeypatch)


@cache
def eager(which, guidance, warp):
    return World(guidance, tier="eager").draw(*METHODS[which], warp).ids


@pytest.mark.spread(1)
@pytest.mark.parametrize(("which", "way"), [*zip(METHODS, itertools.cycle([(3.0, WARM), (1.0, Warp())]), strict=False)])
def test_nobody_reads_what_a_graph_gave_after_the_next_replay(which, way, graphs, monkeypatch):
    guidance, warp = way
    monkeypatch.setattr(Recorder, "deferred", property(lambda recorder: True, lambda recorder, deferred: None), raising=False)
    assert World(guidance, tier="graph").draw(*METHODS[which], warp).ids == eager(which, guidance, warp)
    assert graphs.replays > 5


def test_a_block_is_repaired_from_graphs_that_the_next_picture_replays(graphs):
    world = World(tier="graph")
    first, again = (world.draw(*METHODS["lone islands"]) for _ in range(2))
    assert first.outcome.captures > 2 and again.outcome.captures == 0 and again.ids == first.ids
    assert any(step.passes > 2 for step in again.steps)


@pytest.mark.spread(1)
@pytest.mark.parametrize("tier", ["eager", "graph"])
def test_runs_of_other_guidances_take_turns_on_a_model_and_do_not_meet(tier, graphs):
    world = World(tier=tier)
    for guidance in (2.0, 1.0, 5.0, 2.0, 1.0):
        target, prompt, _ = image_target(world.loaded, PROMPT, guidance, tier)
        session = target.open(40)
        session.prefill(prompt[:-1])
        session.score(DraftTree.of([prompt[-1], 3, 5], [-1, 0, 0]))
        session.keep([0, 2])
        row = session.score(DraftTree.of([7], [-1])).logits[0]
        expected = plain_rows(world.loaded, target, prompt, [5, 7])[-1]
        assert torch.allclose(row, expected, atol=1e-9)
        session.close()


def test_a_pass_says_how_wide_it_really_is():
    assert World(tier="graph").target.open(40).padded(9) == 16 and World(tier="eager").target.open(40).padded(9) == 9


@pytest.mark.spread(1)
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("padded", [False, True])
def test_a_captured_pass_needs_no_numbers_at_all(attention, padded):
    """On a device without memory, where whatever looks at a value fails, and so does a tensor from elsewhere."""
    loaded = World(tier="eager").loaded
    loaded.model.set_attn_implementation(attention)
    model, table = loaded.model.to("meta"), torch.empty(40, 32, dtype=torch.float64, device="meta")
    target = ImageTarget(
        model,
        "tiny",
        table,
        24,
        (-1, 30, 31) if padded else (30, 30, 31),
        36,
        2.0,
        "graph",
        model.model.language_model,
        model.model.generation_head,
    )
    session = target.open(36, taps=(1, 2))
    for work in (session.graph.padded_pass, session.graph.rewriting_pass):
        logits, hidden = work(tiers.Inputs.of(8, torch.device("meta"), 2, 2), 256)
        assert logits.shape == (8, 24) and logits.is_meta and hidden[1].shape == hidden[2].shape == (8, 64)


@pytest.mark.spread(1)
@pytest.mark.parametrize("tier", ["eager", "graph"])
def test_a_pass_its_repair_and_its_commit_never_wait_for_the_device(tier):
    with emulated_cuda() as device:
        world = World(device="cuda", tier=tier)
        session = world.target.open(world.target.context_length)
        session.prefill(world.prompt[:-1])
        before, after = [world.prompt[-1], 3, 5, 7], [world.prompt[-1], 4, 5, 8]

        def round_of(session):
            session.score(DraftTree.of(before, range(-1, 3), "cuda"))
            if tier == "eager":
                session.rewrite(to_device(after, "cuda"), [1, 3])
            session.rewind(session.length)
            session.score(DraftTree.of([before[0], 3, 5], [-1, 0, 0], "cuda"))
            session.keep([0, 2])
            session.rewind(session.length - 2)

        round_of(session)
        captures = device.fresh().captures
        round_of(session)
        counted = device.fresh()
        assert (counted.waits, counted.captures) == (0, 0)
        assert (captures > 0) == (tier == "graph")


def test_a_model_whose_positions_the_host_computes_is_refused_with_the_reason():
    loaded = World().loaded
    loaded.model.config.text_config.rope_parameters = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
    with pytest.raises(BadInput, match="dynamic rotary positions are computed on the host"):
        image_target(loaded, PROMPT, 2.0, "graph")
    assert image_target(loaded, PROMPT, 2.0, "eager")[0].tier == "eager"
