"""State that the browser keeps across a reload or a restart of the server: the form values and the visitor's run.

The page stores the state in ``sessionStorage`` and sends it when opened again. The state is as untrusted as an upload: runs are
validated, and form values without a field are ignored.
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
"""Maximum size of the returned state in characters."""

NAMES = ("method", "target", "prompt", "basics", "advanced", "own", "draft")
"""Controls whose values are kept, in the order of ``FormState``. Tabs may append further controls."""

BROKEN_OFF = "The page was reloaded, or the server was restarted, during the run."

TAKE = """(_, ...rest) => {
  let kept = {};
  try { kept = JSON.parse(sessionStorage.getItem("specviz-kept")) || {}; } catch { /* a private window keeps nothing */ }
  const [opened] = performance.getEntriesByType("navigation");
  const again = opened && (opened.type !== "navigate" || opened.name === kept.href);
  return [again && kept.parts ? JSON.stringify(kept.parts) : "", ...rest];
}"""
"""JavaScript that returns the kept state after a reload, but not if the visitor followed a link."""

AFTER_ARRIVAL = "async (...values) => (await window.specvizPage.arrival, values)"
"""JavaScript that delays an event until the kept state is restored."""

DEFAULT_GUIDANCE = """(text) => {
  const form = JSON.parse(text);
  if (Number(form.values.guidance) === form.given.guidance) form.values.guidance = form.given.guidance = 0;
  return JSON.stringify(form);
}"""
"""JavaScript that restores a target's default guidance in a form, unless the visitor changed the value."""


def remember(place: str) -> str:
    """Return JavaScript that stores the values of a tab's controls."""
    return f"(...values) => {{ if (window.specvizPage) window.specvizPage.remember({json.dumps(place)}, values); }}"


class Kept(msgspec.Struct, frozen=True):
    """Kept state of one tab. ``form``: values of the controls; ``lines``: text of the run's trace."""

    form: list[Any] | None = None
    lines: str = ""

    def values(self, names: Sequence[str]) -> dict[str, str]:
        """Return the control values by name; empty if their number or types are wrong."""
        texts = [value for value in self.form or () if isinstance(value, str)]
        return dict(zip(names, texts, strict=True)) if len(names) == len(texts) == len(self.form or ()) else {}

    def run(self) -> Trace:
        """Return the trace, closed with an end record if necessary. Raises BadTrace if the lines are invalid."""
        trace = traces.read(self.lines.encode())
        if not trace.end:
            end = stopped(trace, "")
            trace = trace.replace(end=end.replace(message=f"{BROKEN_OFF} {end.message}".rstrip()))
        return trace


def parts(text: str) -> dict[str, Kept]:
    """Parse the state from the browser, by tab; empty if the state is damaged."""
    try:
        return msgspec.json.decode(text if 0 < len(text) <= MOST_LETTERS else "{}", type=dict[str, Kept])
    except (ValueError, RecursionError, TypeError):
        return {}
