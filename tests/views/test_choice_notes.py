"""The stories of choices: the river of chances, ghosts and queue; tokens a pass by length and which half drafted."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from specviz import views
from specviz.errors import BadTrace
from specviz.trace import lengths
from specviz.trace.schema import Trace
from tests.drafters.tiny_arms import compose
from tests.exactness.test_last_state import TREE as SMALL
from tests.exactness.test_last_state import compose as compose_last
from tests.exactness.test_text_methods import GREEDY, PROMPT
from tests.length_curves import MADE_UP
from tests.tiny import Letters, decode, tiny_target
from tests.views.choice_notes import CHOICE
from tests.views.made import SILENT, TREE, hovers, trace, with_note
from tests.views.test_every_view import hostile


def noted(kind: str, **change: object) -> Trace:
    return trace(with_note(TREE, kind, CHOICE[kind] | change))


def test_arms_name_who_drafted_and_who_would_have_brought_more() -> None:
    figure = views.arms(noted("arms", expected=[1.5, 2.75, 1.0]), 0)
    assert figure.layout.title.text == "Step 1 · code drafted with chance 0.70, 2 accepted"
    said = figure.layout.title.subtitle.text
    assert said == "maths would have emitted most along this text: 2.75 tokens; 2 starts of a chain not judged yet"
    assert any(one == "maths: accepted with chance 0.50" for one in hovers(figure))
    assert any(one == "a chain from place 14: 2 of 4 laws known" for one in hovers(figure))


def test_what_drafted_is_filled_and_ghosts_are_hollow_and_as_large_as_their_chance() -> None:
    figure = views.arms(noted("arms"), 0)
    marks = {one.name: one for one in figure.data if one.name in ("drafted", "would have drafted")}
    assert list(marks["drafted"].y) == [0, 0, 0] and list(marks["would have drafted"].y) == [1]
    assert marks["would have drafted"].marker.color == "rgba(0,0,0,0)" != marks["drafted"].marker.color
    large, _, small = marks["drafted"].marker.size
    assert large > 2 * small


def test_the_river_flows_over_all_steps_and_adds_up_to_one() -> None:
    moved = with_note(TREE, "arms", CHOICE["arms"] | {"chances": [0.2, 0.3, 0.5], "drafted": 2})
    figure = views.arms(trace(with_note(TREE, "arms", CHOICE["arms"]), moved, TREE), 1)
    bands = [one for one in figure.data if one.type == "scatter" and one.stackgroup]
    assert [one.name for one in bands] == ["code", "maths", "copy"]
    assert [sum(one.y[at] for one in bands) for at in (0, 1)] == pytest.approx([1, 1])
    assert list(bands[2].y) == [0.05, 0.5] and list(bands[0].x) == [1, 2]
    assert len({(one.line.color, one.line.dash) for one in bands}) == 3


def test_a_bandits_step_says_that_nobody_asked_the_others() -> None:
    blind = {key: CHOICE["arms"][key] for key in ("names", "chances", "drafted", "loss", "ahead")} | {"informed": False}
    said = views.arms(trace(with_note(TREE, "arms", blind)), 0).layout.title.subtitle.text
    assert "learns from its own rounds alone" in said
    told = views.arms(noted("arms", informed=False), 0).layout.title.subtitle.text
    assert "this chooser does not get to know that" in told


@pytest.mark.parametrize(
    "change",
    [{"drafted": 3}, {"names": []}, {"chances": [1.0]}, {"ghosts": [[1.0]]}, {"ghosts": [["x"]] * 3}, {"waiting": 3}],
)
def test_damaged_arms_are_refused(change: dict[str, object]) -> None:
    with pytest.raises(BadTrace, match="note arms of step 1"):
        views.arms(noted("arms", **change), 0)


def test_length_has_a_mark_a_step_by_half_and_rings_this_one() -> None:
    copied = with_note(
        replace(TREE, position=40), "last_state", CHOICE["last_state"] | {"half": "suffix", "length": 41, "score": 2.5}
    )
    figure = views.last_state(trace(with_note(TREE, "last_state", CHOICE["last_state"]), copied), 1)
    assert figure.layout.title.text == "Step 2 · copied from memory: 6 nodes, 2 accepted"
    assert "expected 2.50 right tokens, enough beside the threshold of 1.50" in figure.layout.title.subtitle.text
    seen = {one.name: one for one in figure.data}
    assert list(seen["the network's tree"].x) == [13] and list(seen["copied from memory"].x) == [41]
    assert seen["the network's tree"].marker.symbol != seen["copied from memory"].marker.symbol
    assert list(seen["this step"].x) == [41] and list(seen["running mean, τ"].y) == [3, 3]


def test_length_without_a_memory_says_what_the_network_sees() -> None:
    figure = views.last_state(noted("last_state", score=None, threshold=None), 0)
    assert "of 13 tokens of text the network sees the last one's state and that of a [SPEC] token" in (
        figure.layout.title.subtitle.text
    )
    plain = views.last_state(noted("last_state", score=None, threshold=None, probed=False), 0)
    assert "[SPEC]" not in plain.layout.title.subtitle.text


def test_length_without_anything_to_copy_says_so() -> None:
    said = views.last_state(noted("last_state", score=0.0, threshold=0.0), 0).layout.title.subtitle.text
    assert said.startswith("the memories know nothing to draft here; of 13 tokens of text"), said


def test_length_stands_among_the_curves_of_its_target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copied = with_note(TREE, "last_state", CHOICE["last_state"] | {"half": "suffix", "length": 300})
    made = trace(with_note(TREE, "last_state", CHOICE["last_state"]), copied)
    made = replace(made, run=replace(made.run, target="tiny"))
    monkeypatch.setattr(lengths, "FOLDER", tmp_path)
    bare = views.last_state(made, 0)
    assert "this run here" not in {one.name for one in bare.data}, "nothing is drawn that nobody measured"
    MADE_UP.save(tmp_path)
    seen = {one.name: one for one in views.last_state(made, 0).data if one.xaxis == "x2"}
    assert set(seen) == {"owl", "eagle3", "this run here"}
    assert list(seen["eagle3"].x) == [64, 256, 1024, 4096] and list(seen["eagle3"].y) == [2.5, 2.0, 1.5, 1.2]
    assert seen["owl"].line.dash != seen["eagle3"].line.dash
    assert (list(seen["this run here"].x), list(seen["this run here"].y)) == ([13], [3])
    copies = {one.name for one in views.last_state(made, 1).data if one.xaxis == "x2"}
    assert copies == {"howl", "this run here"}, "a copied step stands among copies"
    other = replace(made, run=replace(made.run, target="another"))
    assert views.last_state(other, 0) == bare


@pytest.mark.parametrize("change", [{"half": "both"}, {"length": -1}, {"score": "x"}, {"threshold": []}])
def test_a_damaged_length_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(BadTrace, match="note last_state of step 1"):
        views.last_state(noted("last_state", **change), 0)


@cache
def real(kind: str) -> Trace:
    target = tiny_target()
    made = (
        compose("not_a_bandit", {}, target, GREEDY) if kind == "arms" else compose_last("howl", SMALL, target, GREEDY)
    )
    run = decode(target, made, PROMPT, 60, GREEDY)
    return replace(trace(*run.steps), run=replace(trace(SILENT).run, prompt_pieces=Letters().pieces([], PROMPT)))


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("kind", ["arms", "last_state"])
def test_every_step_of_a_real_run_can_be_drawn_and_stays_small(kind: str, theme: str) -> None:
    one = real(kind)
    for index in range(len(one.steps)):
        figure = views.NOTES[kind](one, index, theme)
        assert figure.layout.title.text.startswith(f"Step {index + 1} ·")
        assert len(figure.to_json()) < 30_000
        assert {trace_.type for trace_ in figure.data} <= {"scatter", "bar"}


@pytest.mark.parametrize("kind", ["arms", "last_state"])
def test_hostile_texts_stay_text(kind: str) -> None:
    made = views.NOTES[kind](hostile(noted(kind)), 0).to_json()
    assert "<img" not in made and "<script" not in made


def test_hostile_names_of_arms_stay_text() -> None:
    made = views.arms(noted("arms", names=["<img src=x>", "<b>", "$x$"]), 0).to_json()
    assert "<img" not in made and "$x$" not in made
