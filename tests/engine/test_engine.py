"""Noise, warping, trees, cost and the loop's manners: what every method stands on."""

import math
import random

import pytest
import torch
from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from specviz.acceptance.exact import Match
from specviz.drafting.runtimes.null import NullDrafter
from specviz.drafting.trees.calibrated import CalibratedTree, from_counts, load_all
from specviz.drafting.trees.retrieved import RootOnly
from specviz.engine.cost import CostCurve, best_size
from specviz.engine.interfaces import Composition, SingleDrafter
from specviz.engine.loop import Decoding, Recorder
from specviz.engine.sampling import Noise, Warp
from specviz.engine.stop import Stop, chunks
from specviz.engine.tree import DraftTree, TreeShape, chain, shape_from_counts, shape_from_paths
from specviz.errors import BadInput
from specviz.methods.registry import TREES
from tests.support.tiny.text import Letters, tiny_target


@pytest.mark.parametrize(("temperature", "top_k", "top_p"), [(0.7, 0, 1.0), (1.3, 5, 1.0), (1.0, 0, 0.8), (0.6, 12, 0.9)])
def test_warping_is_what_transformers_does(temperature, top_k, top_p):
    torch.manual_seed(0)
    logits = 3 * torch.randn(4, 40)
    theirs = TemperatureLogitsWarper(temperature)(None, logits)
    theirs = TopKLogitsWarper(top_k)(None, theirs) if top_k else theirs
    theirs = TopPLogitsWarper(top_p)(None, theirs) if top_p < 1 else theirs
    assert torch.allclose(Warp(temperature, top_k, top_p).probabilities(logits), theirs.softmax(-1), atol=1e-6)


@pytest.mark.parametrize(
    "wrong", [{"temperature": -1.0}, {"temperature": float("nan")}, {"top_p": 0.0}, {"top_p": 1.5}, {"top_k": -1}]
)
def test_settings_that_make_no_sense_are_refused(wrong):
    with pytest.raises(BadInput, match=next(iter(wrong))):
        Warp(**wrong)


def test_a_tree_knows_its_depths_levels_and_ancestors():
    shape = TreeShape((-1, 0, 0, 1, 3, 2))
    assert shape.depths == (0, 1, 1, 2, 3, 2)
    assert shape.levels == ((0,), (1, 2), (3, 5), (4,))
    assert shape.path(4) == (0, 1, 3, 4)
    seen = [{column for column in range(6) if shape.ancestors[row, column]} for row in range(6)]
    assert seen == [set(shape.path(row)) for row in range(6)]


@pytest.mark.parametrize("parents", [(), (0,), (-1, 1), (-1, 0, 5), (-1, -1)])
def test_what_is_no_tree_is_refused(parents):
    with pytest.raises(BadInput):
        TreeShape(parents)


def test_shapes_from_counts_and_from_rank_paths_agree():
    shape = shape_from_counts([[2], [2, 1], [1]])
    assert shape.parents == (-1, 0, 0, 1, 1, 2, 3)
    assert shape == shape_from_paths([(0,), (1,), (0, 0), (0, 1), (1, 0), (0, 0, 0)])
    assert chain(3).parents == (-1, 0, 1, 2)
    with pytest.raises(BadInput, match="not its parent"):
        shape_from_paths([(0, 0)])
    with pytest.raises(BadInput, match="2 tokens"):
        DraftTree.of([1, 2], [-1])


def test_the_best_size_is_the_best_of_all_sizes():
    generator = random.Random(5)
    for _ in range(200):
        value = sorted((generator.random() for _ in range(generator.randrange(1, 40))), reverse=True)
        curve = CostCurve((1, 8, 40), (40.0, 40.0 + 30 * generator.random(), 90.0 + 100 * generator.random()))
        rate = [(1 + sum(value[:nodes])) / curve.at(nodes + 1) for nodes in range(len(value) + 1)]
        assert rate[best_size(value, curve)] == pytest.approx(max(rate))


def test_cost_between_and_beyond_the_measured_widths():
    curve = CostCurve((1, 9, 17), (40.0, 48.0, 64.0))
    assert [curve.at(nodes) for nodes in (1, 5, 9, 13, 17, 25)] == [40.0, 44.0, 48.0, 56.0, 64.0, 80.0]


def test_calibrated_trees_survive_a_file_and_keep_parents_first(tmp_path):
    reached = {(0,): 9, (0, 0): 9, (1,): 4, (0, 1): 2, (0, 0, 0): 9}
    tree = from_counts(reached, 10, "a test")
    file = tmp_path / "tree.json"
    tree.save(file)
    assert CalibratedTree.load(file) == tree
    deep = from_counts({(0,): 3, (0, 0): 3}, 3, "a test")
    tree.save(file, {4: deep})
    assert load_all(file) == {0: tree, 4: deep}
    assert tree.paths[:3] == ((0,), (0, 0), (0, 0, 0))
    assert tree.probability[0] == 0.9
    file.write_text("[]")
    with pytest.raises(BadInput, match="calibrate"):
        CalibratedTree.load(file)


@pytest.mark.parametrize("name", ["stand", "token_recycling"])
def test_every_prefix_of_a_shipped_tree_is_a_tree(name):
    tree = CalibratedTree.load(TREES / f"{name}.json")
    assert len(tree.paths) == 80
    assert list(tree.probability) == sorted(tree.probability, reverse=True)
    for nodes in range(81):
        assert len(tree.best(nodes)) == nodes + 1


def test_stopping_keeps_the_steps_so_far():
    target, stop = tiny_target(), Stop()
    run = Decoding(
        target,
        Composition(SingleDrafter(NullDrafter(), RootOnly()), Match()),
        [1, 2],
        Warp(),
        Noise(0),
        50,
        Recorder(Letters()),
        stop,
    )
    steps = []
    for step in run.steps():
        steps.append(step)
        if len(steps) == 5:
            stop.set()
    assert len(steps) == 5
    assert run.outcome.reason == "cancelled"
    assert len(run.outcome.output_ids) == 5


class Failing(RootOnly):
    """Drafts twice, then breaks."""

    def __init__(self, error):
        self.error, self.left = error, 2

    def build(self, drafter, context):
        if not self.left:
            raise self.error
        self.left -= 1
        return super().build(drafter, context)


@pytest.mark.parametrize(
    ("error", "reason", "words"),
    [
        (RuntimeError("the drafter broke"), "error", "the drafter broke"),
        (BadInput("choose less"), "error", "choose less"),
        (MemoryError(), "out_of_memory", "memory ran out"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), "out_of_memory", "smaller"),
    ],
)
def test_a_failure_ends_the_run_and_keeps_what_there_is(error, reason, words):
    run = Decoding(
        tiny_target(),
        Composition(SingleDrafter(NullDrafter(), Failing(error)), Match()),
        [1],
        Warp(),
        Noise(0),
        50,
        Recorder(Letters()),
    )
    assert len(list(run.steps())) == 2
    assert run.outcome.reason == reason
    assert words in run.outcome.message


class Reading(NullDrafter):
    """A drafter that reads the prompt in pieces of two tokens, and counts those that it has read."""

    read = 0

    def begin(self, context, prefill):
        for start, end in chunks(len(context.ids) - 1, 2):
            self.read += end - start


@pytest.mark.parametrize(
    ("stop_at", "read"),
    [(None, 11), ("Reading the prompt: 5 of 11 tokens", 0), ("The drafter reads the prompt: 4 of 11 tokens", 6)],
)
@pytest.mark.parametrize("limit", ["", "A run has 9 s here."])
def test_a_run_ends_between_two_pieces_of_a_long_prompt(stop_at, read, limit):
    target, drafter, told = tiny_target(), Reading(), []
    target.piece = 5
    stop = Stop(lambda: (math.inf, limit))

    def progress(message, share):
        told.append(message)
        if message == stop_at:
            stop.reason = limit
            stop.set()

    composition = Composition(SingleDrafter(drafter, RootOnly()), Match())
    run = Decoding(target, composition, range(12), Warp(), Noise(0), 3, Recorder(Letters()), stop, progress=progress)
    steps = list(run.steps())
    assert drafter.read == read
    if stop_at is None:
        assert told[:3] == [f"Reading the prompt: {done} of 11 tokens" for done in (0, 5, 9)] and len(told) == 9
        assert run.outcome.reason == "budget" and len(steps) == 3
    else:
        assert told[-1] == stop_at and not steps
        assert (run.outcome.reason, run.outcome.message) == ("time_limit" if limit else "cancelled", limit)
