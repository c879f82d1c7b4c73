"""The stage as a Gradio component.

The value of the component is the trace lines of a recorded run, each ending in a newline, optionally preceded by a control line
{"kind":"stage","mode":"recorded","run":"KEY"}. For a live run, the value is only a control line with the state of the run:

    {"kind":"stage","mode":"live","run":"KEY","follow":true}

Fields of the control line: ``message`` and ``fraction`` (0 to 1) while a model loads; ``follow`` once the run has lines, which
the page then reads from the path ``tail``; ``baseline``, a message shown until the autoregressive run is available; ``error``
after a failure. Until a live run has lines, the stage keeps showing the previous run.
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
    """Return a control line. ``mode``: "live" or "recorded"; ``run``: key of the run; ``more``: further fields."""
    return json.dumps({"kind": "stage", "mode": mode, "run": run, **more}, separators=(",", ":")) + "\n"


class Stage(gr.HTML):
    """Interactive view of a run. The page must load the viewer's script in an element marked ``data-specviz``.

    ``tail``: path of the endpoint that streams a run's lines as server-sent events; ``autoplay``: whether a run plays as soon
    as it is shown.
    """

    def __init__(self, value: str = "", *, tail: str = "", autoplay: bool = True, **more: Any) -> None:
        super().__init__(
            value,
            # As data attributes, because the first update in an unopened tab resets all properties but the value.
            html_template=f'<div class="specviz-host" data-tail="{tail}" data-autoplay="{str(autoplay).lower()}"></div>',
            js_on_load=START,
            apply_default_css=False,
            **more,
        )

    def postprocess(self, value: str | None) -> str:
        """Return the text unchanged. The viewer's script never renders token text as markup."""
        return value or ""


class Race(gr.HTML):
    """Animated race between the runs of ``stages`` and their autoregressive baselines, hidden during a live run.

    ``stages``: CSS selectors of stages on the page; ``name``: key under which the browser stores whether the race is closed;
    ``opened``: initial state; ``sentence``: trusted HTML beside the controls, shown even if the race is closed.
    """

    def __init__(self, stages: str, *, name: str, sentence: str = "", opened: bool = True, **more: Any) -> None:
        attribute = " data-open" if opened else ""
        value = RACE.format(stages=stages, name=name, opened=attribute, sentence=sentence and f"<p>{sentence}</p>")
        super().__init__(value, js_on_load=LINE_UP, apply_default_css=False, **more)
