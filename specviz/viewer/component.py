"""The stage as a Gradio component: one gr.HTML subclass that is created once per page and fed an append-only text.

``value`` is that text: lines of a trace, each ended by a line end, oldest first. It may begin with a control line

    {"kind":"stage","mode":"live","run":"KEY","first":0}

``mode`` is "live" or "recorded" (the default: the run is played from its first step). A value that begins with the
last one is more of the same run; any other value is a new run, unless its control line names the same ``run``: then it
is the next segment of a long one, whose lines count from ``first``. Later control lines may carry ``message`` (and
``fraction``, 0 to 1) while a model loads, ``baseline`` with a message in place of the missing autoregressive run, or
``error``. The steps of another run stay on the stage until this one has lines. A page that opens late, or misses a segment,
requests the missing lines from ``lines``; if the app also serves the lines of a live run, at the path ``tail``, the page reads
them there too.

Everything else happens in the browser: playing, scrubbing, hovering and inspecting never come back to Python.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gradio as gr

from specviz.errors import SpecvizError
from specviz.viewer import bundle

Lines = Callable[[str, int, int], Sequence[str]]

TEMPLATE = '<div class="specviz-host"></div>'
WITH_VIEWER = """
const attach = () => {call};
if (window.SpecvizViewer) attach();
else document.querySelector("script[data-specviz]").addEventListener("load", attach);
"""
START = WITH_VIEWER.format(call="SpecvizViewer.attach(element, props, server, watch)")
RACE = '<div data-stages="{stages}" data-name="{name}"{opened}>{sentence}</div>'
LINE_UP = WITH_VIEWER.format(call='SpecvizViewer.race(element.querySelector("[data-stages]"))')
MOST_LETTERS = 400_000
"""Most characters of one answer to a page that missed lines; the page requests the rest again."""


def _no_lines(run: str, first: int, last: int) -> Sequence[str]:
    return ()


class Stage(gr.HTML):
    """Draws a run. ``lines(run, first, last)`` returns trace lines ``first`` to ``last`` (not included) of a live run;
    ``tail`` is the path, below the app's address, of server-sent events with the lines as they are written. Each stage brings
    the viewer's script, unless ``with_script`` is False: the page then has it in a script element marked ``data-specviz``.
    """

    def __init__(
        self, value: str = "", *, lines: Lines = _no_lines, tail: str = "", with_script: bool = True, **more: Any
    ) -> None:
        self._lines = lines

        def get_range(line_range: Sequence[Any]) -> str:
            """Trace lines for a page that missed them: [run, first, last]."""
            return self.missed(line_range)

        super().__init__(
            value,
            html_template=TEMPLATE,
            js_on_load=START,
            # Gradio puts it into the page's head once however many stages there are, but sends it for each.
            head=f"<script>{bundle.script()}</script>" if with_script else "",
            apply_default_css=False,
            server_functions=[get_range],
            tail=tail,
            **more,
        )

    def missed(self, line_range: Sequence[Any]) -> str:
        """Return the requested lines that fit into one answer; empty for an invalid request or an unknown run."""
        try:
            run, first, last = str(line_range[0])[:200], int(line_range[1]), int(line_range[2])
            lines = self._lines(run, max(0, first), max(0, last))
        except (SpecvizError, IndexError, TypeError, ValueError, KeyError):
            return ""
        answer: list[str] = []
        size = 0
        for line in lines:
            size += len(line) + 1
            if answer and size > MOST_LETTERS:
                break
            answer.append(line.rstrip("\n"))
        return "".join(line + "\n" for line in answer)

    def postprocess(self, value: str | None) -> str:
        """Return the text unchanged: token text may look like markup, but none is ever rendered as such."""
        return value or ""

    def api_info(self) -> dict[str, Any]:
        """Describe the value to clients of the API."""
        return {"type": "string", "description": "lines of a spectrace file, after a control line"}

    def example_payload(self) -> Any:
        """A value that is safe to send."""
        return ""

    def example_value(self) -> Any:
        """A value that is safe to show."""
        return ""


class Race(gr.HTML):
    """Races the runs of ``stages``, selectors of components on the same page, against their autoregressive baselines.

    It plays once when a run is shown or a live one ends, then shows the verdict; during a live run it is hidden.
    The browser keeps whether a visitor has closed it under ``name``; ``opened`` is the initial state. ``sentence``, our own
    markup, stands beside its controls and stays when it is closed.
    """

    def __init__(self, stages: str, *, name: str, sentence: str = "", opened: bool = True, **more: Any) -> None:
        attribute = " data-open" if opened else ""
        value = RACE.format(stages=stages, name=name, opened=attribute, sentence=sentence and f"<p>{sentence}</p>")
        super().__init__(value, js_on_load=LINE_UP, apply_default_css=False, **more)
