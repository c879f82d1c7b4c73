"""Live run on the terminal: accepted text coloured by the origin of each token, then the numbers."""

from __future__ import annotations

import sys
from typing import Any

from specviz.commands.console import colours, emit, printable, say, table, tell
from specviz.figures.explain import explain
from specviz.figures.theme import number, percent
from specviz.trace.metrics import parting
from specviz.trace.schema import RELAXED, End, Run, Step, Trace

_PLAIN = "\x1b[0m"
_STYLES = {"accepted": "\x1b[4;34m", "relaxed": "\x1b[4;33m", "own": "\x1b[32m"}


class Live:
    """Terminal view of a run's events. ``quiet`` prints warnings alone, and one JSON object at the end."""

    def __init__(self, quiet: bool = False) -> None:
        self._quiet = quiet
        self._styled = colours()
        self._ended = False

    def take(self, event: Run | Step | End) -> None:
        """Show one event."""
        if isinstance(event, Run):
            self._begin(event)
        elif isinstance(event, Step) and not self._quiet:
            for place, piece in enumerate(event.pieces):
                sys.stdout.write(self._dressed(event, place, printable(piece)))
            sys.stdout.flush()
        elif isinstance(event, End) and not self._quiet and not self._ended:
            self._ended = True
            sys.stdout.write("\n\n")
            sys.stdout.flush()

    def _begin(self, run: Run) -> None:
        for warning in run.warnings:
            tell(f"warning: {warning}")
        if self._quiet:
            return
        tell(f"{run.title} on {run.target}: {', '.join(part for part in (run.dtype, run.device, f'{run.tier} tier') if part)}")
        if self._styled:
            own = f"{_STYLES['own']}the target's own token{_PLAIN}"
            tell(f"{_STYLES['accepted']}drafted and accepted{_PLAIN} · {own}\n", raw=True)

    def _dressed(self, step: Step, place: int, piece: str) -> str:
        if not self._styled:
            return piece
        kind = "own" if place >= len(step.path) else "accepted"
        if kind == "accepted" and step.nodes[step.path[place]].status == RELAXED:
            kind = "relaxed"
        # A style that runs over a line end would colour the rest of the terminal's line.
        return "\n".join(f"{_STYLES[kind]}{line}{_PLAIN}" if line else "" for line in piece.split("\n"))

    def finish(self, trace: Trace, out: str | None) -> None:
        """Print the metrics under the text, or the whole outcome as JSON."""
        if self._quiet:
            return emit(_outcome(trace))
        say(table(_rows(trace) + ([("trace", out)] if out else [])))


def _outcome(trace: Trace) -> dict[str, Any]:
    """Return the object that ``--json`` prints."""
    run, end = trace.run, trace.end
    assert end is not None
    sampling = run.sampling
    return {
        "output_ids": list(end.output_ids),
        "text": end.text,
        "method": run.method,
        "exactness": run.exactness,
        "metrics": dict(end.metrics),
        "reason": end.reason,
        "message": end.message,
        "busy": end.busy,
        "target": run.target,
        "draft": run.draft,
        "parameters": dict(run.parameters),
        "sampling": {name: getattr(sampling, name) for name in ("temperature", "top_k", "top_p", "seed")},
        "device": run.device,
        "dtype": run.dtype,
        "tier": run.tier,
        "warnings": list(run.warnings),
    }


def _rows(trace: Trace) -> list[tuple[str, str]]:
    end, metrics = trace.end, (trace.end.metrics if trace.end else {})
    assert end is not None
    seconds, shares = metrics["seconds"], metrics["shares"]
    passes = metrics.get("passes", metrics["steps"])
    rows = [
        ("tokens", f"{metrics['emitted']} in {passes} target passes, ended by {end.reason.replace('_', ' ')}"),
        ("τ", f"{number(metrics['tau'])} tokens a pass"),
        ("accepted", f"{metrics['accepted']} of {metrics['verified']} drafted tokens that were verified"),
        ("by depth", " ".join(percent(share) for share in metrics["accepted_by_depth"]) or "nothing was drafted"),
        (
            "time",
            f"{seconds['total']:.2f} s: " + " · ".join(f"{name} {percent(share)}" for name, share in shares.items()),
        ),
        ("speed", f"{number(metrics['tokens_per_second'], 1)} tokens a second"),
    ]
    if end.baseline is not None:
        rows += _compared(trace)
    why = sorted(explain(trace), key=lambda term: term.name == "verdict")
    return rows + [("why", term.sentence) for term in why if term.loud or term.name == "verdict"]


def _compared(trace: Trace) -> list[tuple[str, str]]:
    assert trace.end is not None and trace.end.baseline is not None
    metrics, divergence = trace.end.metrics, trace.end.baseline.first_divergence
    parts = parting(trace) or f"after token {divergence.position}" if divergence else ""
    baseline_rate = f"{number(metrics['baseline_tokens_per_second'], 1)} tokens a second"
    same = f"other text {parts}" if parts else "the same text, token for token"
    return [
        ("baseline", f"{baseline_rate}, {same}"),
        ("speed-up", f"{number(metrics['speedup'])}× measured, {number(metrics['predicted_speedup'])}× predicted"),
    ]
