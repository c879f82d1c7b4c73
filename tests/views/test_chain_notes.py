"""The stories of chains of models and of layers side by side, as figures: from notes by hand and from real tiny runs."""

from __future__ import annotations

from functools import cache

import pytest

from specviz import views
from specviz.errors import BadTrace
from specviz.trace import store
from specviz.trace.schema import Trace
from tests.exactness.test_chained import compose as chained
from tests.exactness.test_layer_groups import compose as grouped
from tests.exactness.test_text_methods import PROMPT, WARM
from tests.tiny import Letters, decode, tiny_target
from tests.views.chain_notes import CHAINS
from tests.views.made import TREE, hovers, labels, trace, with_note
from tests.views.test_every_view import hostile
from tests.views.test_notes import noted


def said(kind: str, data: dict[str, object]) -> str:
    """Title and subtitle of the view of this note."""
    title = views.NOTES[kind](noted(kind, data), 0).layout.title
    return f"{title.text} / {title.subtitle.text}".replace("<br>", " ")


def test_belts_tell_what_gathered_and_whether_the_model_pays() -> None:
    told = said("belts", CHAINS["belts"])
    assert "Step 1 · 6 tokens gathered in 3 passes, 2 kept" in told
    assert "the drafter proposed 9 tokens, the middle model took 3" in told
    # Measured: 144 / 9 ms of 40; the two rounds before kept 8 and added 2 by 6 passes: 0.40 against 10/6 (1/1.9 - 1/5) = 0.54.
    # All times: 24 ms a token without it; with it two target passes of 46 and six of (144 + 39) / 9 for ten tokens, 21.4 ms.
    assert "the chain runs at 1.12 times the one without it: it pays" in told
    assert "costs 0.40 of the target's; margin to the published condition +0.14)" in told


def test_belts_put_the_buffer_on_the_clock() -> None:
    figure = views.belts(noted("belts"), 0)
    bars = {one.name: list(one.x) for one in figure.data if one.type == "bar"}
    assert (bars["drafter"], bars["middle model"]) == ([4, 4, 5], [16, 14, 17])
    buffer = next(one for one in figure.data if one.name and one.name.startswith("buffer"))
    assert (buffer.x[-1], buffer.y[-1]) == (60, pytest.approx(3 + 6 * 0.14))
    points = {one.name: (one.x[0], one.y[0]) for one in figure.data if one.name in ("forecast", "measured")}
    assert points == {"forecast": (5.5, 0.375), "measured": (5.0, 0.4)}
    curve = next(one for one in figure.data if one.name == "published condition")
    assert curve.y[0] == pytest.approx(0, abs=1e-6), "with no more tokens a pass nothing may be spent"
    assert any("5.00 tokens a target pass, 0.40 of its cost; gain 1.12" in hover for hover in hovers(figure))


def test_a_model_that_is_too_dear_does_not_pay_and_the_words_say_by_how_much() -> None:
    slow = CHAINS["belts"]["so_far"] | {"verifying": 9 * 36.0}
    told = said("belts", CHAINS["belts"] | {"so_far": slow})
    assert "at 0.72 times the one without it: it does not pay" in told
    assert "costs 0.90 of the target's; margin to the published condition -0.36)" in told


def test_verdict_and_color_follow_the_exact_form_where_the_published_condition_says_otherwise() -> None:
    slow_drafter = CHAINS["belts"]["so_far"] | {"drafting": 9 * 12.0}
    data = CHAINS["belts"] | {"so_far": slow_drafter}
    told = said("belts", data)
    assert "it does not pay" in told and "margin to the published condition +0.14" in told
    drawn = views.belts(noted("belts", data), 0).data
    points = {one.name: one.marker.color for one in drawn if one.name in ("forecast", "measured")}
    assert points["forecast"] != points["measured"]
    dear = CHAINS["belts"] | {"so_far": None, "forecast": CHAINS["belts"]["forecast"] | {"gain": 0.97}}
    assert "at 0.97 times the one without it: it does not pay" in said("belts", dear)


def test_a_run_recorded_without_the_time_alone_shows_its_forecast_only() -> None:
    forecast = {name: value for name, value in CHAINS["belts"]["forecast"].items() if name != "before"}
    data = CHAINS["belts"] | {"forecast": forecast}
    assert "at 1.21 times the one without it: it pays" in said("belts", data)
    assert "measured" not in [one.name for one in views.belts(noted("belts", data), 0).data]


def test_without_calibration_there_is_no_curve_and_the_words_say_so() -> None:
    data = CHAINS["belts"] | {"forecast": None}
    assert "never measured" in said("belts", data)
    assert not any(one.name == "published condition" for one in views.belts(noted("belts", data), 0).data)
    first = CHAINS["belts"] | {"so_far": CHAINS["belts"]["so_far"] | {"rounds": 1, "kept": 0}}
    names = [one.name for one in views.belts(noted("belts", first), 0).data]
    assert "forecast" in names and "measured" not in names, "nothing was kept or lost before the first round"


def test_layers_collapse_into_rows_and_cells_say_how_far_off_they_were() -> None:
    told = said("layers", CHAINS["layers"])
    assert "Step 1 · 6 layers attend in 3 stages, 2 of 5 accepted" in told
    assert "repaired 2 tokens: their fuzzy entries were 0.83 like the exact ones (cosine), the worst 0.65" in told
    figure = views.layers(noted("layers"), 0)
    boxes = [shape for shape in figure.layout.shapes if shape.type == "rect"]
    assert len(boxes) == 12, "every layer in the stack and in its row"
    rows = sorted({round(box.y0, 2) for box in boxes if box.x0 >= 2})
    assert len(rows) == 3
    cells = next(one for one in figure.data if one.xaxis == "x2")
    assert len(cells.x) == 12 and cells.marker.color[0] == 0 and cells.marker.color[-1] == 0.7
    assert labels(figure).count("3") == 2


def test_layers_without_repair_or_without_anything_to_repair() -> None:
    assert "stay as fuzzy as they were drafted" in said(
        "layers", CHAINS["layers"] | {"calibrated": False, "likeness": [], "fuzzy": 9}
    )
    assert "nothing had to be repaired" in said("layers", CHAINS["layers"] | {"likeness": []})


@pytest.mark.parametrize("groups", [[[0], [1, 2]], [[0, 0], [1, 2, 3, 4], [5]], [[7]], "x", None])
def test_groups_that_are_not_all_layers_once_are_refused(groups: object) -> None:
    with pytest.raises(BadTrace, match="note layers of step 1"):
        views.layers(noted("layers", CHAINS["layers"] | {"groups": groups}), 0)


@cache
def real(kind: str) -> Trace:
    """A run of a tiny chain, or of tiny layers side by side."""
    target = tiny_target()
    made = chained("in 8 bits", target, WARM) if kind == "belts" else grouped("decoder", {"group": 4}, target, WARM)
    run = decode(target, made, PROMPT, 60, WARM, 3)
    return trace(*run.steps, prompt=tuple(map(Letters().of, PROMPT)))


@pytest.mark.parametrize("kind", CHAINS)
def test_every_step_of_a_real_run_can_be_drawn_and_kept(kind: str) -> None:
    run = real(kind)
    for index in range(len(run.steps)):
        for theme in ("light", "dark"):
            made = views.NOTES[kind](run, index, theme)
            assert made.layout.title.text.startswith(f"Step {index + 1} ·")
            assert len(made.to_json()) < 60_000
    store.validate(store.text(run).encode())


@pytest.mark.parametrize("kind", CHAINS)
def test_hostile_text_never_becomes_markup(kind: str) -> None:
    made = views.NOTES[kind](hostile(noted(kind)), 0).to_json()
    assert not any(bad in made for bad in ("<img", "<script", "<a ", "<h1"))


def test_the_step_of_the_examples_is_the_usual_one() -> None:
    assert with_note(TREE, "belts", CHAINS["belts"]).verified == 5
