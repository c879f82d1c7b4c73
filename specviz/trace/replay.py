"""HTML page that replays a run without a network: the viewer, its style and the trace's lines, safely embedded.

The trace is never parsed as markup: its lines are in a data block without any "<", and the page's policy allows only the
viewer's script and no requests.
"""

from __future__ import annotations

import base64
import hashlib
import html
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from specviz.errors import BadInput
from specviz.trace.schema import Trace
from specviz.trace.store import lines

MAX_PAGE = 1_000_000
"""Upper limit of a page's size in bytes."""
DATA_ID = "specviz-trace"

TEMPLATE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{{policy}}">
<title>{{title}}</title>
<style>{{style}}</style>
</head>
<body>
{{notice}}
<main id="specviz"></main>
<script type="application/json" id="specviz-trace">{{trace}}</script>
<script>{{script}}</script>
</body>
</html>
"""
_MARK = re.compile(r"\{\{(policy|title|style|notice|trace|script)\}\}")


def embedded(text: str) -> str:
    """Escape JSON lines for a script element: equivalent JSON that cannot end the element."""
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def page(trace: Trace, viewer_js: str, viewer_css: str, template: str | None = None) -> str:
    """Return the page, below a million bytes. A banner at its top lists the parts omitted for that.

    ``template`` has each of the marks {{policy}} {{title}} {{style}} {{notice}} {{trace}} {{script}} once; the viewer
    reads the lines from the element with the id "specviz-trace". Raises BadInput if not even one step fits.
    """
    frame = _Frame.of(trace, viewer_js, viewer_css, template or TEMPLATE)
    for shorten, notice in _CUTS:
        document = frame.filled([embedded(line) for line in lines(shorten(trace))], notice)
        if _size(document) < MAX_PAGE:
            return document
    return _first_steps(frame, _bare(trace))


def _first_steps(frame: _Frame, trace: Trace) -> str:
    """Return a page with the first steps that fit, without the end line, whose totals are of the whole run."""
    embedded_lines = [embedded(line) for line in lines(trace.replace(end=None))]
    total = len(trace.steps)
    notice = _LEFT_OUT.format(f"the steps after the first {{}} of {total}, the run's totals, notes and target's tables")
    room = MAX_PAGE - 1 - _size(frame.filled(embedded_lines[:1], notice.format(total)))
    step_count = 0
    for line in embedded_lines[1:]:
        room -= _size(line) + 1
        if room < 0:
            break
        step_count += 1
    if step_count == 0:
        raise BadInput("This run is too large for a replay page; save its trace file and open that in the app.")
    return frame.filled(embedded_lines[: step_count + 1], notice.format(step_count))


_LEFT_OUT = "To keep this page below 1 MB it leaves out {}. The saved trace file has everything."


def _as_it_is(trace: Trace) -> Trace:
    return trace


def _without_notes(trace: Trace) -> Trace:
    return trace.replace(steps=tuple(step.replace(notes=()) for step in trace.steps))


def _bare(trace: Trace) -> Trace:
    return trace.replace(steps=tuple(step.replace(notes=(), rows=()) for step in trace.steps))


_CUTS: tuple[tuple[Callable[[Trace], Trace], str], ...] = (
    (_as_it_is, ""),
    (_without_notes, _LEFT_OUT.format("the method's notes on each step")),
    (_bare, _LEFT_OUT.format("the method's notes on each step and the target's tables of likely tokens")),
)


@dataclass(frozen=True)
class _Frame:
    """Everything on the page except the trace and the notice."""

    template: str
    title: str
    style: str
    script: str

    @staticmethod
    def of(trace: Trace, viewer_js: str, viewer_css: str, template: str) -> _Frame:
        marks = _MARK.findall(template)
        if sorted(marks) != sorted(set(marks)) or len(marks) != 6:
            raise ValueError(f"the page's template needs its six marks once each; it has {', '.join(marks) or 'none'}")
        # Inside a string "<\/" means "</", and "</" occurs in a script or a style only inside strings.
        style = re.sub("</(?=style)", r"<\\/", viewer_css, flags=re.IGNORECASE)
        script = viewer_js.replace("\r\n", "\n").replace("<!--", "\\x3c!--")  # the policy's digest is of the parsed text
        script = re.sub("</(?=script)", r"<\\/", script, flags=re.IGNORECASE)
        title = html.escape(f"{trace.run.title} on {trace.run.target}")
        return _Frame(template, title, style, script)

    def filled(self, embedded_lines: Sequence[str], notice: str) -> str:
        """Fill the template in one pass, so that inserted text is never read as a mark."""
        banner = f'<p class="specviz-notice" role="note">{html.escape(notice)}</p>' if notice else ""
        digest = base64.b64encode(hashlib.sha256(self.script.encode("utf-8")).digest()).decode("ascii")
        policy = (
            f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; img-src data: blob:; "
            "font-src data:; base-uri 'none'; form-action 'none'"
        )
        parts = {
            "policy": policy, "title": self.title, "style": self.style, "notice": banner,
            "trace": "\n".join(embedded_lines), "script": self.script,
        }  # fmt: skip
        return _MARK.sub(lambda mark: parts[mark[1]], self.template)


def _size(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))
