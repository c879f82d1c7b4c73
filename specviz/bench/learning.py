"""The learning suite: what more data brought each drafter, from the curves that travel inside the weights that ship, and from
those of trainings that began with a fresh network and whose weights do not.

Nothing is trained: a training measures itself at milestones, on held-out answers of the kinds that results are reported on.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from specviz.bench.report import Report, Row
from specviz.drafters.networks.weights import read_weights
from specviz.figures.learning_curves import FROM_FRESH, Milestone, learning_curves
from specviz.models.drafters.heads import WEIGHTS
from specviz.models.hub.cache_dir import cache_folder, ensure_folder

MARKS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
"""Million distinct answer tokens."""
AN_UPDATE = 15_000
"""By so many tokens at most a milestone comes late that was asked for at a mark."""
FRESH = "first_passes.json"
"""Beside the weights: milestones by drafter, as ``train NAME --data FILE`` prints them where it does not resume."""


def run(report: Report, target: str, methods: Sequence[str], quick: bool = False) -> None:
    """A row a drafter whose card holds a curve, and a page with all of them."""
    curves = {path.stem: milestones for path in sorted(WEIGHTS.glob("*.safetensors")) if (milestones := curve_of(path))}
    curves |= {f"{name}{FROM_FRESH}": milestones for name, milestones in fresh_curves().items()}
    for name, milestones in curves.items():
        report.add(row(name, milestones))
    if curves:
        where = ensure_folder(cache_folder() / "bench") / "learning-curves.html"
        learning_curves(curves).write_html(where, include_plotlyjs=True)
        report.say(f"Drawn in {where}.")


def curve_of(path: Path) -> list[Milestone]:
    """The milestones that a file of weights tells of. Those of earlier versions count distinct tokens alone: how much had been
    learned from is then known of the first pass only."""
    metrics = read_weights(path)[1].get("metrics", "")
    milestones: list[dict[str, float]] = json.loads(metrics).get("curve", []) if metrics.startswith("{") else []
    found: list[Milestone] = []
    for one in milestones:
        again = bool(found) and one["distinct"] <= found[-1].distinct
        tokens = one.get("tokens", None if again else one["distinct"])
        found.append(Milestone(tokens, one["distinct"], one["tau"], one["gap"]))
    return found


def fresh_curves() -> dict[str, list[Milestone]]:
    """The milestones of trainings from a fresh network, by drafter."""
    path = WEIGHTS / FRESH
    told: dict[str, list[dict[str, float]]] = json.loads(path.read_text()) if path.is_file() else {}
    return {name: [Milestone(**one) for one in milestones] for name, milestones in told.items()}


def row(name: str, milestones: Sequence[Milestone]) -> Row:
    """The last acceptance length, and in the columns the one at each amount of distinct tokens."""
    cells = {"drafter": f"`{name}`"}
    for mark in MARKS:
        cells[f"{mark:g} M"] = at(milestones, mark * 1e6)
    last = milestones[-1]
    passes = "–" if last.tokens is None else f"{last.tokens / last.distinct:.1f}"
    cells |= {"passes": passes, "τ at the end": f"{last.tau:.2f}", "gap": f"{last.gap:.2f}"}
    in_all = "" if last.tokens is None else f", {last.tokens / 1e6:.2f} million in all"
    detail = f"{last.distinct / 1e6:.2f} million distinct answer tokens{in_all}"
    return Row(name, last.tau, "tokens", detail=detail, cells=cells, table="learning")


def at(milestones: Sequence[Milestone], distinct: float) -> str:
    """τ of the milestone at so many distinct tokens, or between the two around them; a dash where the text was less. How often
    it had been read by then, the column of passes tells."""
    rising = list[Milestone]()
    for one in milestones:
        if one.tokens is not None and (not rising or one.distinct > rising[-1].distinct):
            rising.append(one)
    for one in rising:
        if 0 <= one.distinct - distinct < AN_UPDATE:
            return f"{one.tau:.2f}"
    for before, after in pairwise(rising):
        if before.distinct <= distinct <= after.distinct:
            share = (distinct - before.distinct) / max(1.0, after.distinct - before.distinct)
            return f"{before.tau + share * (after.tau - before.tau):.2f}"
    return "–"
