"""The stories of drafts that are looked up: what matched and how often, which source a node has, where a cache has holes."""

from __future__ import annotations

from functools import cache

import pytest

from specviz import views
from specviz.errors import BadTrace
from specviz.trace.schema import Step, Trace
from tests.exactness.test_text_methods import GREEDY, PROMPT
from tests.tiny import VOCAB, Letters, decode, tiny_target
from tests.views.made import SILENT, hovers, labels, trace, with_note
from tests.views.retrieval_notes import RETRIEVAL
from tests.views.test_every_view import hostile
from tests.views.test_notes import noted


def test_suffix_says_what_matched_how_often_and_what_followed() -> None:
    figure = views.suffix(noted("suffix"), 0)
    assert figure.layout.title.text == "Step 1 · 2 tokens matched, 6 tokens drafted, 2 accepted"
    said = figure.layout.title.subtitle.text.replace("<br>", " ")
    assert "the last 2 tokens occur 3 times in this text; that allows 4 tokens of draft" in said
    shown = labels(figure)
    assert {"·b", "·c", "·sky", "·sea", "·sun", "·is", "·was", "3×", "2×", "1×", "+2 more"} <= set(shown)
    pills = sum(shape.path.count("Z") for shape in figure.layout.shapes if shape.fillcolor)
    assert pills == 2 + 2 + 4 + 1, "two matched words, two heads, four drafted children, the threshold"
    assert any("followed 2 of 3 times" in hover for hover in hovers(figure))
    assert {"2.50", "0.75", "threshold 1.00"} <= set(shown)


def test_suffix_without_a_match_or_below_the_threshold_says_so() -> None:
    none = RETRIEVAL["suffix"] | {"source": "none", "suffix_length": 0, "rows": [], "scores": {"context": 0.0}}
    assert (
        "no match, so nothing was drafted"
        in views.suffix(trace(with_note(SILENT, "suffix", none)), 0).layout.title.text
    )
    low = RETRIEVAL["suffix"] | {"used": False, "rows": [], "threshold": 3.0}
    assert "below the threshold" in views.suffix(noted("suffix", low), 0).layout.title.text


def test_a_suffix_outside_the_text_is_refused() -> None:
    for change in ({"suffix_start": 7}, {"suffix_length": 9}, {"source": "elsewhere"}, {"scores": None}):
        with pytest.raises(BadTrace, match="note suffix of step 1"):
            views.suffix(noted("suffix", RETRIEVAL["suffix"] | change), 0)


def test_merged_tree_gives_every_source_its_own_mark() -> None:
    figure = views.merged_tree(noted("merged"), 0)
    assert figure.layout.title.text == "Step 1 · 5 nodes: 2 drafted, 2 looked up, 1 both; 2 accepted"
    assert "expected 2.75 tokens a pass, got 3" in figure.layout.title.subtitle.text.replace("<br>", " ")
    seen = {one.name: (len(one.x), one.marker.symbol, one.marker.color) for one in figure.data if one.name}
    assert {name: mark[0] for name, mark in seen.items()} == {
        "drafter": 2,
        "looked up in this text": 1,
        "looked up in earlier outputs": 1,
        "drafter and memory agree": 1,
        "did not pay": 1,
    }
    assert len({mark[1] for mark in seen.values()}) == len({mark[2] for mark in seen.values()}) == 5
    assert any("from the drafter and earlier outputs" in hover for hover in hovers(figure))


def test_merged_tree_refuses_sources_it_does_not_know() -> None:
    sources = RETRIEVAL["merged"]["sources"]
    for wrong in (sources[:-1], [*sources[:-1], "oracle"], [*sources[:-1], ""], "context"):
        with pytest.raises(BadTrace, match="note merged of step 1"):
            views.merged_tree(noted("merged", RETRIEVAL["merged"] | {"sources": wrong}), 0)


def test_rows_show_holes_and_where_a_sweep_moves_what_is_kept() -> None:
    figure = views.rows(noted("rows"), 0)
    assert figure.layout.title.text == "Step 1 · 2 rows, 3 holes swept away, 11 % of the slots"
    kept, holes, swept = figure.data
    assert (list(kept.base), list(kept.x), list(kept.y)) == ([0, 15, 0], [12, 4, 9], [0, 0, 1])
    assert (list(holes.base), list(holes.x)) == ([12], [3])
    assert (list(swept.base), list(swept.x), list(swept.y)) == ([0, 0], [16, 9], [3, 4])
    assert list(figure.layout.yaxis.ticktext)[:2] == ["row 1", "<b>row 2</b>, this run"]


def test_rows_between_sweeps_have_no_second_half() -> None:
    figure = views.rows(noted("rows", RETRIEVAL["rows"] | {"swept": False}), 0)
    assert "3 holes masked" in figure.layout.title.text
    assert len(figure.data) == 2


@cache
def real(method: str) -> Trace:
    """A run of the tiny model whose second try remembers its first."""
    from tests.exactness.test_retrieval_methods import compose

    target, memory = tiny_target(), {}
    for _ in range(2):
        run = decode(target, compose(method, {}, target, GREEDY, memory), PROMPT, 60, GREEDY)
    texts = tuple(map(Letters().of, PROMPT))
    return trace(*run.steps, prompt=texts)


@pytest.mark.parametrize(("method", "kind"), [("suffix_decoding", "suffix"), ("reader", "merged")])
def test_every_step_of_a_real_run_can_be_drawn(method: str, kind: str) -> None:
    run = real(method)
    steps: tuple[Step, ...] = run.steps
    assert sum(len(step.path) for step in steps) > VOCAB // 2
    for index in range(len(steps)):
        for theme in ("light", "dark"):
            made = views.NOTES[kind](run, index, theme)
            assert made.layout.title.text.startswith(f"Step {index + 1} ·")
        assert made.to_json() == views.NOTES[kind](run, index, theme).to_json()
        assert len(made.to_json()) < 60_000


@pytest.mark.parametrize("kind", RETRIEVAL)
def test_hostile_text_never_becomes_markup(kind: str) -> None:
    made = views.NOTES[kind](hostile(noted(kind)), 0).to_json()
    for bad in ("<img", "<script", "<a ", "<h1"):
        assert bad not in made
