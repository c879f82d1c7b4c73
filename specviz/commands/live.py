"""Live view of a run on the terminal: text coloured by the origin of each token, then the metrics."""

from __future__ import annotations

import sys
from pathlib import Path

from specviz.commands.console import colours, print_json, print_message, print_result, printable, table
from specviz.figures.explain import explain
from specviz.figures.theme import number, percent
from specviz.trace.metrics import parting
from specviz.trace.schema import RELAXED, End, Run, Step, Trace

_PLAIN = "\x1b[0m"
_STYLES = {"accepted": "\x1b[4;34m", "relaxed": "\x1b[4;33m", "own": "\x1b[32m"}


class TerminalView:
    """Terminal view of a run. ``quiet``: print only warnings and, at the end, a JSON object."""

    def __init__(self, quiet: bool = False) -> None:
        self._quiet = quiet
        self._styled = colours()
        self._ended = False

    def take(self, event: Run | Step | End) -> None:
        if isinstance(event, Run):
            for warning in event.warnings:
                print_message(f"warning: {warning}")
        if self._quiet:
            return
        if isinstance(event, Run):
            how = ", ".join(filter(None, (event.dtype, event.device, f"{event.tier} tier")))
            print_message(f"{event.title} on {event.target}: {how}")
            if self._styled:
                own = f"{_STYLES['own']}the target's own token{_PLAIN}"
                print_message(f"{_STYLES['accepted']}drafted and accepted{_PLAIN} · {own}\n", raw=True)
        elif isinstance(event, Step):
            for place, piece in enumerate(map(printable, event.pieces)):
                if self._styled:
                    node = event.nodes[event.path[place]] if place < len(event.path) else None
                    style = _STYLES["own" if node is None else "relaxed" if node.status == RELAXED else "accepted"]
                    # End the style at each line end, because some terminals colour the rest of the line.
                    piece = "\n".join(f"{style}{line}{_PLAIN}" if line else "" for line in piece.split("\n"))
                sys.stdout.write(piece)
            sys.stdout.flush()
        elif not self._ended:
            self._ended = True
            sys.stdout.write("\n\n")
            sys.stdout.flush()

    def finish(self, trace: Trace, out: Path | None) -> None:
        """Print the metrics or, if quiet, the result as JSON."""
        run, end = trace.run, trace.end
        assert end
        if self._quiet:
            of_run = ("method", "exactness", "target", "draft", "device", "dtype", "tier", "warnings")
            return print_json(
                {
                    **{name: getattr(end, name) for name in ("output_ids", "text", "metrics", "reason", "message", "busy")},
                    **{name: getattr(run, name) for name in of_run},
                    "parameters": dict(run.parameters),
                    "sampling": {name: getattr(run.sampling, name) for name in ("temperature", "top_k", "top_p", "seed")},
                }
            )
        metrics = end.metrics
        shares = " · ".join(f"{name} {percent(share)}" for name, share in metrics["shares"].items())
        passes = metrics.get("passes", metrics["steps"])
        rows = [
            ("tokens", f"{metrics['emitted']} in {passes} target passes, ended by {end.reason.replace('_', ' ')}"),
            ("τ", f"{number(metrics['tau'])} tokens per pass"),
            ("accepted", f"{metrics['accepted']} of {metrics['verified']} verified drafted tokens"),
            ("by depth", " ".join(percent(share) for share in metrics["accepted_by_depth"]) or "no verdicts recorded"),
            ("time", f"{metrics['seconds']['total']:.2f} s: {shares}"),
            ("speed", f"{number(metrics['tokens_per_second'], 1)} tokens per second"),
        ]
        if end.baseline:
            divergence = end.baseline.first_divergence
            parts = parting(trace) or f"after token {divergence.position}" if divergence else ""
            same = f"different text {parts}" if parts else "the same text, token for token"
            rows += [
                ("baseline", f"{number(metrics['baseline_tokens_per_second'], 1)} tokens per second, {same}"),
                ("speed-up", f"{number(metrics['speedup'])}× measured, {number(metrics['predicted_speedup'])}× predicted"),
            ]
        terms = sorted(explain(trace), key=lambda term: term.name == "verdict")
        rows += [("why", term.sentence) for term in terms if term.loud or term.name == "verdict"]
        print_result(table(rows + ([("trace", str(out))] if out else [])))
