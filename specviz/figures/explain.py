"""Why a run was or was not faster than the baseline: the terms of the speed-up, each with a sentence.

speed-up = tau x t_AR / (t_draft + t_verify + t_judge + t_commit + t_host). Times are means over the steps that were not cut
short.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from specviz.figures.theme import count, duration, percent
from specviz.trace import metrics
from specviz.trace.schema import PHASES, Step, Trace

SILENT = 0.25
"""Minimum share of steps without a draft at which it is emphasised."""
FEW_TOKENS = 1.3
"""Tokens per pass below which acceptance is called the limit."""
STANDS_OUT = 0.05
"""Minimum share of a step for an overhead to be named."""
AGREE = 0.03
"""Relative error below which the prediction explains the measurement."""
DOING = {"draft": "Drafting", "verify": "Verifying", "judge": "Judging", "commit": "Committing", "host": "Host work"}


@dataclass(frozen=True)
class Term:
    """One line of the explanation.

    ``value``: in ``unit``, one of "x", "tokens", "ns", "share" and ""; None if unknown. ``share``: a cost as a share of a step.
    ``without``: predicted speed-up if the cost were saved. ``loud``: whether to emphasise the term.
    """

    name: str
    label: str
    value: float | None
    unit: str
    sentence: str
    share: float | None = None
    without: float | None = None
    loud: bool = False


@dataclass(frozen=True)
class _Costs:
    """Mean costs per target pass in nanoseconds, over the steps that were not cut short.

    ``phases``: cost by phase. ``plain``: cost of a token in the autoregressive run; None if unknown.
    """

    tau: float
    phases: Mapping[str, float]
    plain: float | None

    @property
    def total(self) -> float:
        return sum(self.phases.values())

    @property
    def divided(self) -> bool:
        """Whether a phase other than "host" was timed; a server's client times whole steps."""
        return self.total > self.phases["host"]

    def loss(self, phase: str) -> float:
        """Cost of a phase in excess of the autoregressive run, which also needs one target pass per step."""
        if phase != "verify":
            return self.phases[phase]
        return max(0.0, self.phases["verify"] - self.plain) if self.plain else 0.0

    def speedup(self, saved: float = 0.0) -> float | None:
        left = self.total - saved
        return self.tau * self.plain / left if self.plain and left > 0 else None


def step_cost_label(trace: Trace) -> str:
    """Return the label for mean costs: "one step", unless steps have several target passes."""
    return "a step ÷ its passes" if any(step.passes > 1 for step in trace.steps) else "one step"


def explain(trace: Trace) -> list[Term]:
    """Return the terms in reading order: verdict, costs, outcome. Returns an empty list for a trace without steps."""
    if not trace.steps:
        return []
    costs = _costs(trace)
    found = metrics.compared_speed(trace)
    measured = found.speedup if found else None
    terms = [_verdict(trace, costs, found), *_steps_without_draft(trace)]
    if costs:
        sentence = f"A target pass gives {costs.tau:.2f} tokens: the speed-up if a step cost no more than a one-token pass."
        terms.append(Term("tau", "tokens per pass, τ", costs.tau, "tokens", sentence))
        if costs.plain:
            sentence = (
                f"One token of the autoregressive run takes {duration(costs.plain)}; "
                f"{costs.tau:.2f} of them take {duration(costs.tau * costs.plain)}."
            )
            terms.append(Term("plain", "one AR pass, t_AR", costs.plain, "ns", sentence))
        if costs.divided:
            terms += [_cost(costs, phase) for phase in PHASES]
    return terms + _outcome(trace, costs, measured)


def _costs(trace: Trace) -> _Costs | None:
    """Return the mean costs; None if every step was cut short."""
    uncut, baseline = [step for step in trace.steps if step.cut is None], trace.baseline
    length = metrics.tau(trace.steps)
    if length is None:
        return None
    passes = sum(step.passes for step in uncut)
    means = {phase: sum(getattr(step.time, phase) for step in uncut) / passes for phase in PHASES}
    per_token = metrics.ratio(baseline.total_ns, len(baseline.token_ns)) if baseline else None
    return _Costs(length, means, per_token or None)


def _verdict(trace: Trace, costs: _Costs | None, found: metrics.SpeedComparison | None) -> Term:
    loud = bool(found and found.word == "slower")
    if all(map(_silent, trace.steps)):
        loud = trace.run.method != "autoregressive"
        sentence = "One token per pass: this is the autoregressive run, which drafts nothing."
        if loud:
            sentence = (
                f"The drafter proposed nothing in any of {count(len(trace.steps), 'step')}, "
                "so every pass gave one token and nothing could be saved."
            )
    else:
        sentence = "The speed-up is unknown: this run was recorded without an autoregressive baseline."
        if found:
            sentence = f"{found.sentence}."
        if costs and costs.divided:
            sentence += " " + _bottleneck_sentence(costs)
    return Term("verdict", "in one sentence", found.speedup if found else None, "x", sentence, loud=loud)


def bottleneck(trace: Trace) -> str | None:
    """Return the name of the term that limits the speed-up most, a phase or "tau"; None if nothing stands out."""
    costs = _costs(trace) if trace.steps else None
    return _bottleneck(costs) if costs and costs.divided else None


def _bottleneck(costs: _Costs) -> str | None:
    if costs.tau < FEW_TOKENS:
        return "tau"
    worst = max(PHASES, key=costs.loss)
    return worst if costs.total and costs.loss(worst) / costs.total >= STANDS_OUT else None


def _bottleneck_sentence(costs: _Costs) -> str:
    term_name = _bottleneck(costs)
    if term_name == "tau":
        return f"Acceptance is the limit: a pass gives only {costs.tau:.2f} tokens, so there is little to gain."
    if term_name is None:
        return f"No cost stands out: a step costs about one target pass and gives {costs.tau:.2f} tokens."
    if term_name == "verify" and costs.plain:
        sentence = (
            "Verifying is the largest overhead: a pass over the draft costs as much as "
            f"{costs.phases[term_name] / costs.plain:.1f} one-token passes."
        )
    else:
        sentence = (
            f"Beyond the one target pass that a step needs, {DOING[term_name].lower()} costs most: "
            f"{percent(costs.phases[term_name] / costs.total)} of each step."
        )
    without = costs.speedup(costs.loss(term_name))
    if without is not None:
        wish = "it cost only one" if term_name == "verify" else "it were free"
        sentence += f" If {wish}, the speed-up would be {without:.2f}×."
    return sentence


def _silent(step: Step) -> bool:
    """Return whether nothing was drafted; a recording may lack the rejected nodes, but counts them as verified."""
    return not (step.verified or step.nodes[1:])


def _steps_without_draft(trace: Trace) -> list[Term]:
    """Return a term if some, but not all, steps have no draft."""
    silent = sum(map(_silent, trace.steps))
    if silent in (0, len(trace.steps)):
        return []
    share = silent / len(trace.steps)
    sentence = f"The drafter proposed nothing in {silent} of {len(trace.steps)} steps; each gave one token at full cost."
    return [Term("silence", "steps without a draft", share, "share", sentence, loud=share >= SILENT)]


def _cost(costs: _Costs, phase: str) -> Term:
    spent = costs.phases[phase]
    share = metrics.ratio(spent, costs.total)
    sentence = f"{DOING[phase]} takes {percent(share)} of each step."
    if phase == "verify" and costs.plain:
        sentence += f" A pass over the draft costs as much as {spent / costs.plain:.2f} one-token passes."
    loss = costs.loss(phase)
    without = costs.speedup(loss) if loss else None
    return Term(phase, phase, spent, "ns", sentence, share=share, without=without)


def _outcome(trace: Trace, costs: _Costs | None, measured: float | None) -> list[Term]:
    if not trace.baseline:
        sentence = "No autoregressive run was recorded, so there is no speed-up to explain; run again with a baseline."
        return [Term("measured", "measured speed-up", None, "x", sentence)]
    predicted = costs.speedup() if costs else None
    terms = []
    if predicted is not None:
        assert costs and costs.plain
        sentence = f"{costs.tau:.2f} × {duration(costs.plain)} ÷ {duration(costs.total)} = {predicted:.2f}×."
        terms.append(Term("predicted", "predicted speed-up", predicted, "x", sentence))
    terms.append(Term("measured", "measured speed-up", measured, "x", _gap(trace, predicted, measured)))
    divergence = trace.baseline.first_divergence
    if divergence:
        other = "draws other codes" if trace.run.modality == "image" else "writes other text"
        sentence = f"The autoregressive run {other} {metrics.parting(trace) or f'after token {divergence.position}'}."
        terms.append(Term("divergence", "texts diverge after token", divergence.position, "", sentence))
    return terms


def _gap(trace: Trace, predicted: float | None, measured: float | None) -> str:
    """Return a sentence that compares measurement and prediction. The prediction excludes only steps that were cut short."""
    if measured is None:
        return "There is nothing to measure: no time or no tokens were recorded."
    if predicted is None:
        return f"{measured:.2f}×, but every step was cut short, so there is no prediction to compare it with."
    if abs(predicted / measured - 1) < AGREE:
        return f"{measured:.2f}×, as predicted: the terms above explain the run."
    cut = count(sum(step.cut is not None for step in trace.steps), "step")
    return f"{measured:.2f}×, not {predicted:.2f}×: {cut} cut short gave fewer tokens at full cost."
