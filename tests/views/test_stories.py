"""The stories of trained drafters: what was ringed, cut, stopped, rescued, new, blind or typical stands in the figure."""

from __future__ import annotations

from dataclasses import replace

import plotly.graph_objects as go
import pytest

from specviz import views
from specviz.trace.schema import Node
from specviz.views.reliability import calibration, calibration_error, interval
from specviz.views.verdicts import reason
from tests.stories import TELLERS, story_trace
from tests.views.made import SILENT, TREE, hovers, labels, trace, with_note
from tests.views.test_notes import DATA, noted


def named(figure: go.Figure) -> dict[str, int]:
    """How many points each entry of a figure's key has."""
    return {one.name: len(one.x) for one in figure.data if one.name}


def notes_of(figure: go.Figure) -> str:
    return " ".join(one.text for one in figure.layout.annotations)


@pytest.mark.parametrize("method", TELLERS)
def test_every_note_of_a_run_can_be_drawn(method: str) -> None:
    one = story_trace(method)
    for index, step in enumerate(one.steps):
        for note in step.notes:
            assert views.NOTES[note.type](one, index, "dark").layout.title.text.startswith(f"Step {index + 1} ·")


def test_growth_rings_the_beam_and_draws_the_cut_below_what_was_kept() -> None:
    figure = views.growth(noted("growth"), 0)
    assert figure.layout.title.text == "Step 1 · 9 candidates, 5 sent, 2 accepted"
    seen = named(figure)
    assert seen["beam: grown further"] == 4 and seen["pruned"] == 1 and seen["accepted"] == 2
    cut = next(shape for shape in figure.layout.shapes if shape.type == "line").y0
    assert -4.2 / 2.3026 < cut < -2.6 / 2.3026, "between the worst kept and the best pruned"
    assert "the best 5 lie above" in notes_of(figure)
    assert any("q 0.800, path 0.82" in one for one in hovers(figure))


def test_growth_says_why_trees_are_as_deep_as_they_are_where_nobody_stated_it() -> None:
    def said(depth: object) -> str:
        return views.growth(noted("growth", DATA["growth"] | {"depth": depth}), 0).layout.title.subtitle.text

    chosen = said({"levels": 2, "nodes": 8, "tau": 1.77, "gain": 1.152, "forward": 0.09})
    assert "at most 2 levels: what pays most here" in chosen and "τ 1.77 and 1.15×" in chosen and "0.09 of a pass" in chosen
    assert "at most 4 levels: the usual depth" in said({"levels": 4})
    assert said(None) == views.growth(noted("growth"), 0).layout.title.subtitle.text


def test_growth_without_a_draft_says_so() -> None:
    nothing = with_note(SILENT, "growth", {"beams": [[0]], "value": [0], "kept": 1, "considered": 0})
    assert "nothing was drafted" in views.growth(trace(nothing), 0).layout.title.text


def test_mass_names_the_level_where_growing_stopped() -> None:
    figure = views.mass(noted("mass"), 0)
    assert figure.layout.title.text == "Step 1 · stopped after level 2 of at most 4"
    assert "held 0.41" in figure.layout.title.subtitle.text
    assert list(figure.layout.xaxis.ticktext) == ["1", "2<br>tested", "3", "4"]
    assert "growing stopped" in notes_of(figure) and "threshold 0.61" in notes_of(figure)


def test_mass_tells_how_rare_so_light_a_beam_was_in_the_calibration() -> None:
    figure = views.mass(noted("mass", DATA["mass"] | {"below": [0.02, 0.217, 0.7, 0.9]}), 0)
    said = figure.layout.title.subtitle.text.replace("<br>", " ")
    assert "in the calibration 22 % of the beams at this level held less" in said
    assert "calibration" not in views.mass(noted("mass"), 0).layout.title.subtitle.text


def test_mass_without_a_stop_has_no_stop() -> None:
    figure = views.mass(noted("mass", DATA["mass"] | {"stopped": None, "limit": 2}), 0)
    assert "without a stop" in figure.layout.title.text
    assert "growing stopped" not in notes_of(figure)


def test_traversal_counts_the_visits_and_shades_the_rescued() -> None:
    figure = views.traversal(noted("traversal"), 0)
    assert figure.layout.title.text == "Step 1 · 2 tokens kept, 1 from the root down"
    assert {"1", "2", "3", "4"} <= set(labels(figure))
    assert "the shaded 1 token would have been lost" in figure.layout.title.subtitle.text.replace("<br>", " ")
    assert any("visit 3: weight 0.600, coin 0.200: accepted" in one for one in hovers(figure))
    assert any("without a coin" in one for one in hovers(figure))


def test_reward_tells_new_branches_from_those_given_up() -> None:
    figure = views.reward(noted("reward"), 0)
    assert figure.layout.title.text == "Step 1 · tree reward 1.90, 1.50 before training on trees"
    seen = named(figure)
    assert seen["given up"] == 1, "only the old drafter had ·sun after ·sky"
    assert seen["new"] == 3, "·sea, ·was and ·foam; ·is was accepted"
    assert any("expected accepted length 0.90" in one for one in hovers(figure))


def test_reward_of_a_single_tree_compares_nothing() -> None:
    figure = views.reward(noted("reward", DATA["reward"] | {"reference": None, "before": None}), 0)
    assert figure.layout.title.text == "Step 1 · tree reward 1.90"
    assert not {"new", "given up"} & set(named(figure))


def test_blocks_have_a_band_a_forward_and_full_squares_in_the_mask() -> None:
    figure = views.blocks(noted("blocks"), 0)
    assert figure.layout.title.text == "Step 1 · 6 tokens from 2 drafter forwards, 5 of them sent, 2 accepted"
    assert sum(shape.type == "rect" for shape in figure.layout.shapes) == 2
    assert "<b>forward 2</b>: 4, 1 kept" in notes_of(figure)
    whole = views.blocks(story_trace("falcon"), 0)
    paths = [shape.path.count("Z") for shape in whole.layout.shapes if shape.type == "path"]
    assert paths == [12, 12, 12], "three 2 x 2 blocks, as many squares below them as above"


def test_heads_give_a_token_its_best_verdict_and_leave_the_unused_as_words() -> None:
    figure = views.heads(noted("heads"), 0)
    assert figure.layout.title.text == "Step 1 · 2 heads, 2 accepted"
    assert labels(figure).count("·sun") == 2
    pills = sum(shape.path.count("Z") for shape in figure.layout.shapes if shape.fillcolor)
    assert pills == 4, "the root, ·sky, ·sea and ·is"


def test_typical_tells_kept_from_lost_and_from_not_typical() -> None:
    figure = views.typical(noted("typical"), 0)
    assert figure.layout.title.text == "Step 1 · 3 guesses judged, 1 kept"
    seen = named(figure)
    assert (seen["kept"], seen["not typical"], seen["typical, but off the path"]) == (1, 1, 1)


def test_a_guess_counts_for_reliability_once_its_parent_was_accepted() -> None:
    bins = calibration(trace(TREE).steps)
    assert [(one.low, one.accepted, one.judged) for one in bins] == [(0.1, 0, 1), (0.3, 0, 1), (0.6, 1, 1), (0.8, 1, 1)]
    assert calibration_error(bins) == pytest.approx((0.15 + 0.3 + 0.4 + 0.2) / 4)


def test_reliability_marks_small_bins_and_says_whether_the_drafter_is_too_sure() -> None:
    sure = replace(
        TREE, nodes=(*TREE.nodes[:2], *(Node(0, 30 + at, f" {at}", 0.95, 0.01, "rejected") for at in range(20)))
    )
    figure = views.reliability(trace(replace(sure, path=(1,), emitted=(2, 8), pieces=(" sky", " blue"))))
    assert "too sure by" in figure.layout.title.subtitle.text
    points = next(one for one in figure.data if one.error_y.array is not None)
    assert list(points.y) == [1.0, 0.0]
    hollow, filled = points.marker.color
    assert hollow != filled, "one guess says little, twenty say something"
    assert list(figure.data[-1].y) == [1, 20]


def test_reliability_without_confidences_says_why() -> None:
    figure = views.reliability(trace(SILENT))
    assert "its drafter proposes without probabilities" in figure.layout.title.subtitle.text
    assert calibration_error([]) is None


def test_the_interval_is_honest_at_the_ends() -> None:
    low, high = interval(0, 4)
    assert low == 0 and 0.4 < high < 0.6
    low, high = interval(50, 100)
    assert low == pytest.approx(0.404, abs=0.002) and high == pytest.approx(0.596, abs=0.002)


def test_many_pruned_nodes_are_folded_into_counts_in_the_tree() -> None:
    step = story_trace("eagle2").steps[3]
    figure = views.draft_tree(step)
    assert "96 tokens that nobody judged are folded away" in figure.layout.title.subtitle.text
    assert "pruned" not in named(figure)
    assert figure.layout.height < 1300


def test_every_verdict_of_the_new_rules_has_its_sentence() -> None:
    weight = replace(TREE, rule="traversal")
    assert "a node below it was kept" in reason(weight, weight.nodes[1])
    failed = Node(0, 3, " sea", 0.15, 0.05, "rejected", 0.2, 0.7)
    assert reason(weight, failed) == "Rejected: the draw 0.700 is not below the threshold 0.200."
    bar = replace(TREE, rule="typical")
    said = [
        reason(bar, Node(0, 3, " sea", 0.1, p, status, 0.09))
        for p, status in ((0.5, "accepted"), (0.5, "relaxed"), (0.2, "rejected"), (0.01, "rejected"))
    ]
    assert said == [
        "Accepted: p 0.500 is above the threshold 0.090.",
        "Accepted: p 0.500 is above the threshold 0.090; the target's own draw was another token.",
        "Rejected: p 0.200 is above the threshold 0.090, but another branch went further.",
        "Rejected: p 0.010 is not above the threshold 0.090.",
    ]


def test_the_decay_mask_leaves_other_branches_empty_and_never_grows_down_a_path() -> None:
    figure = views.ssm_mask(noted("ssm_mask"), 0)
    assert figure.layout.title.text == "Step 1 · a tree of 6 nodes in one pass, 2 accepted"
    cells = next(one for one in figure.data if one.name == "ancestors")
    left = {(row, column): value for row, column, value in zip(cells.y, cells.x, cells.customdata, strict=True)}
    parents = [node.parent for node in TREE.nodes]
    for node in range(6):  # the seventh was pruned, and never in the pass
        seen = sorted(column for row, column in left if row == node)
        path = [node]
        while parents[path[-1]] >= 0:
            path.append(parents[path[-1]])
        assert seen == sorted(path), "a node's row holds its ancestors and itself"
        assert left[node, node] == 1.0
        assert all(left[node, below] >= left[node, above] for above, below in zip(seen, seen[1:], strict=False))
    carried = next(one for one in figure.data if one.name == "carried state").customdata
    assert carried[3] == pytest.approx(0.407, abs=1e-3), "exp(-0.9) of the carried state"
    assert any("convolution reads 0, 1 and 2 carried" in one for one in hovers(figure))
    assert "20 times what the replay takes" in figure.layout.title.subtitle.text.replace("<br>", " ")


def test_the_decay_mask_shows_the_head_that_was_asked_for() -> None:
    slow, fast = (views.ssm_mask(noted("ssm_mask"), 0, head=name) for name in ("slow", "fast"))
    assert "layer 0, head 1" in slow.layout.title.subtitle.text and "layer 2, head 3" in fast.layout.title.subtitle.text
    kept = [next(one for one in figure.data if one.name == "carried state").customdata[-1] for figure in (slow, fast)]
    assert kept[0] > 0.9 > kept[1]
