"""What goes into a trace file comes out again, in few bytes, and nothing that a reader would refuse is ever written."""

import json

import pytest
from msgspec.structs import replace

from specviz.errors import BadTrace
from specviz.trace import store, wire
from specviz.trace.schema import Note
from tests.support.traces.samples import METHODS, sample_trace


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("modality", ["text", "image"])
def test_a_sample_of_every_method_comes_back_from_disk(method, modality, tmp_path):
    trace = sample_trace(method=method, modality=modality)
    store.write(trace, tmp_path / "run.spectrace.jsonl")
    assert store.read(tmp_path / "run.spectrace.jsonl") == trace


def test_a_step_of_24_nodes_takes_at_most_2500_bytes():
    steps = [step for step in sample_trace(200, notes=False).steps if len(step.nodes) == 24]
    assert len(steps) > 3
    assert max(len(wire.line(step, 150).encode()) for step in steps) <= 2500


def test_numbers_keep_five_digits_and_trailing_nulls_are_cut():
    trace = sample_trace(1)
    node = replace(trace.steps[0].nodes[1], p=0.123456789, q=1.23456789e-7, threshold=None, draw=None)
    step = replace(trace.steps[0], cut=None, notes=(), nodes=(trace.steps[0].nodes[0], node, *trace.steps[0].nodes[2:]))
    written = json.loads(wire.line(step, 1))
    assert not {"cut", "notes"} & set(written)
    assert written["nodes"][1] == [0, node.token, node.text, 1.2346e-07, 0.12346, node.status]


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
def test_a_number_that_is_not_finite_is_refused_with_its_step(number):
    step = sample_trace(3).steps[2]
    broken = replace(step, nodes=(replace(step.nodes[0], p=number), *step.nodes[1:]))
    with pytest.raises(BadTrace, match="Step 2 cannot be written.* NaN or infinite.*float32"):
        wire.line(broken, 3)


def test_a_note_that_is_no_json_is_refused():
    circle = {}
    circle["again"] = circle
    for data in ({"x": object()}, {"x": {1, 2}}, circle):
        with pytest.raises(BadTrace, match="Step 0 cannot be written"):
            wire.line(replace(sample_trace(1).steps[0], notes=(Note("odd", data),)), 1)


SEPARATED = "one\u2028two\u2029three\x85four\r\nfive\x00"


@pytest.mark.parametrize(("prompt", "read"), [("a\ud83cb", "a\ufffd\ufffd\ufffdb"), (SEPARATED, SEPARATED)])
def test_half_a_character_is_replaced_and_line_separators_do_not_split_a_line(prompt, read):
    trace = sample_trace(1)
    assert store.read(store.text(replace(trace, run=replace(trace.run, prompt=prompt)))).run.prompt == read


def test_a_line_too_long_to_be_read_is_not_written():
    trace = sample_trace(1)
    with pytest.raises(BadTrace, match="the maximum length of a line is"):
        wire.line(replace(trace.run, prompt="x" * wire.MAX_LINE), 0)


def test_a_second_end_supersedes_the_first():
    trace = sample_trace(3, baseline=False)
    later = sample_trace(3, baseline=True).end
    writer = wire.TraceWriter()
    text = "\n".join(writer.add(record) for record in (trace.run, *trace.steps, trace.end, later))
    assert store.read(text).end == later
