"""The stage as a Gradio component: one gr.HTML subclass that is created once per page and fed an append-only text.

``value`` is that text: lines of a trace, each ended by a line end, oldest first. It may begin with a control line

    {"kind":"stage","mode":"live","run":"KEY","first":0}

``mode`` is "live" or "recorded" (the default: the run is played from its first step). A value that begins with the
last one is more of the same run; any other value is a new run, unless its control line names the same ``run``: then it
is the next segment of a long one, whose lines count from ``first``. Later control lines may carry ``message`` (and
``fraction``, 0 to 1) while a model loads, ``baseline`` with what to say where the autoregressive run is not there yet, or
``error``. The steps of another run stay on the stage until this one has lines. A page that opens late, or misses a segment,
asks ``lines`` for what it lacks; where the app offers the lines of a live run at an address of its own, ``tail``, it reads
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
"""Of one answer to a page that asks for lines it missed; it asks again for the rest."""


def _no_lines(run: str, first: int, last: int) -> Sequence[str]:
    return ()


class Stage(gr.HTML):
    """Draws a run. ``lines(run, first, last)`` returns trace lines ``first`` to ``last`` (not included) of a live run;
    ``tail`` is the path, below the app's address, where server-sent events bring them as they are written. Each stage brings
    the viewer's script; a page that has it in a script element marked ``data-specviz`` makes them ``with_script`` False.
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
        """The lines asked for, as far as one answer goes; none for a question without sense or an unknown run."""
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
        """The text as it is: token text may well read like markup, and none of it ever becomes any."""
        return value or ""

    def api_info(self) -> dict[str, Any]:
        """What a client of the API gets."""
        return {"type": "string", "description": "lines of a spectrace file, after a control line"}

    def example_payload(self) -> Any:
        """A value that is safe to send."""
        return ""

    def example_value(self) -> Any:
        """A value that is safe to show."""
        return ""


class Race(gr.HTML):
    """Races the runs of ``stages``, selectors of components on the same page, against their autoregressive baselines.

    It plays once when a run comes up or a live one ends, then says the verdict; while one is running it is gone.
    Whether a visitor has closed it is kept in the browser under ``name``; ``opened`` is how it is at first. ``sentence``, our own
    markup, stands beside its controls and stays when it is closed.
    """

    def __init__(self, stages: str, *, name: str, sentence: str = "", opened: bool = True, **more: Any) -> None:
        attribute = " data-open" if opened else ""
        value = RACE.format(stages=stages, name=name, opened=attribute, sentence=sentence and f"<p>{sentence}</p>")
        super().__init__(value, js_on_load=LINE_UP, apply_default_css=False, **more)
