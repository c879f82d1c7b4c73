"""Where the nodes of a tree go: nothing overlaps, nothing crosses, parents stand between their children."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specviz.figures.tidy import centres, columns


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


@given(trees())
def test_a_parent_stands_in_the_middle_of_its_children_who_keep_their_order(
    tree: tuple[list[int], list[float]],
) -> None:
    parents, heights = tree
    found = centres(parents, heights)
    for node in range(len(parents)):
        children = [found[child] for child, parent in enumerate(parents) if parent == node]
        assert children == sorted(children)
        if children:
            assert found[node] == pytest.approx((children[0] + children[-1]) / 2)


@given(trees())
def test_the_drawing_starts_at_its_upper_edge(tree: tuple[list[int], list[float]]) -> None:
    parents, heights = tree
    top = min(centre - height / 2 for centre, height in zip(centres(parents, heights), heights, strict=True))
    assert top == pytest.approx(0, abs=1e-6)


def test_a_shallow_branch_does_not_push_deep_ones_apart() -> None:
    # Root with a deep chain, a leaf, a deep chain: the leaf fits between, the chains stay one row from it.
    parents = [-1, 0, 0, 0, 1, 3]
    found = centres(parents, [10.0] * 6)
    assert found[5] - found[4] == pytest.approx(20)


def test_a_chain_of_two_thousand_is_no_trouble() -> None:
    assert centres(range(-1, 1999), [10.0] * 2000) == [5.0] * 2000


def test_columns_are_as_wide_as_their_widest_node() -> None:
    assert columns([0, 1, 1, 2], [30, 50, 80, 10], 20) == [(0, 30), (50, 130), (150, 160)]
