"""The tree of one step: every token is there with its numbers, and each verdict differs in colour, symbol and dash.

Nothing overlaps and nothing crosses.
"""

from collections import defaultdict
from itertools import pairwise

import networkx as nx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from specviz.figures.draft_tree import draft_tree, rows
from specviz.palette import LABELS, LOOKS, THEMES
from specviz.trace.schema import Bonus
from tests.support.traces.made import SILENT, TREE, hovers, labels, positions
from tests.support.traces.samples import sample_trace


def test_every_token_stands_in_the_tree_once_with_its_blanks_made_visible():
    drawn = [label.strip() for label in labels(draft_tree(TREE)) if not label.startswith("q ")]
    assert sorted(drawn) == sorted(["·the", "·sky", "·sea", "·is", "·was", "·foam", "⏎", "·blue"])


@pytest.mark.parametrize("theme", THEMES)
def test_no_meaning_hangs_on_colour_alone(theme):
    assert len({look.symbol for look in LOOKS.values()}) == len(LOOKS)
    judged = [LOOKS[status] for status in ("accepted", "relaxed", "rejected", "resampled", "skipped", "bonus")]
    assert len({getattr(THEMES[theme], look.line) for look in judged}) == len(judged)
    accepted, relaxed, *others = ((look.dash, look.width) for look in judged)
    assert accepted == relaxed not in others and len(set(others)) == len(others)


def test_depth_runs_left_to_right_and_the_accepted_path_is_the_thickest_line():
    figure = draft_tree(TREE)
    places = {label.strip(): x for label, x in positions(figure).items()}
    assert places["·the"] < places["·sky"] < places["·is"] < places["·blue"]
    edges = [trace for trace in figure.data if trace.mode == "lines"]
    thickest = max(edges, key=lambda trace: trace.line.width)
    assert thickest.line.color == THEMES["light"].accepted
    assert list(thickest.x).count(None) == len(TREE.path)


def test_an_entry_of_the_key_hides_all_that_its_verdict_has_on_the_figure():
    figure = draft_tree(TREE)
    key = {trace.name: trace.legendgroup for trace in figure.data if trace.name}
    assert key["rejected"] == "rejected" and {trace.legendgroup for trace in figure.data} == set(key.values())


def test_a_big_tree_folds_only_what_nobody_judged_and_says_how_much():
    step = max(sample_trace(30, seed=2, nodes=80).steps, key=lambda one: len(one.nodes))
    whole, folded = draft_tree(step), draft_tree(step, most=20)
    missing = len(step.nodes) - sum(len(layer.x) for layer in folded.data if layer.mode == "markers+text") + 1
    assert missing > 0
    assert f"{missing} unjudged tokens folded away" in folded.layout.title.subtitle.text
    counts = [label.rpartition("+")[2] for label in labels(folded) if " +" in label]
    assert sum(int(count) for count in counts if count.isdecimal()) == missing
    assert "folded" not in whole.layout.title.subtitle.text
    judged = sum(node.status in ("accepted", "rejected") for node in step.nodes)
    assert sum(label.count("p ") for label in labels(folded)) == judged


def test_rejected_tokens_that_were_not_recorded_count_as_drafted():
    title = draft_tree(replace(SILENT, verified=6)).layout.title
    assert title.text == "Step 4 · 6 drafted tokens, 0 accepted" and title.subtitle.text.startswith("rule: greedy")
    assert draft_tree(SILENT).layout.title.text == "Step 4 · the drafter proposed nothing"
    assert draft_tree(TREE).layout.title.text == "Step 4 · 6 drafted tokens, 2 accepted"


def test_dense_trees_keep_letters_of_11_pixels_and_fit_a_slide():
    step = max(sample_trace(30, seed=2, nodes=80).steps, key=lambda one: len(one.nodes))
    figure = draft_tree(step)
    assert figure.layout.width <= 1280
    assert min(trace.textfont.size for trace in figure.data if "text" in trace.mode) >= 11


def test_the_hover_has_the_verdict_in_the_words_of_the_stage_and_what_was_drawn():
    nodes = (
        *TREE.nodes[:2], replace(TREE.nodes[2], status="resampled", threshold=0.2, draw=0.3),
        replace(TREE.nodes[3], status="relaxed"), *TREE.nodes[4:],
    )  # fmt: skip
    hover = hovers(draft_tree(replace(TREE, nodes=nodes, bonus=Bonus(0, 8, " blue", 0.2, "residual"))))
    assert next(one for one in hover if "·sea" in one).split("<br>")[1:4] == [
        LABELS["resampled"], "drafter q 0.1500 · target p 0.0500", "threshold 0.2000 · draw 0.3000",
    ]  # fmt: skip
    assert LABELS["relaxed"] == next(one for one in hover if "·is" in one).split("<br>")[1]
    assert "bonus, from the residual" in next(one for one in hover if "·blue" in one)


@st.composite
def trees(draw):
    """A tree of up to 60 nodes."""
    return grown([draw(st.integers(0, node - 1)) for node in range(1, draw(st.integers(1, 60)))])


def grown(parents):
    """The tree whose node i + 1 has the i-th of these parents."""
    tree = nx.DiGraph()
    tree.add_node("0", depth=0)
    for node, parent in enumerate(parents, start=1):
        tree.add_node(str(node), depth=tree.nodes[str(parent)]["depth"] + 1)
        tree.add_edge(str(parent), str(node))
    return tree


@given(trees())
def test_nodes_of_one_depth_never_overlap_and_subtrees_never_cross(tree):
    found = rows(tree)
    levels = defaultdict(list)
    for node, depth in tree.nodes.data("depth"):
        levels[depth].append(node)
        children = [found[child] for child in tree[node]]
        assert children == sorted(children)
    for depth, nodes in levels.items():
        level = sorted(nodes, key=found.__getitem__)
        for one, other in pairwise(level):
            assert found[other] - found[one] >= 1 - 1e-9
            if depth:
                (above,), (beside,) = tree.pred[one], tree.pred[other]
                assert found[above] <= found[beside] + 1e-9
    assert min(found.values()) == 0


def test_a_chain_of_two_thousand_is_no_trouble():
    assert set(rows(grown(range(1999))).values()) == {0}
