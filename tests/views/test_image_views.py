"""Views of image runs, drawn from real tiny runs: what each says, and that it stays small and in the shared look."""

from __future__ import annotations

import json

import pytest
from tests.image_runs import GRID, image_trace, tiny_models

from specviz import views
from specviz.errors import BadInput
from specviz.run import run
from specviz.trace import metrics, validate
from specviz.views.theme import THEMES

KINDS = [
    ("lantern_pp", "relaxed"),
    ("lantern", "relaxed"),
    ("mulo_sd", "islands"),
    ("mulo_sd", "coarse"),
    ("speculative_jacobi", "window"),
    ("lantern_pp", "canvas"),
    ("mulo_sd", "canvas"),
]


@pytest.mark.parametrize(("method", "kind"), KINDS)
@pytest.mark.parametrize("theme", THEMES)
def test_every_step_of_a_real_run_can_be_drawn(method: str, kind: str, theme: str) -> None:
    trace = image_trace(method)
    told = [at for at, step in enumerate(trace.steps) if any(note.type == kind for note in step.notes)]
    # A step without room for a draft has nothing to tell, and only finished rows are drawn.
    assert len(told) >= (len(trace.steps) - 2 if kind != "canvas" else GRID // 2)
    for index in told[::5]:
        made = views.NOTES[kind](trace, index, theme)
        text = made.to_json()
        assert made.layout.title.text.startswith(f"Step {index + 1} ·")
        assert len(text) < 40_000 and THEMES[theme].ink in text
        assert {one["type"] for one in json.loads(text)["data"]} <= {"scatter", "bar"}


@pytest.mark.parametrize("method", ["lantern_pp", "lantern", "mulo_sd", "speculative_jacobi", "autoregressive"])
def test_a_real_image_run_is_a_valid_trace_that_survives_its_file(method: str) -> None:
    from specviz.trace import store

    trace = image_trace(method)
    validate.check(trace)
    lines = store.lines(trace)
    again = validate.read_lines(lines)
    assert again.run.grid == (GRID, GRID) and again.run.codebook == trace.run.codebook
    assert again.end.picture == trace.end.picture and len(again.end.picture) > 100
    assert [step.passes for step in again.steps] == [step.passes for step in trace.steps]
    metrics.check_identities(again)


def test_passes_of_repairs_count_in_tau() -> None:
    trace = image_trace("mulo_sd")
    passes = sum(step.passes for step in trace.steps)
    assert passes > len(trace.steps)
    assert trace.end.metrics["passes"] == passes
    assert trace.end.metrics["tau"] == pytest.approx(GRID * GRID / passes)
    again = sum(node.status == "resampled" for step in trace.steps for node in step.nodes)
    assert again and trace.end.metrics["accepted"] == GRID * GRID - again


def test_the_picture_counts_every_cell_once_by_its_verdict() -> None:
    trace = image_trace("lantern_pp")
    made = views.drawn(trace, len(trace.steps) - 1)
    assert made.layout.title.text.endswith(f"code {GRID * GRID} of {GRID * GRID}")
    assert sum(len(one.x) for one in made.data) == GRID * GRID
    assert {"strict", "drawn again"} <= {one.name for one in made.data}


@pytest.mark.parametrize(("method", "temperature"), [("eagle2", 1.0), ("eagle2", 0.0), ("lantern_pp", 0.0)])
def test_a_code_in_the_place_of_rejected_guesses_is_drawn_again_also_where_the_target_chooses_first(
    method: str, temperature: float
) -> None:
    with tiny_models(4):
        trace = run(method=method, prompt="red", target="emoji-64", temperature=temperature)
    assert {step.bonus.source for step in trace.steps if step.bonus} == {"target"}
    again = sum(step.overruled for step in trace.steps)
    kinds = {one.name: len(one.x) for one in views.drawn(trace, len(trace.steps) - 1).data}
    assert again and kinds["drawn again"] == again
    assert kinds.get("bonus", 0) == sum(step.bonus is not None and not step.overruled for step in trace.steps)


def test_every_look_alike_is_on_the_map_and_the_key_counts_those_it_stands_for() -> None:
    trace = image_trace("lantern")
    counts = []
    for index, step in enumerate(trace.steps):
        note = next((one.data for one in step.notes if one.type == "relaxed"), None)
        if note is None or not note["nodes"][:14][-1]["count"]:
            continue
        taken = note["nodes"][:14][-1]["count"]
        made = {one.name: one for one in views.NOTES["relaxed"](trace, index).data}
        assert len(made[f"the {taken} look-alike{'' if taken == 1 else 's'} it stands for"].x) == taken
        assert len(made["look-alikes beyond the limit"].x) == 59 - taken if taken < 59 else True
        counts.append(taken)
    assert max(counts) > 10


def test_a_damaged_list_of_look_alikes_is_refused() -> None:
    from specviz.errors import BadTrace
    from specviz.views.code_map import look_alikes_of
    from specviz.views.notes import Story

    assert look_alikes_of(Story({"near": "BQAGAA=="}, "here")) == [5, 6]
    assert look_alikes_of(Story({"near": [5, 6]}, "here")) == [5, 6]
    for damaged in ("***", "BQAG"[:4]):
        with pytest.raises(BadTrace, match="near"):
            look_alikes_of(Story({"near": damaged}, "here"))


def test_islands_cross_the_failures_and_number_the_waves() -> None:
    trace = image_trace("mulo_sd")
    index = next(at for at, step in enumerate(trace.steps) if step.passes > 2)
    note = next(one.data for one in trace.steps[index].notes if one.type == "islands")
    made = {one.name: one for one in views.islands(trace, index).data}
    assert len(made["failed"].x) == len(note["failed"])
    assert sorted(map(int, made["wave"].text)) == sorted(wave for wave in note["waves"] if wave)


def test_a_run_of_text_has_no_picture() -> None:
    from tests.samples import sample_trace

    with pytest.raises(BadInput, match="no note 'canvas'"):
        views.drawn(sample_trace(3), 0)
