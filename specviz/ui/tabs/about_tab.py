"""The About tab: introduction, method cards, definitions of the metrics, and the API."""

from __future__ import annotations

from typing import Any

import gradio as gr

from specviz.figures.theme import markup
from specviz.trace.metrics import FORMULAS
from specviz.ui import theme
from specviz.ui.app_state import AppState
from specviz.ui.tabs.events import QUIET
from specviz.ui.widgets import panels

INTRODUCTION = """<h2>Speculative decoding, made visible</h2>
<p>A large model writes one token per pass. In speculative decoding, a cheap drafter proposes several tokens. The model
checks them in a single pass and keeps those that it agrees with. This app runs real models, records each step, and
shows what was drafted, what was kept and why, and how long it took. Recorded and live runs look the same.</p>
<p>The page loads nothing from other sites, and visitors cannot see each other's runs.</p>"""

CREDIT = """<p>Emoji in the examples and in the picture models' training data: Twemoji, © Twitter, Inc. and other contributors,
<a href="https://creativecommons.org/licenses/by/4.0/" rel="noreferrer">CC-BY 4.0</a>.</p>"""

PROGRAMS = """<h2>From a program</h2><pre><code>from gradio_client import Client
client = Client("http://127.0.0.1:7860")
file = client.predict(method="prompt_lookup", prompt="Repeat: one two three", max_new_tokens=48, api_name="/run")
print(file)   # the whole trace file: a run line, a line per step, an end line</code></pre>
<p>Or without a server: <code>import specviz; trace = specviz.run(method="prompt_lookup", prompt="…")</code>, then
<code>trace.show(step=3)</code> in a notebook or <code>specviz.figures.draft_tree(trace.steps[3])</code>; or
<code>python -m specviz --help</code>.</p>"""


def build(shared: AppState, tab_page: gr.Tab) -> None:
    """Build the tab. The content is sent when ``tab_page`` is opened for the first time."""
    with gr.Column(elem_classes="sp-page"):
        text, filled = theme.html("", elem_id="sp-about"), gr.State(False)

    def fill(filled: bool) -> tuple[Any, bool]:
        return (gr.skip() if filled else content(shared)), True

    tab_page.select(fill, filled, [text, filled], queue=False, **QUIET)


def content(shared: AppState) -> str:
    """Return the HTML of the tab."""
    first = {recording.run.method: recording for recording in reversed(shared.archive.gallery.recordings.values())}
    cards = panels.cards({method: panels.measured(one.run, one.end, one.name) for method, one in first.items()})
    formulas = panels.facts({name.replace("_", " "): markup(formula) for name, formula in FORMULAS.items()})
    return (
        f"{INTRODUCTION}{panels.hardware(shared.hardware.sentence())}<h2>Methods</h2>"
        '<p><a href="?tab=methods&amp;methods=papers">Their papers on a map, year by year</a>.</p>'
        f"{cards}<h2>Numbers</h2>{formulas}{PROGRAMS}{CREDIT}"
    )
