"""Terms of the speed-up, each with its sentence, as plain data: why a run was faster than its baseline, or not.

The identity: speed-up = tau x t_AR / (t_draft + t_verify + t_judge + t_commit + t_host), the times means over the steps
that were not cut short.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from specviz.figures.theme import count, duration, percent
from specviz.trace import metrics
from specviz.trace.schema import PHASES, Baseline, Step, Trace

SILENT = 0.25
"""From this share of steps without a drafted token on, the drafter's silence is said aloud."""
FEW_TOKENS = 1.3
"""Below so many tokens a pass no saving elsewhere helps much."""
STANDS_OUT = 0.05
"""A cost below this share of a step is not worth naming as the one that eats the gain."""
AGREE = 0.03
DOING = {"draft": "Drafting", "verify": "Verifying", "judge": "Judging", "commit": "Committing", "host": "Host work"}


@dataclass(frozen=True)
class Term:
    """One line of the explanation.

    ``value`` is in ``unit`` ("x", "tokens", "ns", "share" or ""), None where unknown. ``share`` is a cost's part of
    a step. ``without`` is what the predicted speed-up would be if the cost were gone. ``loud`` asks to be seen first.
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
    """Means over the target's passes of the steps that were not cut, in nanoseconds: most steps have one pass."""

    tau: float
    phases: Mapping[str, float]
    plain: float | None

    @property
    def total(self) -> float:
        return sum(self.phases.values())

    def loss(self, phase: str) -> float:
        """What a phase costs beyond what the autoregressive run pays too: one target pass is not a loss."""
        if phase != "verify":
            return self.phases[phase]
        return max(0.0, self.phases["verify"] - (self.plain or 0.0)) if self.plain else 0.0

    def speedup(self, saved: float = 0.0) -> float | None:
        left = self.total - saved
        return self.tau * self.plain / left if self.plain and left > 0 else None


def priced(trace: Trace) -> str:
    """What the costs are those of: one step, or a pass's share of it where a step takes several."""
    return "a step ÷ its passes" if any(step.passes > 1 for step in trace.steps) else "one step"


def explain(trace: Trace) -> list[Term]:
    """The terms in reading order: verdict, what went in, what came out. Empty while there are no steps."""
    if not trace.steps:
        return []
    plain = trace.end.baseline if trace.end is not None else None
    costs = _costs(trace.steps, plain)
    found = _measured(trace, plain)
    terms = [_verdict(trace, costs, found), *_silence(trace)]
    if costs is not None:
        terms += [_tau(costs), *_plain_pass(costs), *(_cost(costs, phase) for phase in PHASES)]
    return terms + _outcome(trace, costs, found, plain)


def _costs(steps: tuple[Step, ...], plain: Baseline | None) -> _Costs | None:
    """None when every step was cut short: then there is no typical step to speak of."""
    whole = [step for step in steps if step.cut is None]
    length = metrics.tau(steps)
    if length is None:
        return None
    passes = sum(step.passes for step in whole)
    means = {phase: sum(getattr(step.time, phase) for step in whole) / passes for phase in PHASES}
    per_token = metrics.ratio(plain.total_ns, len(plain.token_ns)) if plain else None
    return _Costs(length, means, per_token or None)


def _measured(trace: Trace, plain: Baseline | None) -> float | None:
    if plain is None or trace.end is None:
        return None
    return metrics.summarise(trace.steps, trace.end.reason, trace.end.prefill_ns, plain)["speedup"]


def _drafted(step: Step) -> bool:
    return len(step.nodes) > 1


def _verdict(trace: Trace, costs: _Costs | None, measured: float | None) -> Term:
    """The one sentence for whoever reads only one."""
    if not any(_drafted(step) for step in trace.steps):
        return _nothing_drafted(trace, measured)
    if measured is None:
        said = "How much faster this was is unknown: no autoregressive run was recorded beside it."
    elif abs(measured - 1) < AGREE:
        said = f"As fast as one token at a time ({measured:.2f}×)."
    else:
        said = f"{measured:.2f}× {'faster than' if measured > 1 else 'the speed of'} one token at a time."
    if costs is not None:
        said += " " + _eater(costs)
    return Term("verdict", "in one sentence", measured, "x", said, loud=measured is not None and measured < 1)


def _nothing_drafted(trace: Trace, measured: float | None) -> Term:
    by_design = trace.run.method == "autoregressive"
    said = "One token a pass: this is the autoregressive run itself, nothing is drafted."
    if not by_design:
        steps = count(len(trace.steps), "step")
        said = f"The drafter proposed nothing in all of {steps}, so every pass gave one token and nothing could be saved."
    return Term("verdict", "in one sentence", measured, "x", said, loud=not by_design)


def eater(costs_of: Trace) -> str | None:
    """The name of the term that eats most of the gain: a phase, "tau", or None when nothing stands out."""
    plain = costs_of.end.baseline if costs_of.end is not None else None
    costs = _costs(costs_of.steps, plain) if costs_of.steps else None
    return _worst(costs) if costs is not None else None


def _worst(costs: _Costs) -> str | None:
    if costs.tau < FEW_TOKENS:
        return "tau"
    worst = max(PHASES, key=costs.loss)
    return worst if costs.total and costs.loss(worst) / costs.total >= STANDS_OUT else None


def _eater(costs: _Costs) -> str:
    worst = _worst(costs)
    if worst == "tau":
        return f"Acceptance is the limit: a pass gives only {costs.tau:.2f} tokens, so there is little to gain."
    if worst is None:
        return f"No cost stands out: a step costs about one target pass and gives {costs.tau:.2f} tokens."
    if worst == "verify" and costs.plain is not None:
        passes = costs.phases[worst] / costs.plain
        said = f"Verifying eats most: a pass over the draft takes {passes:.1f} one-token passes."
    else:
        said = f"{DOING[worst]} eats most: it takes {percent(costs.phases[worst] / costs.total)} of each step."
    return said + _if_free(costs, worst)


def _if_free(costs: _Costs, phase: str) -> str:
    without = costs.speedup(costs.loss(phase))
    if without is None:
        return ""
    wish = "it took one" if phase == "verify" else "it were free"
    return f" If {wish}, the speed-up would be {without:.2f}×."


def _silence(trace: Trace) -> list[Term]:
    """Steps without a draft, where only some were; a run without any says so in its verdict."""
    silent = sum(not _drafted(step) for step in trace.steps)
    if silent in (0, len(trace.steps)):
        return []
    share = silent / len(trace.steps)
    said = f"The drafter proposed nothing in {silent} of {len(trace.steps)} steps; each gave one token at full price."
    return [Term("silence", "steps without a draft", share, "share", said, loud=share >= SILENT)]


def _tau(costs: _Costs) -> Term:
    said = f"A target pass gives {costs.tau:.2f} tokens: the speed-up, if a step cost no more than a one-token pass."
    return Term("tau", "tokens per pass, τ", costs.tau, "tokens", said)


def _plain_pass(costs: _Costs) -> list[Term]:
    if costs.plain is None:
        return []
    several = duration(costs.tau * costs.plain)
    said = f"One token of the autoregressive run takes {duration(costs.plain)}; {costs.tau:.2f} of them take {several}."
    return [Term("plain", "one AR pass, t_AR", costs.plain, "ns", said)]


def _cost(costs: _Costs, phase: str) -> Term:
    spent = costs.phases[phase]
    share = metrics.ratio(spent, costs.total)
    said = f"{DOING[phase]} takes {percent(share)} of each step."
    if phase == "verify" and costs.plain:
        said += f" A pass over the draft costs {spent / costs.plain:.2f} one-token passes."
    loss = costs.loss(phase)
    without = costs.speedup(loss) if loss else None
    return Term(phase, phase, spent, "ns", said, share=share, without=without)


def _outcome(trace: Trace, costs: _Costs | None, measured: float | None, plain: Baseline | None) -> list[Term]:
    if plain is None:
        said = "No autoregressive run was recorded, so there is no speed-up to explain; run again with the baseline."
        return [Term("measured", "measured speed-up", None, "x", said)]
    predicted = costs.speedup() if costs else None
    terms = []
    if predicted is not None:
        assert costs is not None and costs.plain is not None
        said = f"{costs.tau:.2f} × {duration(costs.plain)} ÷ {duration(costs.total)} = {predicted:.2f}×."
        terms.append(Term("predicted", "predicted speed-up", predicted, "x", said))
    terms.append(Term("measured", "measured speed-up", measured, "x", _gap(trace, predicted, measured)))
    apart = plain.first_divergence
    if apart is not None:
        near = "" if apart.gap is None else f" (its two best logits were {apart.gap:.2g} apart there)"
        said = f"The autoregressive run writes other text from token {apart.position + 1} on{near}."
        terms.append(Term("divergence", "texts differ from token", apart.position + 1, "", said))
    return terms


def _gap(trace: Trace, predicted: float | None, measured: float | None) -> str:
    """Prediction and measurement differ only by the steps that the prediction leaves out."""
    if measured is None:
        return "Nothing to measure: no time or no tokens were recorded."
    if predicted is None:
        return f"{measured:.2f}×, and every step was cut short, so there is no prediction to hold against it."
    if abs(predicted / measured - 1) < AGREE:
        return f"{measured:.2f}×, as predicted: the terms above explain the run."
    cut = count(sum(step.cut is not None for step in trace.steps), "step")
    return f"{measured:.2f}×, not {predicted:.2f}×: {cut} cut short gave fewer tokens for the full price."
