"""Metrics of a run from its steps alone: τ, acceptance by depth, efficiency, time by phase, speed-ups.

Public tools define these terms differently, so ``FORMULAS`` states the definition used here in one sentence each.
A number that is undefined for a run (no steps, no time, no baseline) is None, never 0 and never an exception.
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
"""Ratio below which two times per token count as equal, since repeated runs on one machine differ by as much."""
DRAWN_RULES = ("ratio", "without_replacement", "traversal")
"""Rules that preserve the target's distribution, not the tokens of one autoregressive run."""
EQUAL_RULES = ("none", "greedy", "match")
"""Rules that keep the target's own choices: the tokens equal those of the autoregressive run, except for rounding."""


@dataclass(frozen=True)
class Verdict:
    """Speed of a run relative to its autoregressive run: the one verdict that every view shows.

    ``speedup`` is a ratio of times per token, so the two texts may differ in length.
    """

    speedup: float

    @property
    def word(self) -> str:
        """ "faster", "slower", or "level" if the difference is within ``LEVEL``."""
        return "level" if 1 / LEVEL < self.speedup < LEVEL else "faster" if self.speedup > 1 else "slower"

    @property
    def sentence(self) -> str:
        """The verdict in words, without a final full stop."""
        if self.word == "level":
            return f"About as fast as one token at a time ({self.speedup:.2f}×)"
        how = "as fast as" if self.word == "faster" else "the speed of"
        return f"{self.speedup:.2f}× {how} one token at a time"


def verdict(trace: Trace) -> Verdict | None:
    """Return the verdict on a run; None if the autoregressive run was not timed, or the run has no time or no tokens."""
    return _verdict(trace.steps, trace.baseline)


def _verdict(steps: Sequence[Step], baseline: Baseline | None) -> Verdict | None:
    spent = sum(step.time.total for step in steps)
    tokens = sum(len(step.emitted) for step in steps)
    if baseline is None or not baseline.total_ns or not spent or not tokens:
        return None
    return Verdict(baseline.total_ns / len(baseline.token_ns) * tokens / spent)


def promise(trace: Trace) -> str:
    """Return a run's guarantee about its output, by its accept rules: "equal", "distribution" or "relaxed".

    A method that is relaxed only above temperature 0 makes the target's own choices at 0, which its rules show.
    """
    rules = {step.rule for step in trace.steps}
    judged = rules - {"none"}
    if trace.run.exactness == "relaxed" and not (judged and rules.issubset(EQUAL_RULES)):
        return "relaxed"
    return "distribution" if rules.intersection(DRAWN_RULES) else "equal"


def parting(trace: Trace) -> str:
    """Describe where a run guaranteed "equal" diverges from its autoregressive run, with the logit gap; "" if it does not.

    Positions count from 0, so a divergence at position n comes after n tokens. Above temperature 0, logits do not show how close
    the draw was, so the gap is reported only for greedy runs. A run with another guarantee yields "".
    """
    divergence = None if trace.baseline is None else trace.baseline.first_divergence
    if divergence is None or promise(trace) != "equal":
        return ""
    where = f"after token {divergence.position}"
    if divergence.gap is None or trace.run.sampling.temperature:
        return where
    return f"{where}, where two logits {'tie' if not divergence.gap else f'are {divergence.gap:.3g} apart'}"


def ratio(above: float, below: float) -> float | None:
    """Return ``above / below``, or None if ``below`` is 0."""
    return above / below if below else None


def tau(steps: Sequence[Step]) -> float | None:
    """Return tokens emitted per target pass, over the steps that were not cut short; None if there are none."""
    uncut = [step for step in steps if step.cut is None]
    return ratio(sum(len(step.emitted) for step in uncut), sum(step.passes for step in uncut))


def histogram(steps: Sequence[Step], most: int | None = None) -> list[int]:
    """Return the number of steps with exactly i accepted tokens for i from 0 to ``most``, by default the largest number."""
    counts = Counter(step.accepted for step in steps)
    return [counts[number] for number in range(1 + (max(counts, default=-1) if most is None else most))]


def accepted_by_depth(steps: Sequence[Step]) -> list[float | None]:
    """Return, for each depth from 1, the fraction of steps that accepted a node there among those that judged one."""
    return [ratio(accepted, judged) for accepted, judged in verdicts_by_depth(steps)]


def verdicts_by_depth(steps: Sequence[Step]) -> list[tuple[int, int]]:
    """Return, for each depth from 1, how many steps accepted a node there, and how many judged one.

    All verdicts count, even on tokens later cut off by the token limit or an end of sequence. Drafts that a server counted as
    rejected without naming them count as judged just below the accepted path.
    """
    judging: Counter[int] = Counter()
    accepting: Counter[int] = Counter()
    for step in steps:
        parents = {node.parent for node in step.nodes if node.status != PRUNED}
        unnamed = any(note.type == "served" and note.data.get("untold") for note in step.notes)
        for depth, reached in enumerate((0, *step.path)):
            on_path = depth < len(step.path)
            if reached in parents or (unnamed and not on_path):
                judging[depth] += 1
                accepting[depth] += on_path and step.nodes[step.path[depth]].status != RESAMPLED
    return [(accepting[depth], judging[depth]) for depth in range(len(judging))]


def seconds(steps: Sequence[Step], prefill_ns: int = 0, capture_ns: int = 0) -> dict[str, float]:
    """Return seconds of wall time by phase, their total, and outside the total the prefill and any CUDA graph capture."""
    spent = {phase: sum(getattr(step.time, phase) for step in steps) for phase in PHASES}
    spent |= {"total": sum(spent.values()), "prefill": prefill_ns}
    if capture_ns:
        spent["capture"] = capture_ns
    return {phase: ns / 1e9 for phase, ns in spent.items()}


def summarise(
    steps: Sequence[Step], end_reason: str, prefill_ns: int, baseline: Baseline | None = None, capture_ns: int = 0
) -> dict[str, Any]:
    """Return all metrics of a run as plain JSON, with the keys of ``FORMULAS``; the last four require a baseline."""
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
    if baseline is not None:
        found, divergence = _verdict(steps, baseline), baseline.first_divergence
        uncut = [step for step in steps if step.cut is None]
        tokens, uncut_ns = sum(len(step.emitted) for step in uncut), sum(step.time.total for step in uncut)
        per_token = ratio(baseline.total_ns, len(baseline.token_ns))
        summary |= {
            "baseline_tokens_per_second": ratio(len(baseline.token_ns), baseline.total_ns / 1e9),
            "speedup": found and found.speedup,
            "predicted_speedup": None if per_token is None else ratio(per_token * tokens, uncut_ns),
            "first_divergence": divergence and {"position": divergence.position, "gap": divergence.gap},
        }
    return summary
