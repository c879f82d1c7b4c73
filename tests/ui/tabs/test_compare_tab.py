"""Two runs beside each other: where their texts part, and what happens when one of them cannot be run."""

import gradio as gr
import pytest
from msgspec.structs import replace

from specviz.trace.schema import Trace
from specviz.ui.access import Caller
from specviz.ui.app_state import make
from specviz.ui.archive import Gallery
from specviz.ui.settings import Settings
from specviz.ui.tabs import compare_tab, events
from specviz.ui.tabs.compare_tab import CompareTab
from specviz.ui.tabs.run_tab import Runs, TextTab
from specviz.viewer import pair
from tests.support.fakes.ui import FakeEngine, Refused, app, asked, banners, gallery
from tests.support.traces.samples import sample_trace


def timed(trace, speedup, title, **run):
    """The trace as one that is so much faster than its autoregressive run, at temperature 0 unless said otherwise."""
    own = sum(step.time.total for step in trace.steps) / sum(len(step.emitted) for step in trace.steps)
    count = len(trace.end.baseline.token_ns)
    baseline = replace(trace.end.baseline, token_ns=(round(own * speedup),) * count)
    numbers = {**trace.end.metrics, "baseline_tokens_per_second": 40.0}
    warm = run.pop("temperature", 0.0)
    sampling = replace(trace.run.sampling, temperature=warm)
    return replace(
        trace,
        run=replace(trace.run, title=title, sampling=sampling, **run),
        end=replace(trace.end, metrics=numbers, baseline=baseline),
    )


def parted(trace):
    """The trace with another token on its fifth step, and where that stands."""
    step = trace.steps[4]
    steps = (*trace.steps[:4], replace(step, emitted=(1, *step.emitted[1:])), *trace.steps[5:])
    return replace(trace, steps=steps), sum(len(one.emitted) for one in trace.steps[:4])


PLAIN = sample_trace(10, method="token_recycling", baseline=True)


@pytest.mark.parametrize(
    ("speedups", "said"),
    [
        ((2.0, 3.4), "Right is 1.7× as fast as Left"),
        ((3.4, 2.0), "Left is 1.7× as fast as Right"),
        ((2.0, 2.05), "Right and Left are about equally fast"),
    ],
)
def test_the_headline_says_who_is_faster(speedups, said):
    left, right = (timed(PLAIN, speedup, title) for speedup, title in zip(speedups, ("Left", "Right"), strict=True))
    found = compare_tab.compare([(left, right)])
    assert (found.headline, found.text) == (said, "same text")
    assert found.speeds and [side.middle for side in found.speeds] == pytest.approx(speedups, rel=1e-4)
    assert "25.0 to 25.0 ms per token" in found.beside and "One run each" in found.beside


@pytest.mark.parametrize(
    ("rounds", "said"),
    [
        ([(2.0, 3.0), (2.2, 3.4)], "Right is 1.5× as fast as Left"),
        ([(2.0, 3.0), (3.1, 3.4)], "Right and Left are about equally fast"),
        ([(2.0, 2.1), (2.3, 2.0)], "Left and Right are about equally fast"),
        ([(2.0, 2.06), (2.01, 2.07)], "Right and Left are about equally fast"),
    ],
)
def test_several_rounds_have_a_range_and_doubt_where_ranges_meet(rounds, said):
    pairs = [(timed(PLAIN, left, "Left"), timed(PLAIN, right, "Right")) for left, right in rounds]
    found = compare_tab.compare(pairs)
    assert found.headline == said and "Measured alternately, 2 times each" in found.beside
    bars = compare_tab.race(*pairs[-1], found)
    low, high = sorted(left for left, _ in rounds)
    assert f"{(low + high) / 2:.2f}× ({low:.2f} to {high:.2f})" in bars and bars.count("<u ") == 2


def test_what_the_texts_share_depends_on_the_temperature_and_the_methods():
    other, before = parted(PLAIN)

    def said(rule="match", **run):
        left, right = (replace(trace, steps=[replace(step, rule=rule) for step in trace.steps]) for trace in (PLAIN, other))
        return compare_tab.compare([(timed(left, 2.0, "a", **run), timed(right, 3.0, "b", **run))]).text

    assert said() == f"same text up to token {before}, where rounding decides"
    assert said(temperature=0.7) == "same distribution"
    assert said("typical", temperature=0.7, exactness="relaxed") == "different distributions"
    assert said(temperature=0.7, exactness="relaxed") == "same distribution", "judged by the exact rule"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"prompt": "Something else."}, "Their prompts differ"),
        ({"target": "other", "dtype": "float64"}, "Their targets and number formats differ"),
        ({"temperature": 0.7}, "Their temperatures differ"),
        ({"prompt": "a", "target": "b", "device": "c"}, "Their prompts, targets and devices differ"),
    ],
)
def test_runs_that_are_unlike_are_not_compared(changes, said):
    left, right = timed(PLAIN, 2.0, "a"), timed(PLAIN, 3.0, "b", **changes)
    found = compare_tab.compare([(left, right)])
    assert found.headline == said and found.speeds is None and not compare_tab.race(left, right, found)


def test_without_a_timed_baseline_no_speed_is_claimed():
    bare = replace(sample_trace(10, method="token_recycling", baseline=False), run=PLAIN.run)
    found = compare_tab.compare([(PLAIN, bare)])
    assert found.headline == "No speed to compare" and found.speeds is None


def test_a_run_that_remembers_the_prompt_says_so():
    left, right = timed(PLAIN, 2.0, "Fresh"), timed(PLAIN, 9.0, "Old hand")
    assert "Old hand had answered this prompt once before." in compare_tab.compare([(left, right)], (0, 1)).beside
    assert "had answered" not in compare_tab.compare([(left, right)]).beside


def test_the_tab_opens_on_a_gain():
    """Two shipped runs of one prompt, both faster than plain decoding, and one clearly faster than the other."""
    shipped = Gallery(Settings().traces)
    left, right = (shipped.get(name) for name in shipped.pair)
    found = compare_tab.compare([(left.trace, right.trace)], (left.rehearsals, right.rehearsals))
    assert min(side.middle for side in found.speeds) > 1 and "× as fast as" in found.headline
    assert found.text.startswith("same")


def made(shared):
    with gr.Blocks(), gr.Tab() as opened:
        return CompareTab(shared, opened, TextTab(shared))


def live(tab, names=("stand", "prompt_lookup"), runs=None, **changes):
    return tab.running(Caller("a"), asked(tab.shared, **changes), names, [] if runs is None else runs)


def chosen(tab, updates):
    """The runs that are chosen at both sides, if that is changed."""
    left, right = tab.sides
    return (updates[left].value, updates[right].value) if left in updates else None


def is_idle(tab, updates):
    return bool(updates[tab.run].value == "Run both")


def test_rounds_take_turns_and_remember_nothing(tmp_path, monkeypatch):
    engine, compared = FakeEngine(), []
    monkeypatch.setattr(compare_tab, "banner", lambda rounds, rehearsals: compared.append(len(rounds)) or "judged")
    shared = app(tmp_path, engine)
    memories = []
    stream = shared.live.stream

    def watched(request, memory, *more):
        memories.append(memory)
        return stream(request, memory, *more)

    shared.live.stream = watched
    tab, runs = made(shared), Runs()
    changes = list(live(tab, runs=runs, method="eagle"))
    assert [one.method for one in engine.asked] == ["stand", "prompt_lookup"] * compare_tab.ROUNDS
    assert all(one.baseline for one in engine.asked) and len(set(map(id, memories))) == len(memories)
    recorded = shared.archive.trace("stand").run
    assert {(one.max_new_tokens, one.seed) for one in engine.asked} == {(recorded.max_new_tokens, recorded.sampling.seed)}
    names = [name for _, name in runs]
    assert len(set(names)) == 2 * compare_tab.ROUNDS and chosen(tab, changes[-2]) == (names[-2], names[-1])
    assert compared[-1] == compare_tab.ROUNDS and changes[-2][tab.verdict] == "judged" and is_idle(tab, changes[-1])


def test_the_table_is_safe_and_knows_what_is_missing():
    left = sample_trace(4, baseline=False)
    named = replace(left, run=replace(left.run, title="<b>x</b>"))
    made = pair.table(named, Trace(left.run, ()), compare_tab.ROWS)
    assert "&lt;b&gt;" in made and "<b>" not in made and "–" in made


def test_both_recorded(tmp_path):
    tab = made(app(tmp_path))
    updates = tab.both(("stand", "prompt_lookup"), [])
    assert chosen(tab, updates) == ("stand", "prompt_lookup") and all(updates[stage] for stage in tab.stages)
    assert "There is no recorded run" in banners(tab, [tab.both(("stand", "nope"), [])])[0]


def test_the_stages_say_that_runs_are_to_come_and_nothing_of_the_kind_without_any(tmp_path):
    tab = made(app(tmp_path))
    assert all('"message":"Opening the run"' in stage.value for stage in tab.stages)
    updates = tab.both(("", ""), [])
    assert [updates[stage] for stage in tab.stages] == ["", ""]


def test_a_stop_ends_both(tmp_path):
    tab = made(app(tmp_path, FakeEngine(steps=200, pace=0.02)))
    left, right = tab.stages
    changes = []
    for updates in live(tab, ("stand", "stand")):
        changes.append(updates)
        if '"follow":true' in updates.get(left, ""):
            events.stop(tab.shared, "a")
    assert is_idle(tab, changes[-1])
    waited, restored = (updates[right] for updates in changes if right in updates)
    assert compare_tab.WAITS in waited and restored == tab.shared.archive.feed("stand")
    names = next(pair for updates in changes if (pair := chosen(tab, updates)))
    assert tab.shared.archive.trace(names[0]).end is not None and names[1] == "stand"


def test_what_was_compared_comes_back_when_a_run_cannot_begin(tmp_path):
    tab = made(app(tmp_path, FakeEngine(breaks=Refused("No model; fetch one."))))
    changes = list(live(tab))
    (back,) = [updates for updates in changes if banners(tab, [updates])]
    assert "No model; fetch one." in banners(tab, [back])[0]
    assert chosen(tab, back) == ("stand", "prompt_lookup") and back[tab.stages[0]] and is_idle(tab, changes[-1])


def test_a_bad_prompt_leaves_both_stages_alone(tmp_path):
    tab = made(app(tmp_path))
    changes = list(live(tab, prompt=""))
    assert not any(stage in updates for updates in changes for stage in tab.stages)
    assert "prompt is empty" in banners(tab, changes)[0]


def test_a_run_is_made_anew_with_its_own_parameters(tmp_path):
    engine = FakeEngine()
    shared = app(tmp_path, engine)
    run = shared.archive.trace("stand").run
    vars(shared.archive.gallery.get("stand"))["run"] = replace(run, parameters={**run.parameters, "nodes": 7})
    list(live(made(shared), ("stand", "stand"), method="prompt_lookup"))
    asked_for = engine.asked[0]
    assert asked_for.method == "stand" and vars(asked_for.parameters)["nodes"] == 7


def test_a_picture_is_not_run_as_text(tmp_path):
    tab = made(make(Settings(traces=gallery(tmp_path / "traces", ("stand", "lantern_pp"))), FakeEngine()))
    changes = list(live(tab, ("stand", "lantern_pp")))
    assert "generates no text" in banners(tab, changes)[0] and not any(tab.stages[0] in updates for updates in changes)
