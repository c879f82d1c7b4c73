"""One verdict on a run wherever it is printed: on all recordings, and on runs whose lengths and promises differ."""

import json
from functools import cache
from pathlib import Path

import pytest
from msgspec.structs import replace

from specviz.figures.explain import explain
from specviz.trace import metrics, store
from specviz.trace.schema import Baseline, Divergence
from specviz.ui import lessons
from specviz.ui.widgets import panels
from tests.support.traces.samples import lines, sample_trace

TRACES = Path(__file__).resolve().parents[2] / "assets" / "traces"
SAID = """
const verdict = modules["run/verdict"], lanes = modules["run/raceLanes"], { gain } = modules["run/lanes"];
const { Header } = modules["stage/header"];
return given.map((text) => {
  const one = feed();
  one.accept(text);
  const { trace } = one;
  const found = verdict.of(trace);
  const promise = verdict.promise(trace);
  const [badge] = Header.prototype.exactness.call({ promise }, trace, trace.run);
  const race = lanes.lineUp([trace]);
  const places = lanes.places(race);
  const plain = verdict.baselineTimes(trace.end && trace.end.baseline);
  const stage = { u: 1, last: 1, total: trace.ends.at(-1) };
  const view = { at: { width: 900 }, stage, plain, verdict: found, zoom: { factor: 1 }, x: (ns) => ns / 1e7 };
  const card = gain(view);
  return { found, promise, parting: verdict.parting(trace), texts: verdict.texts(trace), badge, card,
    results: race.map((lane, at) => lanes.result(lane, places[at])), places };
});
"""


@cache
def recordings():
    return {path.name.split(".")[0]: store.read(path) for path in sorted(TRACES.glob("*.gz"))}


def against(ms, tokens, **run):
    """A run of 16 steps against ``tokens`` baseline tokens, each ``ms`` times as long as one of the run's own."""
    trace = sample_trace(16)
    written = sum(len(step.emitted) for step in trace.steps)
    own = sum(step.time.total for step in trace.steps) / written
    parts = Divergence(3, 0.0)
    baseline = Baseline((round(own * ms),) * tokens, 1, False, parts, pieces=("x",) * (tokens - 3))
    return replace(trace, run=replace(trace.run, **run), end=replace(trace.end, baseline=baseline))


LENGTHS = [against(pace, tokens) for pace in (0.5, 0.96, 1.0, 1.04, 2.37) for tokens in (5, 20, 60, 400)]


def test_python_and_script_come_to_one_verdict(node):
    traces = [*recordings().values(), *LENGTHS]
    for trace, said in zip(traces, node(SAID, ["\n".join(lines(trace)) for trace in traces]), strict=True):
        found, name = metrics.compared_speed(trace), trace.run.title
        assert (said["promise"], said["parting"]) == (metrics.promise(trace), metrics.parting(trace)), name
        if found is None:
            assert said["found"] is None and said["card"] is None and said["results"] == []
            continue
        assert said["found"]["speedup"] == pytest.approx(found.speedup) and said["found"]["word"] == found.word, name
        spent = sum(step.time.total for step in trace.steps)
        assert said["found"]["saved"] == pytest.approx(spent * (found.speedup - 1), abs=1), name


def test_race_card_panel_and_sentence_print_the_same(node):
    traces = [trace for trace in [*recordings().values(), *LENGTHS] if metrics.compared_speed(trace)]
    for trace, said in zip(traces, node(SAID, ["\n".join(lines(trace)) for trace in traces]), strict=True):
        found = metrics.compared_speed(trace)
        number, level = f"{found.speedup:.2f}×", found.word == "level"
        run, alone = said["results"]
        assert number in run and number in said["card"]["label"], trace.run.title
        assert ("saved" in said["card"]["label"], "lost" in said["card"]["label"]) == (
            found.word == "faster", found.word == "slower",
        )  # fmt: skip
        assert said["places"] == {"faster": [1, 2], "slower": [2, 1], "level": [1, 1]}[found.word]
        assert (alone == "level") is level and ("level" in run) is level
        word = {"level": "no faster"}.get(found.word, found.word)
        assert f"Why {word} " in panels.speed_explanation(trace) and f"<b>{number}</b> measured" in panels.speed_explanation(
            trace
        )
        verdict = next(term for term in explain(trace) if term.name == "verdict")
        assert trace.run.method == "autoregressive" or (verdict.sentence.startswith(found.sentence) and number in found.sentence)
        assert lessons.facts(trace, None)["speedup"] in number
        if trace.run.title in {one.run.title for one in recordings().values()}:
            assert trace.end.metrics["speedup"] == pytest.approx(found.speedup, rel=1e-3)


def test_only_where_both_wrote_as_much_is_the_gap_between_the_lanes_what_was_saved(node):
    same, longer = node(SAID, ["\n".join(lines(trace)) for trace in (recordings()["eagle2"], recordings()["stand"])])
    assert same["card"]["drawn"] and not longer["card"]["drawn"] and longer["card"]["label"].endswith("per token")


def test_a_run_that_parts_from_its_baseline_says_so_wherever_equality_is_spoken_of(node):
    traces = recordings()
    said = dict(zip(traces, node(SAID, ["\n".join(lines(trace)) for trace in traces.values()]), strict=True))
    parted = {name for name, trace in traces.items() if metrics.parting(trace)}
    assert {"falcon", "gto", "polybasic"} <= parted
    for name in parted:
        where = metrics.parting(traces[name])
        assert said[name]["badge"] == f"exact in float32 · diverges {where}"
        assert where.removeprefix("after ") in said[name]["texts"]
        term = next(term for term in explain(traces[name]) if term.name == "divergence")
        assert where in term.sentence
    assert said["falcon"]["badge"] == "exact in float32 · diverges after token 26, where two logits are 0.25 apart"
    assert said["eagle2"]["badge"] == "exact" and said["stand"]["badge"] == "exact in distribution"


def test_an_old_record_without_the_gap_says_the_position_alone(node):
    trace = recordings()["falcon"]
    bare = replace(trace, end=replace(trace.end, baseline=replace(trace.end.baseline, first_divergence=Divergence(26))))
    assert metrics.parting(bare) == "after token 26"
    assert node(SAID, ["\n".join(lines(bare))])[0]["badge"] == "exact in float32 · diverges after token 26"


def test_a_badge_never_contradicts_itself_and_is_never_cut(node):
    traces = recordings()
    said = dict(zip(traces, node(SAID, ["\n".join(lines(trace)) for trace in traces.values()]), strict=True))
    assert said["medusa"]["badge"] == "exact", "its rule relaxes above temperature 0 only"
    for name, trace in traces.items():
        badge = said[name]["badge"]
        assert "…" not in badge and ("relaxed" in badge) == (metrics.promise(trace) == "relaxed")
        assert not ("relaxed" in badge and "exact" in badge.lower())
        assert "relaxed" not in badge or trace.run.bound.startswith(badge.removeprefix("relaxed · "))


def test_no_lesson_speaks_of_equal_text_whose_run_diverges_from_plain_decoding():
    folder = TRACES.parent / "lessons"
    for path in sorted(folder.glob("*.json")):
        lesson = json.loads(path.read_text(encoding="utf-8"))
        trace = recordings().get(lesson.get("trace", ""))
        for page in lesson["pages"]:
            assert not (trace and metrics.parting(trace) and "token for token" in json.dumps(page).lower()), path.name
