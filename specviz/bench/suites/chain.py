"""The chain suite: whether a cascade's intermediate model pays, as its condition says, and what parallel layers cost.

Each candidate for the intermediate model is measured twice: its passes and what it keeps give the forecast of the insertion
condition, and a timed run beside the chain of two gives the gain; the two should have the same sign. Times and lengths are of
this machine.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from specviz.bench.kit.measure import Bencher, TimedRun, in_own_thread, median_ratio, range_text
from specviz.bench.kit.prompts import CALIBRATION, KINDS
from specviz.bench.kit.report import Report, Row
from specviz.errors import SpecvizError
from specviz.methods.polybasic.chain_lengths import ChainLengths
from specviz.methods.polybasic.cost_model import CascadeForecast, Costs, Lengths, forecast
from specviz.methods.polybasic.method import INTERMEDIATES
from specviz.methods.resources import TREES
from specviz.runner import Prepared
from specviz.trace.schema import Step

DRAFTER_TREE = {"depth": 2, "width": 3, "nodes": 3}
"""The drafter's tree, alone under the target and under every intermediate model."""
DRAFTER_ALONE = ("eagle3", {"depth": 2, "width": 3, "nodes": 3})
COPY_ALONE = ("prompt_lookup", {"longest": 3, "shortest": 2, "copied": 2, "occurrence": "latest", "partial": True})
"""The drafter alone where a named model is the intermediate one: text copied as far as K levels."""
LENGTHS = TREES / "polybasic.json"
QUICK = 2
TOKENS = 64
LONG = 192
SIZES = (1, 2, 3, 4, 5)
SIDE_BY_SIDE = "Layers side by side; in brackets against one layer at a time"


@dataclass
class ChainCounts:
    """What a chain's levels did over some runs: target passes and tokens, intermediate passes, tokens kept and judged."""

    rounds: int = 0
    emitted: int = 0
    calls: int = 0
    passes: int = 0
    buffered: int = 0
    judged: int = 0
    accepted: int = 0

    def add(self, steps: Sequence[Step]) -> None:
        """One run's steps; those that were cut short say nothing."""
        for step in steps:
            if step.cut is not None:
                continue
            self.rounds += 1
            self.emitted += len(step.emitted)
            belts = [note.data for note in step.notes if note.type == "belts"]
            self.calls += (
                sum(middle_pass["calls"] for data in belts for middle_pass in data["passes"]) if belts else step.draft_calls
            )
            self.accepted += len(step.path)
            self.judged += len(step.path) + (len(step.path) < step.verified)
            for data in belts:
                self.passes += len(data["passes"])
                self.buffered += data["length"]

    @property
    def alone(self) -> Lengths:
        """As a chain of two: tokens a target pass, drafter forwards for it."""
        return Lengths(0.0, self.emitted / max(1, self.rounds), self.calls / max(1, self.rounds))

    @property
    def between(self) -> Lengths:
        """As a chain of three: how often a token is kept, tokens an intermediate pass, drafter forwards for it."""
        passes = max(1, self.passes)
        return Lengths(self.accepted / max(1, self.judged), self.buffered / passes, self.calls / passes)


def count_chain(bench: Bencher, prompts: Sequence[str], method: str, parameters: Mapping[str, Any]) -> ChainCounts:
    """Greedy runs with their notes."""
    counts = ChainCounts()
    for prompt in prompts:
        ready = bench.prepared(method, prompt, parameters=dict(parameters))
        counts.add(bench.timed_run(ready, record="tree").steps)
    return counts


def calibrate(
    target: str, tokens: int = TOKENS, report: Callable[[str], None] = print, draft: str = "", out: Path = LENGTHS
) -> Path:
    """Count what every intermediate model's chain accepts on the calibration prompts, with EAGLE-3 below; or, where a
    ``draft`` is named, what the chain with that intermediate model and copied text below accepts. Writes it into ``out`` beside
    what is known of other targets.
    """
    bench, prompts, below = Bencher(target, tokens, {"draft": draft} if draft else {}), CALIBRATION, "eagle3"
    kinds, without = dict.fromkeys(INTERMEDIATES, ""), DRAFTER_ALONE
    if draft:
        below, kinds, without = "copy", {"draft": draft}, COPY_ALONE
    alone = count_chain(bench, prompts, *without).alone
    report(f"target and drafter: {alone.below:.2f} tokens a pass")
    middles = {}
    for kind, name in kinds.items():
        try:
            lengths = count_chain(bench, prompts, "polybasic", {"middle": kind, "gathered": 8, **DRAFTER_TREE}).between
        except SpecvizError as problem:
            if draft:
                raise
            report(f"{kind}: {problem}")
            continue
        middles[name or kind] = lengths
        report(
            f"{name or kind}: the target keeps {lengths.probability:.3f} of its tokens; {lengths.below:.2f} tokens a pass of it"
        )
    source = f"{len(prompts)} greedy answers of {tokens} tokens, trees of {DRAFTER_TREE['nodes']} nodes"
    ChainLengths(target, below, source, alone, middles).save(out)
    return out


def run(report: Report, target: str, methods: Sequence[str], quick: bool = False) -> None:
    """Both proofs, or the one of the method asked for."""
    bench = Bencher(target, TOKENS)
    prompts = [text for texts in KINDS.values() for text in (texts[:1] if quick else texts[:QUICK])]
    parts: dict[str, Callable[[], None]] = {
        "polybasic": partial(insertion, report, bench, prompts[: 3 if quick else None]),
        "easyspec": partial(side_by_side, report, bench, prompts[: 2 if quick else None]),
    }
    for name, part in parts.items():
        if not methods or name in methods:
            in_own_thread(part)


def insertion(report: Report, bench: Bencher, prompts: Sequence[str]) -> None:
    """A row for every intermediate model: predicted and measured gain over target and drafter alone, and whether they agree."""
    alone = count_chain(bench, prompts, *DRAFTER_ALONE).alone
    agreed, tried, best = 0, 0, 0.0
    for kind in INTERMEDIATES:
        try:
            predicted, gain, ratios = _candidate(bench, prompts, kind, alone)
        except SpecvizError as problem:
            report.add(Row(f"polybasic, {kind} in the middle", None, detail=str(problem)))
            continue
        tried, best = tried + 1, max(best, gain)
        same = (predicted.gain > 1) == (gain > 1)
        agreed += same
        detail = (
            f"forecast {predicted.gain:.2f}; a pass costs {predicted.ratio:.2f} of the target's and may cost "
            f"{predicted.bound:.2f} (margin {predicted.margin:+.2f}); {predicted.with_it:.2f} tokens a target pass instead of "
            f"{predicted.without:.2f}, {predicted.below:.2f} an intermediate pass; "
            f"signs {'agree' if same else 'DIFFER'}; {range_text(ratios)}"
        )
        report.add(Row(f"polybasic, {kind} in the middle ÷ target and drafter alone", gain, detail=detail))
    if tried:
        report.add(
            Row(
                "the condition foretells the sign of the gain",
                agreed / tried,
                "of them",
                1.0,
                detail=f"{agreed} of {tried}",
            )
        )
        report.add(Row("the best intermediate model ÷ none", best, goal=1.0))


def _candidate(bench: Bencher, prompts: Sequence[str], kind: str, alone: Lengths) -> tuple[CascadeForecast, float, list[float]]:
    """The forecast from measured times and lengths, the median measured gain, and the gain on each prompt."""
    chosen = {"middle": kind, **DRAFTER_TREE}
    lengths = count_chain(bench, prompts, "polybasic", {**chosen, "gathered": 8}).between
    ready = bench.prepared("polybasic", prompts[0], parameters=chosen)
    above, intermediate = ready.parts.cost_curve(), ready.parts.intermediate(kind)
    nodes = DRAFTER_TREE["nodes"] if intermediate.branches else DRAFTER_TREE["depth"]
    network = ready.parts.drafter_weights(DRAFTER_ALONE[0])
    forward = ready.parts.forward_cost(network, DRAFTER_TREE["width"], taught=False)
    costs = Costs(above, intermediate.cost(), forward, nodes)
    size, predicted = forecast(costs, alone, lengths)
    ratios = []
    for prompt in prompts:
        two = bench.prepared(DRAFTER_ALONE[0], prompt, parameters=dict(DRAFTER_ALONE[1]))
        three = bench.prepared("polybasic", prompt, parameters={**chosen, "gathered": size})
        ratios.append(median_ratio(_per_token(bench, two), _per_token(bench, three), 2)[0])
    return predicted, statistics.median(ratios), ratios


def _per_token(bench: Bencher, ready: Prepared) -> Callable[[], float]:
    return lambda: bench.timed_run(ready).per_token


@dataclass
class GroupRuns:
    """Runs of one group size: tokens a pass, drafts that were kept of those judged, milliseconds of drafting and of all."""

    tau: list[float] = field(default_factory=list)
    accepted: int = 0
    judged: int = 0
    drafting: float = 0.0
    drafted: int = 0
    whole: float = 0.0
    written: int = 0
    stages: int = 0
    late: list[float] = field(default_factory=list)
    """τ of the second half of each run, where errors that nobody repairs have had time to pile up."""

    @property
    def acceptance(self) -> float:
        """Share of the judged drafts that were kept."""
        return self.accepted / max(1, self.judged)

    @property
    def drafting_each(self) -> float:
        """Milliseconds of drafting a drafted token."""
        return self.drafting / max(1, self.drafted)

    @property
    def each(self) -> float:
        """Milliseconds of the whole run a written token."""
        return self.whole / max(1, self.written)

    def add(self, timed: TimedRun, recorded: TimedRun) -> None:
        """A run for its times, and the same one recorded for its notes."""
        steps = [step for step in timed.steps if step.cut is None]
        self.tau.append(timed.tau)
        self.whole += 1000 * timed.seconds
        self.written += len(timed.ids)
        self.accepted += sum(len(step.path) for step in steps)
        self.judged += sum(len(step.path) + (len(step.path) < step.verified) for step in steps)
        self.drafting += sum(step.time.draft for step in steps) / 1e6
        self.drafted += sum(step.verified for step in steps)
        half = steps[len(steps) // 2 :]
        self.late.append(sum(len(step.emitted) for step in half) / max(1, len(half)))
        self.stages = next((note.data["stages"] for step in recorded.steps for note in step.notes if note.type == "layers"), 0)


def side_by_side(report: Report, bench: Bencher, prompts: Sequence[str]) -> None:
    """Acceptance, critical path and time by group size, with the cache repaired each round and left as it is."""
    for drafter in ("small_draft", "copy"):
        plain: GroupRuns | None = None
        for calibrated, size in _arms():
            try:
                runs = _group_runs(bench, prompts, {"drafter": drafter, "group": size, "calibrated": calibrated})
            except SpecvizError as problem:
                report.add(Row(f"easyspec, {drafter}, N = {size}", None, detail=str(problem)))
                break
            plain = plain or runs
            report.add(group_row(drafter, size, calibrated, runs, plain))


def group_row(drafter: str, size: int, calibrated: bool, runs: GroupRuns, plain: GroupRuns) -> Row:
    """One group size, beside ``plain``, the same draft model one layer at a time."""
    cache = "repaired each round" if calibrated else "never repaired"
    lost = f"{100 * (runs.acceptance / plain.acceptance - 1):+.0f} %" if plain.acceptance else "–"
    drafting = plain.drafting_each / runs.drafting_each if runs.drafting_each else 0.0
    whole = plain.each / runs.each if runs.each else 0.0
    cells = {
        "draft model": drafter,
        "cache": cache,
        "N": str(size),
        "acceptance": f"{runs.acceptance:.3f} ({lost})",
        "attention stages": str(runs.stages),
        "ms a drafted token": f"{runs.drafting_each:.2f} ({drafting:.2f}×)",
        "ms a written token": f"{runs.each:.1f} ({whole:.2f}×)",
        "τ": f"{statistics.mean(runs.tau):.2f}",
        "τ, second half": f"{statistics.mean(runs.late):.2f}",
    }
    detail = ", ".join(f"{column} {cell}" for column, cell in list(cells.items())[3:])
    name = f"easyspec, {drafter}, N = {size}, {cache}: critical path ÷ N = 1"
    return Row(name, runs.stages / plain.stages, detail=detail, cells=cells, table=SIDE_BY_SIDE)


def _arms() -> Iterator[tuple[bool, int]]:
    for calibrated in (True, False):
        for size in SIZES if calibrated else SIZES[1:]:
            yield calibrated, size


def _group_runs(bench: Bencher, prompts: Sequence[str], parameters: Mapping[str, Any]) -> GroupRuns:
    """Long greedy runs; the first few steps once more with their notes."""
    long, short = Bencher(bench.target, LONG, bench.settings), Bencher(bench.target, 4, bench.settings)
    runs = GroupRuns()
    for prompt in prompts:
        timed = long.timed_run(long.prepared("easyspec", prompt, parameters=dict(parameters)))
        recorded = short.timed_run(short.prepared("easyspec", prompt, parameters=dict(parameters)), record="tree")
        runs.add(timed, recorded)
    return runs
