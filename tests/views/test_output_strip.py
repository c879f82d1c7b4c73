"""The output as text: every token marked by how it came to be, the chosen step framed."""

from __future__ import annotations

import re
from dataclasses import replace
from html import unescape

import pytest

from specviz import views
from specviz.trace.schema import Node
from specviz.views.theme import THEMES
from tests.samples import METHODS, sample_trace
from tests.views.made import SILENT, TREE, trace


def spans(html: str) -> list[tuple[str, str, str]]:
    """(style, title, text) of every token."""
    found = re.findall(r'<span style="([^"]*)" title="([^"]*)">([^<]*)</span>', html)
    return [(style, unescape(title), unescape(text)) for style, title, text in found]


@pytest.mark.parametrize("method", METHODS)
def test_the_text_is_the_runs_own(method: str) -> None:
    one = sample_trace(12, method=method)
    assert "".join(text for _, _, text in spans(views.output_strip(one))) == one.end.text


def test_drafted_and_own_tokens_differ_in_colour_and_in_underline() -> None:
    sky, own, blue = spans(views.output_strip(trace(TREE)))
    assert sky[1] == own[1] == "step 1: accepted" and blue[1] == "step 1: bonus"
    assert "2px solid" in sky[0] and "2px dotted" in blue[0]
    assert THEMES["light"].accepted in sky[0] and THEMES["light"].bonus in blue[0]


def test_relaxed_tokens_are_told_apart_and_in_the_key() -> None:
    nodes = (*TREE.nodes[:3], Node(1, 4, " is", 0.6, 0.1, "relaxed"), *TREE.nodes[4:])
    html = views.output_strip(trace(replace(TREE, nodes=nodes)))
    assert [title for _, title, _ in spans(html)][1] == "step 1: accepted by relaxation"
    assert "double" in spans(html)[1][0]


def test_a_cut_step_shows_only_what_entered_the_output() -> None:
    cut = replace(TREE, emitted=(2,), pieces=(" sky",), cut="budget")
    assert [title for _, title, _ in spans(views.output_strip(trace(cut)))] == ["step 1: accepted"]


def test_the_chosen_step_is_framed_and_the_future_is_pale() -> None:
    styles = [style for style, _, _ in spans(views.output_strip(trace(TREE, SILENT, TREE), step=1))]
    assert ["outline" in style for style in styles] == [False] * 3 + [True] + [False] * 3
    assert ["opacity" in style for style in styles] == [False] * 4 + [True] * 3
