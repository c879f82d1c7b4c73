"""The tree of one step: every token is there with its numbers, and each verdict differs in colour, symbol and dash."""

from __future__ import annotations

from dataclasses import replace

import pytest

import specviz
from specviz.figures.draft_tree import draft_tree
from specviz.figures.verdicts import ORDER, look
from specviz.palette import LABELS, THEMES
from specviz.trace.schema import Bonus
from tests.support.traces.made import SILENT, TREE, hovers, labels, positions
from tests.support.traces.samples import sample_trace


def test_every_token_stands_in_the_tree_once_with_its_blanks_made_visible() -> None:
    drawn = [label for label in labels(draft_tree(TREE)) if not label.startswith("q ")]
    assert sorted(drawn) == sorted(["·the", "·sky", "·sea", "·is", "·was", "·foam", "⏎", "·blue"])


def test_judged_nodes_print_q_and_p_and_the_hover_has_them_finer() -> None:
    figure = draft_tree(TREE)
    assert {label for label in labels(figure) if label.startswith("q ")} == {
        "q 0.80  p 0.90", "q 0.15  p 0.05", "q 0.60  p 0.70", "q 0.30  p 4e-3",
    }  # fmt: skip
    sky = next(hover for hover in hovers(figure) if "·sky" in hover)
    assert "drafter q 0.8000 · target p 0.9000" in sky
    assert "<br>accepted<br>" in sky
    assert "node 1 · depth 1 · token 2" in sky


def test_the_key_names_what_is_there_and_nothing_else() -> None:
    names = [trace.name for trace in draft_tree(TREE).data if trace.name]
    assert names == [
        "last committed token", "accepted", "rejected", "not verified", "pruned", "bonus", "q drafter", "p target",
    ]  # fmt: skip


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


def test_the_bonus_hangs_where_the_walk_ended() -> None:
    figure = draft_tree(replace(TREE, path=(), bonus=Bonus(0, 8, " blue", 0.5)))
    places = positions(figure)
    # One column to the right of the root, beside its other children.
    assert places["·the"] < places["·blue"] < places["·is"]


def test_a_step_without_a_draft_says_so_loudly() -> None:
    assert "the drafter proposed nothing" in draft_tree(SILENT).layout.title.text


def test_a_cut_step_says_how_many_of_the_accepted_entered_the_output() -> None:
    figure = draft_tree(replace(TREE, emitted=(2,), pieces=(" sky",), cut="budget"))
    assert figure.layout.title.text == "Step 4 · 6 drafted tokens, 2 accepted, 1 of them before the end"
    assert figure.layout.title.subtitle.text.endswith("cut short by budget")


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
