"""Summary figures under the stage: the speed-up term by term, made when the fold is opened."""

from __future__ import annotations

from dataclasses import dataclass
from textwrap import wrap
from typing import Any

import gradio as gr

from specviz import figures
from specviz.errors import SpecvizError
from specviz.ui import theme
from specviz.ui.app_state import AppState
from specviz.ui.widgets import panels

ASK = "(shown) => window.specvizPage.figures({fold!r}, shown)"
"""In the browser: returns the run's name while the fold is open, nothing while it is closed, and the page's theme."""

SUBTITLE_LETTERS = 66
SUBTITLE_LINE = 16

SUMMARIES = (
    figures.speed_explained,
    figures.accepted_length,
    figures.acceptance_by_depth,
    figures.time_shares,
    figures.reliability,
)

REVEAL = "() => window.specvizPage.reveal({fold!r})"


@dataclass
class Figures:
    """The fold and its components."""

    fold: gr.Accordion
    table: gr.HTML
    plots: list[gr.Plot]
    look: gr.Textbox

    @staticmethod
    def build(shared: AppState, run_name: gr.State, prefix: str) -> Figures:
        """Lay the fold out, closed, in the tab whose ids begin with ``prefix``; opening it draws the run on the stage."""
        with gr.Accordion(
            "Why (not) faster, and figures of the whole run",
            open=False,
            elem_id=f"{prefix}-figures",
            elem_classes="sp-fold sp-figures",
        ) as fold:
            table = theme.html("")
            plots = [gr.Plot(show_label=False)]
            with gr.Row(elem_classes="sp-plots"):
                plots += [gr.Plot(show_label=False, min_width=360) for _ in range(2)]
            with gr.Row(elem_classes="sp-plots"):
                plots += [gr.Plot(show_label=False, min_width=360) for _ in range(2)]
            look = gr.Textbox("light", visible=False)
        summary = Figures(fold, table, plots, look)
        summary.on(fold.expand, shared, run_name).then(None, None, None, js=REVEAL.format(fold=fold.elem_id))
        return summary

    def on(self, event: Any, shared: AppState, run_name: gr.State) -> Any:
        """Draw when ``event`` happens, if the fold is open."""
        return event(
            self.draw(shared),
            [run_name, self.look],
            [self.table, *self.plots],
            js=ASK.format(fold=self.fold.elem_id),
            show_progress="hidden",
            api_visibility="private",
            concurrency_limit=None,
        )

    def draw(self, shared: AppState) -> Any:
        """Return a handler that draws the run called ``run_name`` in the page's theme."""

        def made(run_name: str, look: str) -> list[Any]:
            trace = shared.archive.trace(run_name)
            return [figures.speed_table(trace, look), *(fluid(view(trace, look)) for view in SUMMARIES)]

        async def drawn(run_name: str, look: str, request: gr.Request) -> list[Any]:
            if not run_name:
                return [gr.skip()] * (1 + len(self.plots))
            look = look if look in ("light", "dark") else "light"
            owner = shared.presence.address_of(request)
            try:
                return await shared.archive.of([run_name], lambda: made(run_name, look), owner)
            except SpecvizError as error:
                return [panels.banner(str(error)), *([None] * len(self.plots))]

        return drawn


def fluid(figure: Any) -> Any:
    """Make the figure as wide as its container, half the width of a slide, and break its subtitle to fit."""
    subtitle = figure.layout.title.subtitle.text or ""
    broken = subtitle if "<br>" in subtitle else "<br>".join(wrap(subtitle, SUBTITLE_LETTERS))
    top = figure.layout.margin.t + SUBTITLE_LINE * (broken.count("<br>") - subtitle.count("<br>"))
    return figure.update_layout(width=None, autosize=True, title_subtitle_text=broken, margin_t=top)
