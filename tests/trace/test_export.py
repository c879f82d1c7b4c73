"""Exports open in the tools they are for, and say the same as the trace they come from."""

import io
import json
from collections import defaultdict

import networkx as nx
import pytest
from msgspec.structs import replace

from specviz.trace import export
from specviz.trace.schema import Nanoseconds, Node
from tests.support.traces.samples import METHODS, sample_trace


def perfetto(trace):
    """The trace events of an export."""
    return json.loads(export.content(trace, "perfetto"))["traceEvents"]


@pytest.mark.parametrize("method", METHODS)
def test_perfetto_events_never_overlap_on_a_track(method):
    lanes = defaultdict(list)
    for event in perfetto(sample_trace(40, method=method)):
        if event["ph"] == "X":
            assert event["dur"] > 0
            start = round(event["ts"] * 1000)
            lanes[event["tid"]].append((start, start + round(event["dur"] * 1000)))
    assert len(lanes) >= 6
    for spans in lanes.values():
        spans.sort()
        assert all(one[1] <= other[0] for one, other in zip(spans, spans[1:], strict=False))


def test_both_runs_start_on_one_clock_and_end_with_their_times():
    trace = sample_trace()
    ends = defaultdict(float)
    for event in perfetto(trace):
        if event["ph"] == "X":
            ends[event["pid"]] = max(ends[event["pid"]], event["ts"] + event["dur"])
    ours = trace.end.prefill_ns + sum(step.time.total for step in trace.steps)
    plain = trace.end.baseline.prefill_ns + trace.end.baseline.total_ns
    assert ends == {1: pytest.approx(ours / 1000), 2: pytest.approx(plain / 1000)}
    starts = [event["ts"] for event in perfetto(trace) if event["name"] == "prefill"]
    assert starts == [0, 0]


def test_perfetto_takes_a_run_without_end_or_baseline_or_time():
    trace = sample_trace(3, ended=False)
    still = replace(trace, steps=tuple(replace(step, time=Nanoseconds()) for step in trace.steps))
    assert {event["pid"] for event in perfetto(trace)} == {1}
    assert not [event for event in perfetto(still) if event["ph"] == "X"]


def test_graphml_is_read_back_by_networkx_with_the_same_tree():
    trace = sample_trace(method="relaxed")
    for step in trace.steps:
        found = nx.parse_graphml(export.content(trace, "graphml", step.index))
        made = export.graph(step)
        assert set(found.edges) == set(made.edges) and nx.is_arborescence(found)
        for name, told in made.nodes(data=True):
            assert found.nodes[name] == pytest.approx(told)
        assert found.graph["rule"] == step.rule


def test_node_link_json_is_read_back_by_networkx():
    trace = sample_trace(modality="image")
    told = json.loads(export.content(trace, "nodelink", 2))
    assert "edges" in told and "links" not in told
    found = nx.node_link_graph(told, edges="edges")
    assert nx.utils.graphs_equal(found, export.graph(trace.steps[2]))
    assert len(found) == len(trace.steps[2].nodes) + 1
    assert {"row", "column"} <= set(found.nodes["1"])


def test_a_token_that_xml_cannot_hold_is_still_exported():
    trace = sample_trace(1)
    nasty = ("\x00\x08\r\ufffe<b>&\"'", "", " ", "\n\t", "]]>", "🌅\u2028")
    nodes = [trace.steps[0].nodes[0], *(Node(0, place, text, status="rejected") for place, text in enumerate(nasty))]
    step = replace(trace.steps[0], nodes=tuple(nodes), path=(), bonus=None, emitted=(), pieces=())
    found = nx.read_graphml(io.BytesIO(export.content(replace(trace, steps=(step,)), "graphml", 0).encode()))
    texts = [found.nodes[str(place)].get("text") or "" for place in range(1, 7)]
    assert texts[0] == "\\x00\\x08\\x0D\\xFFFE<b>&\"'"
    assert texts[4:] == ["]]>", "🌅\u2028"]


def test_the_summary_has_vllms_names_and_definitions():
    trace = sample_trace(30, method="prompt_lookup")
    found = export.summary(trace)
    steps = [step for step in trace.steps if step.verified]
    accepted, drafted = sum(step.accepted for step in steps), sum(step.verified for step in steps)
    assert found["mean_acceptance_length"] == pytest.approx(1 + accepted / len(steps), rel=1e-4)
    assert found["draft_acceptance_rate"] == pytest.approx(accepted / drafted, rel=1e-4)
    assert sum(found["acceptance_histogram"]) == found["num_spec_steps"] == len(steps)
    assert len(found["acceptance_histogram"]) == found["num_spec_tokens"] + 1
    assert sum(j * n for j, n in enumerate(found["acceptance_histogram"])) == found["num_accepted_draft_tokens"]
    assert found["num_draft_tokens"] == sum(found["per_step_drafted"]) == drafted
    assert sum(found["per_step_accepted"]) == accepted
    for length, counts in found["acceptance_histogram_by_draft_length"].items():
        assert len(counts) == int(length) + 1
        assert sum(counts) == found["per_step_drafted"].count(int(length))  # a chain's depth is its length


def test_drafted_tokens_that_only_a_count_tells_of_are_as_deep_as_a_chain():
    trace = sample_trace(method="prompt_lookup")
    step = next(step for step in trace.steps if step.verified)
    found = export.summary(replace(trace, steps=(replace(step, nodes=step.nodes[:1], path=(), verified=7, padded=8),)))
    assert found["per_step_depth"] == [7] and found["num_spec_tokens"] == 7


def test_the_summary_of_a_run_that_drafted_nothing_has_no_rates():
    for trace in (sample_trace(method="autoregressive"), sample_trace(0), sample_trace(0, ended=False)):
        found = export.summary(trace)
        assert found["mean_acceptance_length"] is None and found["draft_acceptance_rate"] is None
        assert found["acceptance_histogram"] == [0] and found["num_spec_steps"] == 0
