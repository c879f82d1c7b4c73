"""LANTERN++'s trees: their sizes, and which of them is taken where a pass costs more or less by its rows."""

from types import SimpleNamespace

import pytest

from specviz.engine.cost import CostCurve
from specviz.engine.tree import shape_from_paths
from specviz.methods.lantern import static_tree

PUBLISHED = {
    "57": """0 1 2 3 4
        00 01 02 03 10 11 12 20 21 22 30 31 40
        000 001 002 003 010 011 012 020 021 022 030 031 100 101 110 200
        0000 0001 0002 0003 0010 0011 0012 0020 0021 0030 0100 0101 0110 0200
        00000 00001 00002 00010 00011 00100 00101 00110 00200""",
    "25": """0 1 2 3 00 01 02 10 11 20 21 30 000 001 002 010 011 020 021 100
        0000 0001 0002 00000 00001""",
}
"""The rank paths that LANTERN++'s authors draft on, ``naive_extend_57`` and ``mc_sim_7b_63`` in models/drafters/choices.py of
jadohu/LANTERN at 3a56e45: a digit a level, the rank among its siblings."""
WIDTHS = (1, 13, 26, 58, 256)


def _chosen(milliseconds, forward):
    parts = SimpleNamespace(
        cost_curve=lambda: CostCurve(WIDTHS, milliseconds), forward_cost=lambda network, rows: forward,
        target=SimpleNamespace(tier="eager"), guidance=(2.0, ()),
    )  # fmt: skip
    return len(static_tree("fitted", parts, None).parents) - 1


@pytest.mark.parametrize(
    ("milliseconds", "forward", "nodes"),
    [
        ((5.0, 5.0, 5.0, 5.0, 5.0), 0.1, 57),  # a GPU: rows are free
        ((5.0, 5.9, 7.2, 10.0, 40.0), 0.35, 12),
        ((5.0, 7.0, 8.0, 20.0, 90.0), 3.0, 12),  # one level fewer than the others
        ((5.0, 15.0, 30.0, 70.0, 300.0), 0.35, 5),
    ],
)
def test_the_tree_that_pays_is_taken(milliseconds, forward, nodes):
    assert _chosen(milliseconds, forward) == nodes


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_tree_has_the_paths_its_authors_wrote_down(name):
    paths = [tuple(int(rank) for rank in path) for path in PUBLISHED[name].split()]
    parts = None
    assert len(paths) == int(name)
    assert static_tree(name, parts, None).parents == shape_from_paths(paths).parents
