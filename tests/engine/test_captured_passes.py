"""Captured passes: kept with the model, shared by a run and its baseline, off the clock, and never read a replay too late."""

import itertools

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from specviz.engine import tiers
from specviz.engine.cache import KeyValues
from specviz.engine.cost import TIMED, measure
from specviz.engine.loop import Decoding, Recorder
from specviz.engine.sampling import Noise
from specviz.engine.tree import DraftTree
from specviz.targets.text import TextTarget
from tests.support.emulated_cuda import emulated_cuda
from tests.support.fakes.graphs import Graphs
from tests.support.tiny.text import Letters, tiny_llama
from tests.support.worlds.text import GREEDY, NUCLEUS, PROMPT, baseline, compose

COMPOSITIONS = {
    "alone": ("autoregressive", {}),
    "chain": ("speculative_sampling", {"gamma": 4}),
    "copied": ("prompt_lookup", {}),
    "recycled": ("token_recycling", {}),
    "fixed tree": ("eagle", {}),
    "dynamic tree": ("eagle3", {"depth": 3, "width": 4, "nodes": 12}),
    "heads": ("medusa", {}),
    "leaves up": ("traversal", {}),
    "cascade": ("polybasic", {"middle": "draft", "drafter": "copy"}),
    "layers": ("easyspec", {}),
    "behind every node": ("owl", {}),
}


@pytest.fixture
def graphs(monkeypatch):
    return Graphs(monkeypatch)


def run_of(model, name, warp=GREEDY, budget=110, seed=7, **values):
    """A run as a request makes it: on a target of its own."""
    target = TextTarget(model, "tiny", (), "graph")
    recorder = Recorder(Letters())
    return Decoding(target, compose(name, values, target, warp), PROMPT, warp, Noise(seed), budget, recorder)


def finish(run):
    """Times of its steps."""
    totals = [step.time.total + step.time.aside for step in run.steps()]
    assert run.outcome.reason == "budget", run.outcome.message
    return totals


@pytest.mark.spread(1)
@pytest.mark.parametrize(("which", "warp"), [*zip(COMPOSITIONS, itertools.cycle([NUCLEUS, GREEDY]), strict=False)])
def test_nobody_reads_what_a_graph_gave_after_the_next_replay(which, warp, graphs, monkeypatch):
    monkeypatch.setattr(Recorder, "deferred", property(lambda recorder: True, lambda recorder, deferred: None), raising=False)
    name, values = COMPOSITIONS[which]
    written = []
    for captured in (False, True):
        monkeypatch.setattr(tiers, "is_captured", lambda device, captured=captured: captured)
        run = run_of(tiny_llama(), name, warp, 40, **values)
        finish(run)
        written.append(run.outcome.output_ids)
    assert written[0] == written[1] and graphs.replays > 10


@pytest.mark.slow
def test_runs_and_their_baselines_capture_what_the_first_pair_does(graphs):
    model, counts = tiny_llama(), []
    measure(TextTarget(model, "tiny", (), "graph"), lambda rows, milliseconds: None)
    measured = graphs.captures
    assert measured == len(TIMED), "one for each width, whatever is asked of it"
    for number in range(4):
        for name, values in (("eagle3", {"depth": 3, "width": 4, "nodes": 12}), ("autoregressive", {})):
            run = run_of(model, name, budget=40, seed=number, **values)
            finish(run)
            counts.append(run.untimed.captures)
    assert graphs.captures == measured + sum(counts)
    assert counts[0] and counts[1:] == [0] * 7, "later runs replay, and a baseline needs no graph that is not there already"
    assert graphs.pools == 1


def test_what_gives_hidden_states_serves_who_wants_none(graphs):
    model = tiny_llama()
    session = TextTarget(model, "tiny", (), "graph").open(64, taps=(0, 2))
    session.prefill(PROMPT)
    assert set(session.score(DraftTree.of([1], [-1])).hidden) == {0, 2}
    session.close()
    for taps, captures in (((), 1), ((2,), 1), ((1, 2), 2)):
        session = TextTarget(model, "tiny", (), "graph").open(64, taps=taps)
        session.prefill(PROMPT)
        assert set(session.score(DraftTree.of([1], [-1])).hidden) == set(taps)
        session.close()
        assert graphs.captures == captures


@pytest.mark.slow
def test_attention_is_captured_for_the_columns_in_use(graphs, monkeypatch):
    seen = []
    plain = TextTarget.run

    def watched(target, tokens, positions, mask, *rest, **more):
        if mask is not None and tokens.shape[1] == 1:
            seen.append(mask.shape[-1])
        return plain(target, tokens, positions, mask, *rest, **more)

    monkeypatch.setattr(TextTarget, "run", watched)
    run = run_of(tiny_llama(), "autoregressive", budget=400)
    finish(run)
    assert sorted(set(seen)) == [256, 512] and seen == sorted(seen)
    assert graphs.captures == 2
    wanted = baseline("eager", torch.float64, GREEDY)
    assert run.outcome.output_ids[: len(wanted)] == wanted


def test_a_tree_beyond_the_room_makes_the_cache_grow(graphs):
    model = tiny_llama()
    eager, graph = (TextTarget(model, "tiny", (), tier).open(120) for tier in ("eager", "graph"))
    small, large = DraftTree.of([1, 2, 3], [-1, 0, 0]), DraftTree.of([1] * 300, [-1] + [0] * 299)
    text = [token % 48 for token in range(100)]
    for session in (eager, graph):
        session.prefill(text)
    for tree in (small, large, small):
        wanted, found = eager.score(tree), graph.score(tree)
        assert torch.allclose(wanted.logits, found.logits, atol=1e-9)
        eager.rewind(100)
    assert graphs.captures == 3, "graphs know addresses, so those of the smaller cache are gone"


@pytest.mark.slow
def test_the_graphs_of_one_methods_own_embeddings_go_with_its_run(graphs):
    model, wanted = tiny_llama(), baseline("eager", torch.float64, GREEDY)[:110]
    finish(run_of(model, "owl"))
    first = graphs.captures
    run = run_of(model, "autoregressive")
    finish(run)
    assert run.outcome.output_ids == wanted
    assert graphs.captures > first, "a pass over other embeddings is another pass"
    finish(run_of(model, "autoregressive"))
    assert (graphs.captures - first, graphs.pools) == (1, 2), "a pool goes with its last graph"


class Counted(TorchDispatchMode):
    """Operations by name."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("layers", [1, 30])
def test_a_path_is_kept_in_one_gather_whatever_the_number_of_layers(layers):
    cache = KeyValues([None] * layers, 64)
    states = torch.randn(layers, 2, 1, 3, 9, 8)
    for layer in range(layers):
        cache.cache.update(*states[layer], layer)
    cache.rewind(2)
    with Counted() as counted:
        cache.keep((0, 2, 3, 6))
    gathers = [name for name in counted.names if not any(word in name for word in ("slice", "lift", "detach", "_to_copy"))]
    assert len(gathers) == 2, gathers
    kept = [0, 1, 2, 4, 5, 8]
    for layer, (keys, values) in enumerate(layer.committed() for layer in cache.layers):
        assert torch.equal(keys, states[layer, 0][:, :, kept]) and torch.equal(values, states[layer, 1][:, :, kept])


def test_layers_of_another_shape_or_with_values_of_another_size_are_kept_as_well():
    shapes = {0: (2, 8, 8), 1: (2, 8, 4), 2: (2, 8, 8), 3: (1, 16, 16)}
    cache = KeyValues(["a", "b", "a", "a"], 8)
    states = {
        layer: (torch.randn(1, heads, 30, one), torch.randn(1, heads, 30, two)) for layer, (heads, one, two) in shapes.items()
    }
    for layer, (keys, values) in states.items():
        cache.cache.update(keys, values, layer)
    cache.rewind(20)
    cache.keep((0, 3, 9))
    kept = [*range(21), 23, 29]
    for layer, (keys, values) in enumerate(layer.committed() for layer in cache.layers):
        assert torch.equal(keys, states[layer][0][:, :, kept]) and torch.equal(values, states[layer][1][:, :, kept])


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_a_captured_pass_needs_no_numbers_at_all(attention):
    """On a device without memory, where whatever looks at a value fails, and so does a tensor from elsewhere."""
    model = tiny_llama(dtype=torch.bfloat16)
    model.set_attn_implementation(attention)
    target = TextTarget(model.to("meta"), "tiny", (), "graph")
    session = target.open(64, taps=(2,))
    logits, hidden = session.graph.padded_pass(tiers.Inputs.of(8, torch.device("meta")), 256)
    assert logits.shape == (8, 48) and logits.dtype == torch.bfloat16 and logits.is_meta and hidden[2].is_meta


@pytest.mark.parametrize("tier", ["eager", "graph"])
def test_a_target_pass_and_its_commit_never_wait_for_the_device(tier):
    with emulated_cuda() as device:
        model = tiny_llama().to("cuda")
        session, before = TextTarget(model, "tiny", (), tier).open(64, taps=(2,)), device.counts.waits
        session.prefill(PROMPT)
        trees = [DraftTree.of([1, 2, 3, 4], parents, "cuda") for parents in ([-1, 0, 0, 1], [-1, 0, 1, 1])]
        for tree in trees:  # each shape goes to the device once, and each width is captured
            session.score(tree)
            session.keep((0, 2))
        assert (device.counts.waits - before, device.counts.captures) == (0, int(tier == "graph"))
