"""Falcon's ablations: a drafter forward beside one of EAGLE's, and training with and without glancing.

Trees of one depth and size throughout: EAGLE takes a forward a level, Falcon one for every two. The control was trained
like Falcon's drafter but never shown anything.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from specviz.bench.kit.measure import Bencher, TimedRun
from specviz.bench.kit.report import Report, Row
from specviz.drafters.networks.block_net import BlockNet
from specviz.errors import SpecvizError
from specviz.models.drafters.falcon_ablation import load_plain
from specviz.runner import Prepared

NODES, WIDTH, FORWARDS = 24, 8, 2
LEVELS = 2
"""Of a forward of Falcon's drafter."""
TREES: dict[str, dict[str, Any]] = {
    "falcon": {"tree": "fitted", "nodes": NODES, "width": WIDTH, "forwards": FORWARDS},
    "eagle2": {"depth": LEVELS * FORWARDS, "nodes": NODES, "width": WIDTH},
}
PLAIN = "without glancing"


@dataclass
class Arm:
    """What one drafter's runs gave: τ by prompt, accepted drafts by step, tokens and drafter forwards in all."""

    tau: list[float] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    emitted: int = 0
    forwards: int = 0

    def add(self, timed: TimedRun) -> None:
        """One more prompt; steps that were cut short count for nothing."""
        steps = [step for step in timed.steps if step.cut is None]
        self.tau.append(timed.tau)
        self.lengths += [len(step.path) for step in steps]
        self.emitted += sum(len(step.emitted) for step in steps)
        self.forwards += sum(step.draft_calls for step in steps)

    @property
    def tokens_per_forward(self) -> float:
        """Tokens emitted a drafter forward."""
        return self.emitted / max(1, self.forwards)

    def acceptance_at(self, depth: int) -> float:
        """Of the steps that accepted ``depth`` - 1 drafts the share that accepted one more."""
        reached = sum(length >= depth - 1 for length in self.lengths)
        return sum(length >= depth for length in self.lengths) / max(1, reached)


def compare(report: Report, bench: Bencher, prompts: Mapping[str, Sequence[str]], temperature: float = 0.0) -> None:
    """Rows for both comparisons on these prompts."""
    arms, missing = run_drafters(bench, [text for texts in prompts.values() for text in texts], temperature)
    where = f", T = {temperature:g}"
    for name, rows in (("eagle2", _forwards), (PLAIN, _glancing)):
        if "falcon" not in arms or name not in arms:
            why = missing.get("falcon") or missing.get(name, "not run")
            report.add(Row(f"Falcon beside {name}{where}", None, detail=why))
            continue
        for row in rows(arms["falcon"], arms[name], where):
            report.add(row)


def _forwards(ours: Arm, theirs: Arm, where: str) -> list[Row]:
    tokens = Row(
        f"tokens a drafter forward, Falcon over EAGLE with a tree of the same depth and size{where}",
        ours.tokens_per_forward / theirs.tokens_per_forward, goal=1.0,
        detail=f"{ours.tokens_per_forward:.2f} and {theirs.tokens_per_forward:.2f}; "
        f"drafter forwards {ours.forwards} and {theirs.forwards}",
    )  # fmt: skip
    return [tokens, _tau(f"τ: Falcon over EAGLE, same depth and size{where}", ours, theirs, None)]


def _glancing(ours: Arm, theirs: Arm, where: str) -> list[Row]:
    rows = [_tau(f"τ: glancing over plain training{where}", ours, theirs, 1.0)]
    for depth in range(1, LEVELS * FORWARDS + 1):
        glanced, plain = ours.acceptance_at(depth), theirs.acceptance_at(depth)
        name = f"acceptance at depth {depth} (place {1 + (depth - 1) % LEVELS} of a block), glancing over plain{where}"
        rows.append(Row(name, glanced / plain if plain else None, detail=f"{glanced:.3f} and {plain:.3f}"))
    return rows


def _tau(name: str, ours: Arm, theirs: Arm, goal: float | None) -> Row:
    mean, other = statistics.mean(ours.tau), statistics.mean(theirs.tau)
    better = sum(our_tau > their_tau for our_tau, their_tau in zip(ours.tau, theirs.tau, strict=True))
    worse = sum(our_tau < their_tau for our_tau, their_tau in zip(ours.tau, theirs.tau, strict=True))
    detail = f"{mean:.3f} and {other:.3f}; more on {better}, less on {worse} of {len(ours.tau)} prompts"
    return Row(name, mean / other, goal=goal, detail=detail)


def run_drafters(bench: Bencher, prompts: Sequence[str], temperature: float = 0.0) -> tuple[dict[str, Arm], dict[str, str]]:
    """Every prompt decoded by each drafter that is at hand, and why another is not."""
    arms: dict[str, Arm] = {}
    missing: dict[str, str] = {}
    for name in ("falcon", "eagle2", PLAIN):
        try:
            network = load_plain(_prepared(bench, prompts[0], temperature, PLAIN).target) if name == PLAIN else None
            arm = Arm()
            for text in prompts:
                arm.add(_timed_run(bench, text, temperature, name, network))
            arms[name] = arm
        except SpecvizError as problem:
            missing[name] = str(problem)
    return arms, missing


def _prepared(bench: Bencher, text: str, temperature: float, name: str) -> Prepared:
    method = "falcon" if name == PLAIN else name
    return bench.prepared(method, text, temperature, parameters=TREES[method])


def _timed_run(bench: Bencher, text: str, temperature: float, name: str, network: BlockNet | None) -> TimedRun:
    """A run of the drafter called ``name``, or of ``network`` in its place."""
    ready = _prepared(bench, text, temperature, name)
    if network is not None:
        ready.parts = ready.parts.using(drafter_weights=lambda kind: network)
    return bench.timed_run(ready)
