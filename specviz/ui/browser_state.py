"""State that a page keeps in its browser across a reload or a restart of the server: its forms, and the visitor's own run.

The browser stores it for one tab (``sessionStorage``) and returns it when the page opens. It is no more trusted than an
uploaded file: a run is checked line by line, and only form values that have a field are used.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import msgspec

from specviz.trace import store as traces
from specviz.trace.schema import Trace
from specviz.ui.stream.engine import stopped

MOST_LETTERS = 3_000_000
"""Maximum number of characters in the returned state: page.js keeps at most half of them for runs, a picture at most a fifth."""

NAMES = ("method", "target", "prompt", "basics", "advanced", "own")
"""Controls of every run's tab, in the order in which the page keeps them; a tab may append more."""

BROKEN_OFF = "The page was reloaded, or its server restarted, during the run."

TAKE = """(_, ...rest) => {
  let kept = {};
  try { kept = JSON.parse(sessionStorage.getItem("specviz-kept")) || {}; } catch { /* a private window keeps nothing */ }
  const [opened] = performance.getEntriesByType("navigation");
  const again = opened && (opened.type !== "navigate" || opened.name === kept.href);
  return [again && kept.parts ? JSON.stringify(kept.parts) : "", ...rest];
}"""
"""Returns the state of this tab's previous page if this page replaces it, but not if the visitor followed a link."""


def remember(place: str) -> str:
    """JavaScript that stores the values of a tab's controls."""
    return f"(...values) => {{ if (window.specvizPage) window.specvizPage.remember({json.dumps(place)}, values); }}"


class Kept(msgspec.Struct, frozen=True):
    """Stored state of one tab: the values of its controls, and the lines of its run."""

    form: list[Any] | None = None
    lines: str = ""

    def values(self, names: Sequence[str]) -> dict[str, str]:
        """Return the values by name; empty unless there is exactly one text per name."""
        texts = [value for value in self.form or () if isinstance(value, str)]
        return dict(zip(names, texts, strict=True)) if len(names) == len(texts) == len(self.form or ()) else {}

    def run(self) -> Trace:
        """Return the run, with an end record if it lacks one. Raises BadTrace if the lines are no trace."""
        trace = traces.read(self.lines.encode())
        if trace.end is None:
            end = stopped(trace, "")
            trace = trace.replace(end=end.replace(message=f"{BROKEN_OFF} {end.message}".rstrip()))
        return trace


def parts(text: str) -> dict[str, Kept]:
    """Parse the state from the browser, by tab; empty if it is damaged."""
    try:
        return msgspec.json.decode(text if 0 < len(text) <= MOST_LETTERS else "{}", type=dict[str, Kept])
    except (ValueError, RecursionError, TypeError):
        return {}
