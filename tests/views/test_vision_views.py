"""Views of runs about pictures: what they show, that they stay small, and that a damaged note is told as such."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from specviz import views
from specviz.errors import BadInput, BadTrace
from specviz.trace import store
from specviz.trace.schema import Note, Trace
from specviz.views.theme import THEMES
from tests.views.test_every_view import HOSTILE, _font_sizes
from tests.views.vision_notes import GRID, KEPT, vision_trace

CASES = [
    ("picture", "dream", 0), ("visual_tokens", "dream", 2), ("visual_tokens", "hivis", 0), ("entropy_map", "dream", 0),
    ("entropy_map", "dream", 3), ("residuals", "hivis", 4), ("residuals", "compared", 4), ("residuals", "hivis", 0),
]  # fmt: skip


def changed(trace: Trace, index: int, kind: str, **data: Any) -> Trace:
    step = trace.steps[index]
    notes = tuple(Note(one.type, {**one.data, **data}) if one.type == kind else one for one in step.notes)
    return replace(trace, steps=(*trace.steps[:index], replace(step, notes=notes), *trace.steps[index + 1 :]))


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize(("kind", "method", "index"), CASES)
def test_the_same_trace_gives_the_same_small_picture(kind: str, method: str, index: int, theme: str) -> None:
    made = views.NOTES[kind](vision_trace(method), index, theme).to_json()
    assert made == views.NOTES[kind](vision_trace(method), index, theme).to_json()
    assert len(made) < 30_000
    found = json.loads(made)
    assert min(_font_sizes(found)) >= 11
    assert {one["type"] for one in found["data"]} <= {"scatter", "bar"}
    assert THEMES[theme].ink in made and THEMES[theme].paper in made


def test_a_trace_with_pictures_comes_back_from_disk(tmp_path: Any) -> None:
    trace = vision_trace()
    store.write(trace, tmp_path / "seen.spectrace.jsonl")
    back = store.read(tmp_path / "seen.spectrace.jsonl")
    assert views.picture(back, 0).to_json() == views.picture(trace, 0).to_json()


def test_the_picture_lies_under_its_patches() -> None:
    made = views.picture(vision_trace(), 0)
    image = made.layout.images[0]
    assert image.source.startswith("data:image/png;base64,iVBOR")
    assert (image.sizex, image.sizey, list(made.layout.yaxis.range)) == (32, 32, [32, 0])
    assert made.layout.shapes[0].path.count("M") == GRID * GRID
    assert "4 × 4 patches" in made.layout.title.text and "4.20 ms" in made.layout.title.subtitle.text


def test_both_prefills_and_the_hidden_patches_are_told() -> None:
    made = views.visual_tokens(vision_trace("dream"), 1)
    trace = vision_trace("dream")
    length = len(trace.run.prompt_pieces)
    assert f"target {length} tokens, drafter {length - 8}" in made.layout.title.text
    marks = {(one.name, one.y[0]): list(one.x) for one in made.data if one.x}
    assert marks["hidden from the drafter", 0.0] == [place for place in range(2, 18) if place not in KEPT]
    assert marks["patch of the picture", 0.0] == KEPT and len(marks["patch of the picture", 1.0]) == 16
    covered = next(one for one in made.layout.shapes if one.opacity)
    assert covered.path.count("M") == 8
    assert "never sees the picture" in views.visual_tokens(vision_trace("hivis"), 0).layout.title.subtitle.text


def test_arcs_follow_the_accepted_path() -> None:
    trace = vision_trace("dream")
    index = max(range(len(trace.steps)), key=lambda at: len(trace.steps[at].path))
    step, made = trace.steps[index], views.entropy_map(trace, index)
    lines = [one for one in made.data if one.mode == "lines"]
    assert len(lines) == min(4, len(step.path) + 1)
    # Place 3 is the second patch of the first row: its middle is at 12, 4 of 32 pixels.
    assert (lines[0].x[1], lines[0].y[1]) == (12, 4)
    assert len(made.data[0].y) == len(trace.run.prompt_pieces) - 1
    assert views.entropy_map(trace, 3).data[0].y == made.data[0].y, "later steps draw the first one's map"


def test_levels_are_compared_only_where_they_were() -> None:
    both = views.residuals(vision_trace("compared"), 3)
    assert [one.name for one in both.data][:2] == ["with its vectors", "without"]
    assert list(both.data[0].y) == [4 / 5, 3 / 4, 0.0] and list(both.data[1].y) == [1 / 5, 0.0, 0.0]
    alone = views.residuals(vision_trace("hivis"), 3)
    assert [one.name for one in alone.data][:1] == ["kept by the target"] and len(alone.data) == 2
    assert list(alone.data[1].y) == [0.4, 1.2, 1.9]


@pytest.mark.parametrize(("kind", "method", "index"), CASES[1:5])
def test_token_text_stays_text(kind: str, method: str, index: int) -> None:
    trace = vision_trace(method)
    wicked = tuple(HOSTILE[place % len(HOSTILE)] for place in range(len(trace.run.prompt_pieces)))
    steps = tuple(
        replace(step, nodes=tuple(replace(node, text=HOSTILE[at % len(HOSTILE)]) for at, node in enumerate(step.nodes)))
        for step in trace.steps
    )
    made = views.NOTES[kind](replace(trace, run=replace(trace.run, prompt_pieces=wicked), steps=steps), index).to_json()
    for mark in ("<img", "<a ", "<script", "<h1"):
        assert mark not in made


@pytest.mark.parametrize(
    ("kind", "index", "data", "said"),
    [
        ("picture", 0, {"png": ["javascript:alert(1)"]}, "base64"),
        ("picture", 0, {"png": "aaaa"}, "base64"),
        ("picture", 0, {"png": []}, "base64"),
        ("picture", 0, {"size": [0, 5]}, "width and a height"),
        ("picture", 0, {"grid": [4000, 4000]}, "grid of patches"),
        ("picture", 0, {"boxes": [[1, 2]]}, "4 numbers"),
        ("picture", 0, {"spans": [[0, 1 << 20]]}, "first place"),
        ("visual_tokens", 1, {"kept": [[1]]}, "first place"),
        ("visual_tokens", 1, {"target": -4}, "whole number"),
        ("entropy_map", 0, {"chosen": ["x"]}, "whole numbers"),
        ("entropy_map", 1, {"looks": [5]}, "list of objects"),
    ],
)
def test_a_damaged_note_is_told_as_such(kind: str, index: int, data: dict[str, Any], said: str) -> None:
    with pytest.raises(BadTrace, match=said):
        views.NOTES[kind](changed(vision_trace(), index, kind, **data), index)


def test_a_damaged_tally_is_told_as_such() -> None:
    with pytest.raises(BadTrace, match="list of 3 counts"):
        views.residuals(changed(vision_trace("hivis"), 1, "residuals", kept=[1]), 1)
    with pytest.raises(BadInput, match="has no note 'picture'"):
        views.picture(vision_trace(), 2)


def test_a_run_that_brought_no_picture_still_shows_its_tokens() -> None:
    trace = vision_trace()
    steps = tuple(
        replace(step, notes=tuple(one for one in step.notes if one.type != "picture")) for step in trace.steps
    )
    for kind in ("visual_tokens", "entropy_map"):
        made = views.NOTES[kind](replace(trace, steps=steps), 1)
        assert not made.layout.images and made.data
