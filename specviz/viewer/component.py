"""The stage as a Gradio component: one gr.HTML subclass that is created once per page and fed texts.

``value`` is the text of a recorded run: lines of a trace, each ended by a newline, oldest first. It may begin with a control
line {"kind":"stage","mode":"recorded","run":"KEY"}. For a live run it is the control line alone, with the run's current state:

    {"kind":"stage","mode":"live","run":"KEY","follow":true}

``message`` (and ``fraction``, 0 to 1) come while a model loads, ``follow`` once the run has lines, ``baseline`` with a message
in place of the missing autoregressive run, and ``error`` once the run has failed. The page reads the lines at the path ``tail``,
as it does for a recorded run with ``follow``. The steps of another run stay on the stage until this one has lines.

Everything else happens in the browser: playing, scrubbing, hovering and inspecting never involve Python.
"""

from __future__ import annotations

import json
from typing import Any

import gradio as gr

WITH_VIEWER = """
const attach = () => {call};
if (window.SpecvizViewer) attach();
else document.querySelector("script[data-specviz]").addEventListener("load", attach);
"""
START = WITH_VIEWER.format(call="SpecvizViewer.attach(element, props, watch)")
RACE = '<div data-stages="{stages}" data-name="{name}"{opened}>{sentence}</div>'
LINE_UP = WITH_VIEWER.format(call='SpecvizViewer.race(element.querySelector("[data-stages]"))')


def control(mode: str, run: str, **more: object) -> str:
    """Control line for the stage. ``mode`` is "live" or "recorded", ``run`` names the run."""
    return json.dumps({"kind": "stage", "mode": mode, "run": run, **more}, separators=(",", ":")) + "\n"


class Stage(gr.HTML):
    """Stage that draws a run with the viewer's script, which the page has in an element marked ``data-specviz``. ``tail`` is
    the path, below the app's address, of server-sent events with the lines of a run. ``autoplay`` plays a run when it is shown.
    """

    def __init__(self, value: str = "", *, tail: str = "", autoplay: bool = True, **more: Any) -> None:
        super().__init__(
            value,
            # A stage in a tab that was never open loses all properties but the value with its first update.
            html_template=f'<div class="specviz-host" data-tail="{tail}" data-autoplay="{str(autoplay).lower()}"></div>',
            js_on_load=START,
            apply_default_css=False,
            **more,
        )

    def postprocess(self, value: str | None) -> str:
        """Return the text unchanged: token text may look like markup, but none is ever rendered as such."""
        return value or ""


class Race(gr.HTML):
    """Race between the runs of ``stages``, selectors of components on the same page, and their autoregressive baselines.

    It plays once when a run is shown or a live one ends, then shows the verdict; during a live run it is hidden.
    The browser remembers under ``name`` whether a visitor has closed it; ``opened`` is the initial state. ``sentence``, our own
    markup, is shown beside its controls and stays when it is closed.
    """

    def __init__(self, stages: str, *, name: str, sentence: str = "", opened: bool = True, **more: Any) -> None:
        attribute = " data-open" if opened else ""
        value = RACE.format(stages=stages, name=name, opened=attribute, sentence=sentence and f"<p>{sentence}</p>")
        super().__init__(value, js_on_load=LINE_UP, apply_default_css=False, **more)
