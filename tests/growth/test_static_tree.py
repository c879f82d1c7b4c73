"""LANTERN++'s trees: their sizes, and which of them is taken where a pass costs more or less by its rows."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from specviz.drafters import forward_cost
from specviz.engine.cost import CostCurve
from specviz.methods.static_tree import ACCEPTED, TREES, static_tree

WIDTHS = (1, 13, 26, 58, 256)


def _chosen(milliseconds: tuple[float, ...], forward: float, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(forward_cost, "forward_cost", lambda network, rows: forward)
    parts: Any = SimpleNamespace(
        cost_curve=lambda: CostCurve(WIDTHS, milliseconds), target=SimpleNamespace(tier="eager"), guidance=(2.0, ())
    )
    return len(static_tree("fitted", parts, None).parents) - 1


@pytest.mark.parametrize(
    ("milliseconds", "forward", "nodes"),
    [
        ((5.0, 5.0, 5.0, 5.0, 5.0), 0.1, 57),  # a graphics card: rows are free
        ((5.0, 5.9, 7.2, 10.0, 40.0), 0.35, 12),
        ((5.0, 7.0, 8.0, 20.0, 90.0), 3.0, 12),  # one level fewer than the others
        ((5.0, 15.0, 30.0, 70.0, 300.0), 0.35, 5),
    ],
)
def test_the_tree_that_pays_is_taken(
    milliseconds: tuple[float, ...], forward: float, nodes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert _chosen(milliseconds, forward, monkeypatch) == nodes


def test_a_tree_by_name_needs_no_measurement() -> None:
    parts: Any = None
    sizes = {name: len(static_tree(name, parts, None).parents) - 1 for name in TREES}
    assert sizes == {"57": 57, "25": 25, "12": 12, "chain": 5} and set(ACCEPTED) == set(TREES)
