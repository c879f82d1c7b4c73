"""The step tree as it is laid out, without a browser."""

from __future__ import annotations

from typing import Any

from tests.support.viewer.node import Evaluate

DRAWN = """
const step = parseStep(given.step);
const made = layout.tree(step, room(given.room));
return { form: made.form, width: made.width, height: made.height,
  edges: made.edges.map((edge) => [edge.from, edge.to, edge.path]),
  items: [...made.items.values()].map(({ id, kind, form, label, parent, x, y, w, h, depth, on, hidden }) =>
    ({ id, kind, form, label, parent, x, y, w, h, depth, on: Boolean(on), hidden: hidden || 0 })) };
"""


def drawn(node: Evaluate, step: dict[str, Any], **room: Any) -> dict[str, Any]:
    return node(DRAWN, {"step": step, "room": room})


def overlaps(items: list[dict[str, Any]]) -> list[tuple[Any, Any]]:
    """Pairs whose boxes share area."""
    found = []
    for place, a in enumerate(items):
        for b in items[place + 1 :]:
            beside = a["x"] < b["x"] + b["w"] and b["x"] < a["x"] + a["w"]
            above = abs(a["y"] - b["y"]) < (a["h"] + b["h"]) / 2 - 2.5
            if beside and above:
                found.append((a["id"], b["id"]))
    return found


EXPLAIN = """
const step = parseStep(given.step);
const nodes = step.nodes.map((node) => rules.explain(step, node));
return [...nodes, step.bonus ? rules.explain(step, step.bonus) : "", rules.ending(step), rules.of(step).title];
"""
