"""The story's numbers against the record of the run that it tells, and the page's own metrics."""

import re

import pytest

from specviz.paths import ASSETS
from specviz.trace import store
from specviz.trace.schema import ACCEPTED, PRUNED, REJECTED
from specviz.viewer import bundle

WEIGHTS = 134_515_008


@pytest.fixture(scope="module")
def trace():
    return store.read(ASSETS / "traces" / f"{bundle.STORY_RUN}.spectrace.jsonl.gz")


@pytest.fixture(scope="module")
def alone(trace):
    return trace.baseline


@pytest.fixture(scope="module")
def told(node):
    """The numbers of the whole run, and of the round that is told."""
    body = """
    const { RUN, WEIGHTS } = modules["story/recorded"];
    const { STEP, ofRun, ofRound } = modules["story/numbers"];
    const read = feed();
    read.accept(RUN);
    return { step: STEP, ...ofRun(read.trace, WEIGHTS), ...ofRound(read.trace) };
    """
    return node(body)


def test_the_bill_is_that_of_the_record(told, trace, alone):
    spent = {
        phase: sum(getattr(step.time, phase) for step in trace.steps) / len(trace.steps) for phase in ("draft", "verify", "total")
    }
    assert (told["tokens"], told["rounds"]) == (len(alone.token_ns), len(trace.steps)) == (151, 29)
    assert told["tau"] == pytest.approx(sum(len(step.emitted) for step in trace.steps) / len(trace.steps))
    assert (told["draft"], told["pass"], told["round"]) == pytest.approx(tuple(spent.values()))
    assert told["rest"] == pytest.approx(spent["total"] - spent["draft"] - spent["verify"])
    assert told["alone"] == pytest.approx(sum(alone.token_ns) / 151)
    formula = told["tau"] * told["alone"] / (told["draft"] + told["pass"] + told["rest"])
    assert formula == pytest.approx(trace.end.metrics["speedup"], rel=1e-4)
    assert told["speedup"] == pytest.approx(sum(alone.token_ns) / sum(step.time.total for step in trace.steps))


def test_what_a_pass_costs_is_that_of_the_record(told, trace):
    """Every pass has as many rows as the one that is told, or its mean would not be the price of so many."""
    assert {step.verified + 1 for step in trace.steps} == {step.padded for step in trace.steps} == {told["rows"]} == {23}
    assert told["each"] == pytest.approx((told["pass"] - told["alone"]) / 22)
    assert told["alone"] + 22 * told["each"] == pytest.approx(told["pass"])
    assert told["separate"] == pytest.approx(23 * told["alone"])
    assert told["doubled"] * told["each"] == pytest.approx(told["alone"])
    assert trace.run.dtype == "bfloat16" and (told["weights"], told["bytes"]) == (WEIGHTS, 2 * WEIGHTS)
    assert told["rate"] == pytest.approx(2 * WEIGHTS / told["alone"])


def test_the_round_that_is_told_has_what_its_chapters_say(told, trace, alone):
    step = trace.steps[told["step"]]
    last = step.path[-1]
    assert [step.nodes[node].status for node in step.path] == [ACCEPTED] * 4 and step.rule == "greedy"
    assert told["kept"] == [step.nodes[node].text for node in step.path] and told["last"] == step.nodes[last].text
    assert told["wrong"] == [node.text for node in step.nodes if node.parent == last and node.status == REJECTED]
    assert len(told["wrong"]) == 2 and told["bonus"] == step.bonus.text == told["odds"][0]["text"]
    assert [one["p"] for one in told["odds"]] == sorted((one["p"] for one in told["odds"]), reverse=True)
    assert told["others"] == pytest.approx(1 - sum(one["p"] for one in told["odds"]))
    assert told["sent"] == step.verified and told["weighed"] == step.considered == step.verified + step.pruned
    assert told["levels"] == max(d for d, node in zip(step.depths, step.nodes, strict=True) if node.status != PRUNED)
    assert (told["guessing"], told["verifying"]) == (step.time.draft, step.time.verify)
    written = "".join(piece for one in trace.steps[: told["step"]] for piece in one.pieces)
    assert (written + "".join(told["kept"])).endswith(told["before"]) and "\n" not in told["before"]
    assert alone.equal and trace.run.sampling.temperature == 0, "the chapters say: the same tokens, at temperature 0"


def test_its_roofline_is_that_of_the_laboratory(node):
    said = re.search(r"On paper an H100 computes (\d+) rows", bundle.script("story"))
    machines = node('return modules["play/machines"].MACHINES;')
    assert machines[4]["name"] == "h100" and machines[4]["curve"]["rows"][1] == int(said[1])


def test_published_peaks_make_rooflines_that_say_so(node):
    """A weight of 16 bits is two bytes to read and two operations a row: rows = FLOP/s ÷ bytes per second."""
    machines = {one["name"]: one for one in node('return modules["play/machines"].MACHINES;')}
    for name, flops, bandwidth in (("t4", 65e12, 0.32e12), ("h100", 989e12, 3.35e12), ("laptop", 3.6e12, 0.1e12)):
        one = machines[name]
        ridge = flops / bandwidth
        assert one["curve"] == {"rows": [1, round(ridge), 2 * round(ridge)], "cost": [1, 1, 2]}
        assert "roofline" in one["words"] and "not measured" in one["source"] and one["upto"] == 1
        assert f"= {round(ridge)} rows" in one["source"]
