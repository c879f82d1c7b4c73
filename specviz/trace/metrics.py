"""Metrics of a run: τ, acceptance by depth, node efficiency, time by phase, speed-ups.

Public tools define these terms differently; ``FORMULAS`` states the definitions used here. A metric that is undefined for a run
(no steps, no time, no baseline) is None.
"""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from specviz.paths import ASSETS
from specviz.trace.schema import PHASES, PRUNED, RESAMPLED, Baseline, Step, Trace

FORMULAS: dict[str, str] = tomllib.loads((ASSETS / "formulas.toml").read_text("utf-8"))
LEVEL = 1.05
"""Speed ratio within which two runs count as equally fast, the usual difference between repeated runs on one machine."""
DRAWN_RULES = ("ratio", "without_replacement", "traversal")
"""Rules that preserve the target's distribution, but not the tokens of the autoregressive run."""
EQUAL_RULES = ("none", "greedy", "match")
"""Rules that reproduce the tokens of the autoregressive run, up to floating-point rounding."""


@dataclass(frozen=True)
class SpeedComparison:
    """Speed of a run relative to the autoregressive run. ``speedup`` is the ratio of the times per token."""

    speedup: float

    @property
    def word(self) -> str:
        """ "faster", "slower", or "level" if the difference is within ``LEVEL``."""
        return "level" if 1 / LEVEL < self.speedup < LEVEL else "faster" if self.speedup > 1 else "slower"

    @property
    def sentence(self) -> str:
        """The comparison in words, without a full stop."""
        if self.word == "level":
            return f"About as fast as one token at a time ({self.speedup:.2f}×)"
        how = "as fast as" if self.word == "faster" else "the speed of"
        return f"{self.speedup:.2f}× {how} one token at a time"


def compared_speed(trace: Trace) -> SpeedComparison | None:
    """Return a run's speed comparison, or None if the run or its autoregressive run has no time or no tokens."""
    found = speedup(trace.steps, trace.baseline)
    return SpeedComparison(found) if found else None


def speedup(steps: Sequence[Step], baseline: Baseline | None) -> float | None:
    """Return the baseline's time per token over the steps' time per token; None without a baseline, time or tokens."""
    spent = sum(step.time.total for step in steps)
    tokens = sum(len(step.emitted) for step in steps)
    if not baseline or not baseline.total_ns or not spent or not tokens:
        return None
    return baseline.total_ns / len(baseline.token_ns) * tokens / spent


def promise(trace: Trace) -> str:
    """Return the guarantee about a run's output: "equal", "distribution" or "relaxed".

    The acceptance rules of the steps decide: a relaxed method that is exact at temperature 0 counts as "equal" in a greedy run.
    """
    rules = {step.rule for step in trace.steps}
    judged = rules - {"none"}
    if trace.run.exactness == "relaxed" and not (judged and rules.issubset(EQUAL_RULES)):
        return "relaxed"
    return "distribution" if rules.intersection(DRAWN_RULES) else "equal"


def parting(trace: Trace) -> str:
    """Describe where a run diverges from the autoregressive run; "" without a divergence or a guarantee "equal".

    The logit gap is reported only for greedy runs, because logits do not show how close a random draw was.
    """
    divergence = trace.baseline.first_divergence if trace.baseline else None
    if not divergence or promise(trace) != "equal":
        return ""
    where = f"after token {divergence.position}"
    if divergence.gap is None or trace.run.sampling.temperature:
        return where
    return f"{where}, where two logits {'tie' if not divergence.gap else f'are {divergence.gap:.3g} apart'}"


def ratio(above: float, below: float) -> float | None:
    return above / below if below else None


def tau(steps: Sequence[Step]) -> float | None:
    """Return the emitted tokens per target pass over the steps that were not cut short; None without such steps."""
    uncut = [step for step in steps if step.cut is None]
    return ratio(sum(len(step.emitted) for step in uncut), sum(step.passes for step in uncut))


def histogram(steps: Sequence[Step], most: int | None = None) -> list[int]:
    """Return, for i from 0 to ``most``, the number of steps with i accepted tokens. By default, ``most`` is the maximum."""
    counts = Counter(step.accepted for step in steps)
    return [counts[number] for number in range(1 + (max(counts, default=-1) if most is None else most))]


def accepted_by_depth(steps: Sequence[Step]) -> list[float | None]:
    """Return the conditional acceptance rate at each depth from 1: steps that accepted a node over steps that judged one."""
    return [ratio(accepted, judged) for accepted, judged in verdicts_by_depth(steps)]


def verdicts_by_depth(steps: Sequence[Step]) -> list[tuple[int, int]]:
    """Return, for each depth from 1, the number of steps that accepted a node and the number that judged one.

    Verdicts on tokens that were cut off at the end count too. Rejected drafts that a server reports without token ids count as
    judged one level below the accepted path. Empty for a recording without the rejected nodes.
    """
    judging, accepting = Counter[int](), Counter[int]()
    for step in steps:
        sent = [node for node in step.nodes if node.status != PRUNED]
        parents, unnamed = {node.parent for node in sent}, any(note.data.get("untold") for note in step.notes)
        if step.verified >= len(sent) and not unnamed:
            return []
        for depth, reached in enumerate((0, *step.path)):
            on_path = depth < len(step.path)
            if reached in parents or (unnamed and not on_path):
                judging[depth] += 1
                accepting[depth] += on_path and step.nodes[step.path[depth]].status != RESAMPLED
    return [(accepting[depth], judging[depth]) for depth in range(len(judging))]


def seconds(steps: Sequence[Step], prefill_ns: int = 0, capture_ns: int = 0) -> dict[str, float]:
    """Return wall time in seconds by phase and in total. Prefill and CUDA graph capture are listed but not in the total."""
    spent = {phase: sum(getattr(step.time, phase) for step in steps) for phase in PHASES}
    spent |= {"total": sum(spent.values()), "prefill": prefill_ns}
    if capture_ns:
        spent["capture"] = capture_ns
    return {phase: ns / 1e9 for phase, ns in spent.items()}


def summarise(
    steps: Sequence[Step], end_reason: str, prefill_ns: int, baseline: Baseline | None = None, capture_ns: int = 0
) -> dict[str, Any]:
    """Return the metrics of a run as plain JSON, keyed as ``FORMULAS``. Without a baseline, the last four are absent."""
    emitted = sum(len(step.emitted) for step in steps)
    accepted, verified = sum(step.accepted for step in steps), sum(step.verified for step in steps)
    spent = seconds(steps, prefill_ns, capture_ns)
    summary: dict[str, Any] = {
        "tau": tau(steps),
        "steps": len(steps),
        "passes": sum(step.passes for step in steps),
        "emitted": emitted,
        "accepted": accepted,
        "accepted_by_depth": accepted_by_depth(steps),
        "histogram": histogram(steps),
        "node_efficiency": ratio(accepted, verified),
        "cut_steps": sum(step.cut is not None for step in steps),
        "draft_calls": sum(step.draft_calls for step in steps),
        "verified": verified,
        "reason": end_reason,
        "seconds": spent,
        "shares": {phase: ratio(spent[phase], spent["total"]) for phase in PHASES},
        "tokens_per_second": ratio(emitted, spent["total"]),
    }
    if baseline:
        divergence = baseline.first_divergence
        summary |= {
            "baseline_tokens_per_second": ratio(len(baseline.token_ns), baseline.total_ns / 1e9),
            "speedup": speedup(steps, baseline),
            "predicted_speedup": speedup([step for step in steps if step.cut is None], baseline),
            "first_divergence": divergence and {"position": divergence.position, "gap": divergence.gap},
        }
    return summary
