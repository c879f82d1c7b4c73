"""The views of the notes: what was copied, remembered, picked or agreed on; damaged notes are refused in words."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specviz import views
from specviz.errors import BadInput, BadTrace
from specviz.trace.schema import Step, Trace
from tests.samples import sample_trace
from tests.views.chain_notes import CHAINS
from tests.views.diffusion_notes import DIFFUSION
from tests.views.made import TREE, hovers, labels, positions, trace, with_note
from tests.views.retrieval_notes import RETRIEVAL

PROMPT = (" a", " b", " c", " the", " sky", " is", " b", " c")
DATA: dict[str, dict[str, Any]] = {
    "copy": {"suffix_start": 6, "suffix_length": 2, "source": 3, "length": 3},
    "successors": {
        "rows": [
            {"node": 0, "token": 1, "tokens": [2, 3, 9], "texts": [" sky", " sea", " sun"], "used": 2},
            {"node": 1, "token": 2, "tokens": [4, 5, 9], "texts": [" is", " was", " sun"], "used": 2},
        ],
        "updated": 6,
    },
    "ngram_rows": {
        "rows": [{
            "node": 0, "order": 3, "tokens": [9, 2, 3], "texts": [" sun", " sky", " sea"],
            "probability": [0.6, 0.3, 0.1], "perturbed": [-1.0, 0.5, 0.2], "picked": 2,
        }],
        "entries": 40,
    },
    "overlap": {
        "positions": [
            {"node": 0, "tokens": [2, 3], "texts": [" sky", " sea"], "p": [0.7, 0.3], "q": [0.5, 0.5], "overlap": 0.8},
            {"node": 1, "tokens": [4, 5], "texts": [" is", " was"], "p": [1, 0], "q": [0.25, 0.75], "overlap": 0.25},
        ]
    },
    "growth": {
        "beams": [[0], [1, 2], [3, 4]], "value": [0, -0.2, -1.9, -0.7, -1.4, -2.6, -4.2], "kept": 6, "considered": 9,
    },
    "mass": {"mass": [-0.05, -0.9], "tested": [2], "threshold": -0.5, "stopped": 2, "limit": 4},
    "traversal": {
        "visits": [
            {"node": 5, "start": 0.1, "weight": 0.1, "draw": 0.7, "outcome": "failed"},
            {"node": 2, "start": 0.3, "weight": 0.2, "draw": 0.4, "outcome": "failed"},
            {"node": 3, "start": 0.6, "weight": 0.6, "draw": 0.2, "outcome": "accepted"},
            {"node": 1, "start": None, "weight": None, "draw": None, "outcome": "passed"},
        ],
        "rescued": [3], "top_down": 1,
    },
    "reward": {
        "reward": 1.9, "before": 1.5, "branches": [{"node": 3, "length": 1.2}, {"node": 4, "length": 0.9}],
        "reference": {"tokens": [1, 2, 9], "texts": [" the", " sky", " sun"], "parents": [-1, 0, 1]},
    },
    "blocks": {"blocks": [{"nodes": [1, 2], "depths": [1, 1]}, {"nodes": [3, 4, 5, 6], "depths": [2, 2]}], "width": 1},
    "heads": {
        "heads": [
            {"head": 1, "tokens": [2, 3, 9], "texts": [" sky", " sea", " sun"], "probability": [0.6, 0.2, 0.1]},
            {"head": 2, "tokens": [4, 9], "texts": [" is", " sun"], "probability": [0.5, 0.1]},
        ]
    },
    "ssm_mask": {
        "heads": [
            {"name": "slow", "layer": 0, "head": 1, "fade": [-0.01, -0.02, -0.03, -0.04, -0.05, -0.03]},
            {"name": "middle", "layer": 2, "head": 0, "fade": [-0.1, -0.3, -0.4, -0.9, -0.6, -0.7]},
            {"name": "fast", "layer": 2, "head": 3, "fade": [-2.0, -4.0, -5.0, -8.0, -6.0, -9.0]},
        ],
        "taps": 4, "layers": ["state", "attention", "state"], "state_bytes": 8192, "per_node_bytes": 49152,
        "replay_bytes": 2400,
    },
    "typical": {
        "positions": [
            {"node": 1, "token": 2, "text": " sky", "p": 0.9, "threshold": 0.09, "entropy": 0.3},
            {"node": 2, "token": 3, "text": " sea", "p": 0.05, "threshold": 0.09, "entropy": 0.3},
            {"node": 4, "token": 5, "text": " was", "p": 0.06, "threshold": 0.04, "entropy": 2.0},
        ]
    },
    "relaxed": {
        "delta": 0.2, "k": 8, "form": "exact", "nodes": [
            {"node": 1, "p": 0.1, "q": 0.4, "limit": 0.2, "count": 2, "moved": 0.15, "near": [4, 5, 6],
             "mass": [0.1, 0.05, 0.2], "sums": [[1, 0.1], [2, 0.15], [3, 0.35]]},
            {"node": 2, "p": 0.0, "q": 1, "limit": 0.2, "count": 0, "moved": 0, "near": [], "mass": [], "sums": []},
        ],
    },
    "islands": {
        "mass": [0.3, 0.01, 0.2, 0.02, 0.6, 0.4], "tau": 0.1, "pool": 4, "radius": 1, "rewritten": True, "failed": [2, 4],
        "islands": [[2, 3], [4]], "waves": [0, 1, 2, 1, 0, 0], "passes": 3,
    },
    "coarse": {"codes": [1, 2], "fine": [3, 4, 5, 6, 7, 8, 9, 10]},
    "window": {"codes": [1, 2, 3], "redrawn": 2},
    "canvas": {"row": 0, "rows": 1, "codes": 5, "png": ""},
    **RETRIEVAL,
    **CHAINS,
    **DIFFUSION,
}  # fmt: skip


def noted(kind: str, data: dict[str, Any] | None = None) -> Trace:
    return trace(with_note(TREE, kind, DATA[kind] if data is None else data), prompt=PROMPT)


def test_copy_shows_the_match_the_continuation_and_what_was_kept() -> None:
    figure = views.copy(noted("copy"), 0)
    assert figure.layout.title.text == "Step 1 · 3 tokens copied, 2 accepted"
    assert "the last 2 tokens occurred before, in the prompt" in figure.layout.title.subtitle.text
    marked = {one.name: len(one.x) // 3 for one in figure.data if one.name in ("matched", "copied")}
    assert marked == {"matched": 4, "copied": 3}, "the suffix is marked in both strips, the continuation in the first"
    assert {"·sky", "·is", "·foam", "·blue"} <= set(labels(figure))


def test_copy_without_a_match_says_so() -> None:
    nothing = {"suffix_start": 8, "suffix_length": 0, "source": 0, "length": 0}
    assert "nothing was copied" in views.copy(noted("copy", nothing), 0).layout.title.text


def test_successors_show_drafted_ranks_as_verdicts_and_the_rest_as_words() -> None:
    figure = views.successors(noted("successors"), 0)
    assert figure.layout.title.text == "Step 1 · the draft, unfolded from 2 remembered rows"
    pills = [shape for shape in figure.layout.shapes if shape.fillcolor]
    # Roots of rows: the root and the accepted " sky"; drafted: " sky", " is" accepted, " sea", " was" rejected.
    assert sorted(pill.path.count("Z") for pill in pills) == [1, 2, 3]
    assert labels(figure).count("·sun") == 2


def test_ngram_rows_stand_in_the_order_of_the_noise() -> None:
    figure = views.ngram_rows(noted("ngram_rows"), 0)
    places = positions(figure)
    assert places["·sky"] < places["·sea"] < places["·sun"], "0.5, 0.2, -1.0"
    assert "0.60, rank 1" in labels(figure), "the likeliest token lost to the noise and still says how likely it was"
    assert "2 tokens picked from 1 table row" in figure.layout.title.text
    assert any("log-probability with noise 0.50" in hover for hover in hovers(figure))


def test_ngram_rows_without_noise_stand_by_probability() -> None:
    data = copy.deepcopy(DATA["ngram_rows"])
    data["rows"][0]["perturbed"] = []
    figure = views.ngram_rows(noted("ngram_rows", data), 0)
    places = positions(figure)
    assert places["·sun"] < places["·sky"] < places["·sea"]
    assert "likeliest first →" in labels(figure)


def test_overlap_splits_each_bar_into_kept_redrawn_and_rejected() -> None:
    figure = views.overlap(noted("overlap"), 0)
    first = [bar for bar in figure.data if bar.yaxis == "y"]
    assert [list(bar.x) for bar in first] == [[0.5, 0.3], [pytest.approx(0.2), None], [None, pytest.approx(0.2)]]
    assert [note.text for note in figure.layout.annotations] == ["after ·the: <b>80 %</b>", "after ·sky: <b>25 %</b>"]
    assert "52 % on average" in figure.layout.title.subtitle.text


@pytest.mark.parametrize("kind", views.NOTES)
def test_a_step_without_the_note_is_told_what_it_has(kind: str) -> None:
    with pytest.raises(BadInput, match=f"no note '{kind}'; it has: none"):
        views.NOTES[kind](trace(TREE), 0)
    with pytest.raises(BadInput, match="There is no step 5; the run has 1"):
        views.NOTES[kind](noted(kind, DATA.get(kind, {})), 5)


@pytest.mark.parametrize(
    ("method", "kind"),
    [
        ("prompt_lookup", "copy"),
        ("token_recycling", "successors"),
        ("stand", "ngram_rows"),
        ("speculative_sampling", "overlap"),
    ],
)
def test_every_step_of_a_run_can_be_drawn(method: str, kind: str) -> None:
    one = sample_trace(12, method=method)
    for index in range(len(one.steps)):
        assert views.NOTES[kind](one, index, "dark").layout.title.text.startswith(f"Step {index + 1} ·")


def test_a_copy_from_outside_the_text_is_refused() -> None:
    for change in ({"source": 99}, {"suffix_start": 7}, {"length": -1}, {"source": "x"}):
        with pytest.raises(BadTrace, match="note copy of step 1"):
            views.copy(noted("copy", DATA["copy"] | change), 0)


JUNK = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 2**40), st.floats(allow_nan=True), st.text(max_size=4),
    st.lists(st.integers(-1, 9), max_size=3), st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
)  # fmt: skip


@given(st.sampled_from(sorted(DATA)), st.integers(0, 40), JUNK)
def test_a_damaged_note_is_drawn_or_refused_in_words_never_a_crash(kind: str, place: int, junk: Any) -> None:
    data = copy.deepcopy(DATA[kind])
    spots = list(_spots(data))
    holder, key = spots[place % len(spots)]
    holder[key] = junk
    try:
        views.NOTES[kind](noted(kind, data), 0)
    except BadTrace as problem:
        assert f"note {kind} of step 1" in str(problem)


def _spots(value: Any) -> Any:
    """Every place in nested JSON that can be replaced."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in list(pairs):
        yield value, key
        yield from _spots(inner)


def test_a_step_may_hold_any_other_note() -> None:
    odd: Step = with_note(TREE, "something_new", {"whatever": 1})
    with pytest.raises(BadInput, match="it has: something_new"):
        views.copy(trace(odd), 0)
