"""What a page keeps in its browser over a reload or a restart of the server: its forms, and the visitor's own run.

The browser keeps it for one tab (``sessionStorage``) and hands it back when the page opens. It is no more trusted than an
uploaded file: a run is checked line by line, and of a form only values count that the form has a place for.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from specviz.trace import store as traces
from specviz.trace.schema import Trace
from specviz.ui.stream.engine import stopped
from specviz.ui.widgets import controls

MOST_LETTERS = 3_000_000
"""Of all that comes back: page.js keeps half of it of runs at most, and a picture is a fifth of it at most."""

NAMES = ("method", "target", "prompt", "basics", "advanced", "own")
"""The controls that every tab of a run has, in the order in which the page keeps them; a tab may have more behind them."""

BROKEN_OFF = "The page was loaded anew, or its server restarted, while it went on."

TAKE = """(_, ...rest) => {
  let kept = {};
  try { kept = JSON.parse(sessionStorage.getItem("specviz-kept")) || {}; } catch { /* a private window keeps nothing */ }
  const [opened] = performance.getEntriesByType("navigation");
  const again = opened && (opened.type !== "navigate" || opened.name === kept.href);
  return [again && kept.parts ? JSON.stringify(kept.parts) : "", ...rest];
}"""
"""Hands over what the last page in this tab kept, if this one takes its place: not to a visitor who follows a link."""


def remember(place: str) -> str:
    """JavaScript that notes how the controls of a tab stand."""
    return f"(...values) => {{ if (window.specvizPage) window.specvizPage.remember({json.dumps(place)}, values); }}"


@dataclass(frozen=True)
class Kept:
    """What was kept of one tab: the values of its controls, and the lines of its run."""

    values: tuple[str, ...] = ()
    lines: str = ""

    def form(self, names: Sequence[str]) -> dict[str, str]:
        """The values by name; none where there are others than these."""
        return dict(zip(names, self.values, strict=True)) if len(names) == len(self.values) else {}

    def run(self) -> bytes:
        """The run's file, with an end where it has none. Raises BadTrace where it is none."""
        content = self.lines.encode()
        trace = traces.read(content)
        if trace.end is None:
            end = stopped(trace, "")
            end = end.replace(message=f"{BROKEN_OFF} {end.message}".rstrip())
            content = traces.text(Trace(trace.run, trace.steps, end)).encode()
        return content


def parts(text: str) -> dict[str, Kept]:
    """By tab what the browser handed back; nothing of what is damaged."""
    try:
        whole = json.loads(text) if isinstance(text, str) and 0 < len(text) <= MOST_LETTERS else {}
        return {str(place): _part(part) for place, part in dict(whole).items()}
    except (ValueError, TypeError, AttributeError, RecursionError):
        return {}


def _part(part: Mapping[str, Any]) -> Kept:
    values = tuple(part.get("form") or ())
    lines = part.get("lines")
    return Kept(values if all(isinstance(value, str) for value in values) else (), lines if isinstance(lines, str) else "")


def overlaid(offered: str, kept: str) -> str:
    """The form ``offered`` with the values of a kept one that it has a place for. Raises BadInput where that is no form."""
    form = json.loads(offered)
    known = {name: value for name, value in controls.values(kept, form["of"]).items() if name in form["values"]}
    return json.dumps(form | {"values": form["values"] | known})
