"""The tree of one step: every token is there with its numbers, and each verdict differs in colour, symbol and dash.

Nothing overlaps, nothing crosses, parents stand between their children.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import specviz
from specviz.figures.draft_tree import centres, draft_tree
from specviz.figures.verdicts import ORDER, look
from specviz.palette import LABELS, THEMES
from specviz.trace.schema import Bonus
from tests.support.traces.made import SILENT, TREE, hovers, labels, positions
from tests.support.traces.samples import sample_trace


def test_every_token_stands_in_the_tree_once_with_its_blanks_made_visible() -> None:
    drawn = [label for label in labels(draft_tree(TREE)) if not label.startswith("q ")]
    assert sorted(drawn) == sorted(["·the", "·sky", "·sea", "·is", "·was", "·foam", "⏎", "·blue"])


@pytest.mark.parametrize("theme", THEMES)
def test_no_two_verdicts_share_a_colour_with_symbol_or_a_dash_with_symbol(theme: str) -> None:
    looks = [look(status, THEMES[theme]) for status in ORDER]
    assert len({seen.symbol for seen in looks}) == len(ORDER)
    judged = [look(status, THEMES[theme]) for status in ("accepted", "relaxed", "rejected", "resampled", "skipped", "bonus")]
    assert len({seen.line for seen in judged}) == len(judged)
    assert len({(seen.dash, seen.width, seen.double) for seen in judged}) == len(judged)


def test_depth_runs_left_to_right_and_the_accepted_path_is_the_thickest_line() -> None:
    figure = draft_tree(TREE)
    places = positions(figure)
    assert places["·the"] < places["·sky"] < places["·is"] < places["·blue"]
    edges = [shape for shape in figure.layout.shapes if shape.fillcolor is None]
    thickest = max(edges, key=lambda shape: shape.line.width)
    assert thickest.line.color == THEMES["light"].accepted
    assert thickest.path.count("M") == len(TREE.path)


def test_a_step_without_a_draft_says_so_loudly() -> None:
    assert "the drafter proposed nothing" in draft_tree(SILENT).layout.title.text


def test_a_big_tree_folds_only_what_nobody_judged_and_says_how_much() -> None:
    step = max(sample_trace(30, seed=2, nodes=80).steps, key=lambda one: len(one.nodes))
    whole, folded = draft_tree(step), draft_tree(step, most=20)
    missing = len(step.nodes) - sum(len(layer.x) for layer in folded.data if layer.mode == "markers") + 1
    assert missing > 0
    assert f"{missing} tokens that nobody judged are folded away" in folded.layout.title.subtitle.text
    assert sum(int(label[1:]) for label in labels(folded) if label.startswith("+")) == missing
    assert "folded" not in whole.layout.title.subtitle.text
    judged = sum(node.status in ("accepted", "rejected") for node in step.nodes)
    assert sum(label.count("p ") for label in labels(folded)) == judged


def test_dense_trees_keep_letters_of_11_pixels_and_fit_a_slide() -> None:
    step = max(sample_trace(30, seed=2, nodes=80).steps, key=lambda one: len(one.nodes))
    figure = draft_tree(step)
    assert figure.layout.width <= 1280
    assert min(trace.textfont.size for trace in figure.data if trace.mode == "text") >= 11


def test_the_hover_has_the_verdict_in_the_words_of_the_stage_and_what_was_drawn() -> None:
    nodes = (
        *TREE.nodes[:2], replace(TREE.nodes[2], status="resampled", threshold=0.2, draw=0.3),
        replace(TREE.nodes[3], status="relaxed"), *TREE.nodes[4:],
    )  # fmt: skip
    told = hovers(draft_tree(replace(TREE, nodes=nodes, bonus=Bonus(0, 8, " blue", 0.2, "residual"))))
    assert next(one for one in told if "·sea" in one).split("<br>")[1:4] == [
        LABELS["resampled"], "drafter q 0.1500 · target p 0.0500", "threshold 0.2000 · draw 0.3000",
    ]  # fmt: skip
    assert LABELS["relaxed"] == next(one for one in told if "·is" in one).split("<br>")[1]
    assert "bonus, from the residual" in next(one for one in told if "·blue" in one)


def test_the_readme_line_works() -> None:
    trace = sample_trace()
    assert specviz.figures.draft_tree(trace.steps[3]).layout.title.text.startswith("Step 4")


@st.composite
def trees(draw: st.DrawFn) -> tuple[list[int], list[float]]:
    """Parents and heights of a tree of up to 60 nodes."""
    size = draw(st.integers(1, 60))
    parents = [-1] + [draw(st.integers(0, node - 1)) for node in range(1, size)]
    return parents, [draw(st.sampled_from([20.0, 27.0, 53.0])) for _ in range(size)]


def depths_of(parents: list[int]) -> list[int]:
    found: list[int] = []
    for parent in parents:
        found.append(0 if parent < 0 else found[parent] + 1)
    return found


@given(trees())
def test_nodes_of_one_depth_never_overlap_and_subtrees_never_cross(tree: tuple[list[int], list[float]]) -> None:
    parents, heights = tree
    found = centres(parents, heights)
    depths = depths_of(parents)
    for depth in set(depths):
        row = sorted((found[node], node) for node in range(len(parents)) if depths[node] == depth)
        for (high, one), (low, other) in zip(row, row[1:], strict=False):
            assert low - high >= (heights[one] + heights[other]) / 2 - 1e-6
            if depth:
                assert found[parents[one]] <= found[parents[other]] + 1e-6


def test_a_chain_of_two_thousand_is_no_trouble() -> None:
    assert centres(range(-1, 1999), [10.0] * 2000) == [5.0] * 2000
