"""GTO's ablations: its drafter against the one it started from and against as many updates by cross-entropy alone.

The drafter that ships and its control learned on dialogues that their start had read, so what this finds of them is no verdict
on the method. All three grow trees of one size. A tree's reward is compared at the same places: those where GTO's own run drafts.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from specviz.bench.kit.measure import Bencher, TimedRun
from specviz.bench.kit.report import Report, Row
from specviz.drafters.feature_stepper import FeatureStepper
from specviz.errors import SpecvizError
from specviz.models.drafters.heads import WEIGHTS, layout_for, load_heads
from specviz.models.drafters.lora_heads import control_file, load_changed
from specviz.runner import Prepared

BEFORE = "eagle3"
SIZE: dict[str, Any] = {"depth": 5, "width": 4, "nodes": 24}
"""Of every tree: that of the training."""
NAMES = {"start": "its start", "control": "as many updates by cross-entropy alone"}


@dataclass
class Comparison:
    """τ and mean tree reward by prompt, for each drafter that is at hand; ``missing`` says why one is not."""

    tau: dict[str, list[float]] = field(default_factory=dict)
    reward: dict[str, list[float]] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)

    def add(self, arm: str, tau: float, reward: float) -> None:
        """One prompt's."""
        self.tau.setdefault(arm, []).append(tau)
        self.reward.setdefault(arm, []).append(reward)


def compare(report: Report, bench: Bencher, prompts: Mapping[str, Sequence[str]], temperature: float = 0.0) -> None:
    """Rows for the three drafters on these prompts."""
    comparison = run_drafters(bench, [text for texts in prompts.values() for text in texts], temperature)
    where = f", T = {temperature:g}"
    for other, name in NAMES.items():
        if other not in comparison.tau:
            report.add(Row(f"GTO over {name}{where}", None, detail=comparison.missing.get(other, "not run")))
            continue
        report.add(_row(f"τ: GTO's drafter over {name}{where}", comparison.tau, other))
        report.add(_row(f"mean tree reward: GTO's drafter over {name}{where}", comparison.reward, other))


def _row(name: str, values: Mapping[str, list[float]], other: str) -> Row:
    ours, theirs = values["gto"], values[other]
    mean, before = statistics.mean(ours), statistics.mean(theirs)
    better = sum(our_value > other for our_value, other in zip(ours, theirs, strict=True))
    worse = sum(our_value < other for our_value, other in zip(ours, theirs, strict=True))
    detail = f"{mean:.4f} and {before:.4f}; more on {better}, less on {worse} of {len(ours)} prompts"
    return Row(name, mean / before, goal=1.0, detail=detail)


def run_drafters(bench: Bencher, prompts: Sequence[str], temperature: float = 0.0) -> Comparison:
    """Decode every prompt with each drafter, and let each draft beside GTO's own run."""
    comparison = Comparison()
    networks = _networks(bench.prepared("gto", prompts[0], temperature, parameters=SIZE), comparison)
    for text in prompts if "gto" in networks else ():
        for other in (name for name in NAMES if name in networks):
            recorded = _timed_run(bench, text, temperature, networks, "gto", other)
            notes = [note.data for step in recorded.steps for note in step.notes if note.type == "reward"]
            if other == "start":
                comparison.add("gto", recorded.tau, statistics.mean(note["reward"] for note in notes))
            alone = _timed_run(bench, text, temperature, networks, other, None)
            comparison.add(other, alone.tau, statistics.mean(note["before"] for note in notes))
    return comparison


def _networks(ready: Prepared, comparison: Comparison) -> dict[str, Any]:
    """Those of the drafters that are at hand, ready to draft."""

    def control() -> FeatureStepper:
        if not control_file().is_file():
            raise SpecvizError("The control is measured, not shipped: `python -m specviz train gto` leaves it for this suite.")
        base = load_heads(BEFORE, None, ready.loaded, ready.target)
        network = load_changed(control_file(), base, WEIGHTS / f"{BEFORE}.safetensors")
        return FeatureStepper(network, layout_for(network))

    makers: dict[str, Callable[[], Any]] = {
        "gto": lambda: ready.parts.drafter_weights("gto"),
        "start": lambda: ready.parts.drafter_weights(BEFORE),
        "control": control,
    }
    networks = {}
    for name, make in makers.items():
        try:
            networks[name] = make()
        except SpecvizError as problem:
            comparison.missing[name] = str(problem)
    if "gto" not in networks:
        comparison.missing |= dict.fromkeys(NAMES, comparison.missing["gto"])
    return networks


def _timed_run(
    bench: Bencher, text: str, temperature: float, networks: Mapping[str, Any], main: str, other: str | None
) -> TimedRun:
    """A run of ``main``'s drafter, with ``other``'s trees beside its own where one is named."""
    ready = bench.prepared("gto", text, temperature, parameters={**SIZE, "compare": other is not None})
    chosen = {"gto": networks[main], BEFORE: networks.get(other or main)}
    ready.parts = ready.parts.using(drafter_weights=chosen.__getitem__)
    return bench.timed_run(ready, record="off" if other is None else "tree")
