"""Two runs beside each other: where their texts part, and what happens when one of them cannot be run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from specviz.trace.schema import Trace
from specviz.ui import comparing
from specviz.ui.comparing import Change
from specviz.ui.stream.presence import Caller
from specviz.ui.tabs import text_run
from tests.support.fakes.ui import FakeEngine, Refused, app, asked
from tests.support.traces.samples import sample_trace


def test_texts_part_at_the_first_different_token() -> None:
    left = sample_trace(10, method="stand")
    step = left.steps[4]
    other = replace(left, steps=(*left.steps[:4], replace(step, emitted=(1, *step.emitted[1:])), *left.steps[5:]))
    before = sum(len(one.emitted) for one in left.steps[:4])
    assert comparing.first_divergence(left, left) is None
    assert comparing.first_divergence(left, other) == before
    assert f"output token {before + 1}" in comparing.sentence(left, other)
    assert "the same text" in comparing.sentence(left, replace(left, steps=left.steps[:3]))


def test_runs_of_other_prompts_are_not_compared() -> None:
    left = sample_trace(4)
    other = replace(left, run=replace(left.run, prompt="Something else."))
    assert "do not compare" in comparing.sentence(left, other)


def test_the_table_is_safe_and_knows_what_is_missing() -> None:
    left = sample_trace(4, baseline=False)
    named = replace(left, run=replace(left.run, title="<b>x</b>"))
    made = comparing.table(named, Trace(left.run, ()))
    assert "&lt;b&gt;" in made and "<b>" not in made and "–" in made


def test_both_recorded(tmp_path: Path) -> None:
    change = comparing.both(app(tmp_path), "stand", "prompt_lookup")
    assert change.names == ("stand", "prompt_lookup") and change.left and change.right
    assert "There is no recorded run" in (comparing.both(app(tmp_path), "stand", "nope").banner or "")


def test_both_live_use_one_prompt_and_seed(tmp_path: Path) -> None:
    shared = app(tmp_path)
    changes = list(comparing.live(shared, Caller("a"), asked(shared, "stand"), "prompt_lookup", ("", "")))
    names = next(change.names for change in changes if change.names)
    left, right = (shared.archive.trace(name) for name in names)
    assert (left.run.method, right.run.method) == ("stand", "prompt_lookup")
    assert left.run.prompt == right.run.prompt and left.run.sampling.seed == right.run.sampling.seed
    assert changes[0].running is True and changes[-1].running is False


def test_a_stop_ends_both(tmp_path: Path) -> None:
    shared = app(tmp_path, FakeEngine(steps=200, pace=0.02))
    changes: list[Change] = []
    for change in comparing.live(shared, Caller("a"), asked(shared, "stand"), "prompt_lookup", ("stand", "stand")):
        changes.append(change)
        if change.left and '"kind":"step"' in change.left:
            text_run.stop(shared, "a")
    assert changes[-1].running is False and not any(change.right for change in changes)
    names = next(change.names for change in changes if change.names)
    assert shared.archive.trace(names[0]).end is not None and names[1] == "stand"


def test_what_was_compared_comes_back_when_a_run_cannot_begin(tmp_path: Path) -> None:
    shared = app(tmp_path, FakeEngine(breaks=Refused("No model; fetch one.")))
    before = ("stand", "prompt_lookup")
    changes = list(comparing.live(shared, Caller("a"), asked(shared), "prompt_lookup", before))
    back = next(change for change in changes if change.banner)
    assert back.banner == "No model; fetch one." and back.names == before and back.left
    assert changes[-1].running is False


def test_a_bad_prompt_leaves_both_stages_alone(tmp_path: Path) -> None:
    shared = app(tmp_path)
    changes = list(comparing.live(shared, Caller("a"), asked(shared, prompt=""), "stand", ("stand", "stand")))
    assert all(change.left is None and change.right is None for change in changes)
    assert any("prompt is empty" in (change.banner or "") for change in changes)


def test_the_first_pair_has_one_prompt_where_there_is_such_a_pair(tmp_path: Path) -> None:
    gallery = app(tmp_path).archive.gallery
    assert comparing.first_pair(gallery) == ("token_recycling", "prompt_lookup")
    odd = gallery.recordings["prompt_lookup"]
    vars(odd)["run"] = replace(odd.run, prompt="Another.")
    assert comparing.first_pair(gallery) == ("token_recycling", "stand")
    gallery.recordings.clear()
    assert comparing.first_pair(gallery) == ("", "")
