"""Summary figures of a run in an accordion under the stage, drawn when the accordion is opened."""

from __future__ import annotations

from typing import Any

import gradio as gr

from specviz import figures
from specviz.errors import SpecvizError
from specviz.figures.theme import wrapped
from specviz.ui import theme
from specviz.ui.app_state import AppState
from specviz.ui.tabs.events import QUIET
from specviz.ui.widgets import panels

ASK = "(shown) => window.specvizPage.figures({fold!r}, shown)"
"""JavaScript that returns the page's theme and, if the accordion is open, the name of the run."""

HALF = 480
"""Width in pixels of a figure in a row of two."""
SUBTITLE_LINE = 16

SUMMARIES = (
    figures.speed_explained,
    figures.accepted_length,
    figures.acceptance_by_depth,
    figures.time_shares,
    figures.reliability,
)

REVEAL = "() => window.specvizPage.reveal({fold!r})"


class Figures:
    """Accordion with a run's figures. ``run_name``: state with the name of the run; ``prefix``: prefix of the tab's ids."""

    def __init__(self, shared: AppState, run_name: gr.State, prefix: str) -> None:
        self.shared, self.run_name = shared, run_name
        with gr.Accordion(
            "Why faster, or why not, with charts of the whole run", open=False, elem_id=f"{prefix}-figures",
            elem_classes="sp-fold sp-figures",
        ) as fold:  # fmt: skip
            self.shown: list[Any] = [theme.html(""), gr.Plot(show_label=False)]
            for _ in range(2):
                with gr.Row(elem_classes="sp-plots"):
                    self.shown += [gr.Plot(show_label=False, min_width=360) for _ in range(2)]
            self.theme_name = gr.Textbox("light", visible=False)
        self.ask = ASK.format(fold=fold.elem_id)
        self.on(fold.expand).then(None, None, None, js=REVEAL.format(fold=fold.elem_id))

    def on(self, event: Any) -> Any:
        """Redraw the figures on ``event`` if the accordion is open."""
        return event(self.drawn, [self.run_name, self.theme_name], self.shown, js=self.ask, **QUIET)

    async def drawn(self, run_name: str, theme_name: str, request: gr.Request) -> list[Any]:
        """Return the figures of a run. ``theme_name``: theme of the page."""
        if not run_name:
            return [gr.skip()] * len(self.shown)
        theme_name = "dark" if theme_name == "dark" else "light"

        def made() -> list[Any]:
            trace = self.shared.archive.trace(run_name)
            return [figures.speed_table(trace, theme_name), *(fluid(view(trace, theme_name)) for view in SUMMARIES)]

        try:
            return await self.shared.read([run_name], made, request)
        except SpecvizError as error:
            return [panels.banner(str(error)), *[None] * len(SUMMARIES)]


def fluid(figure: Any) -> Any:
    """Make a figure as wide as the container, and wrap the subtitle at the width of a figure in a row of two."""
    subtitle = figure.layout.title.subtitle.text or ""
    broken = subtitle if "<br>" in subtitle else wrapped(subtitle, HALF)
    top = figure.layout.margin.t + SUBTITLE_LINE * (broken.count("<br>") - subtitle.count("<br>"))
    return figure.update_layout(width=None, autosize=True, title_subtitle_text=broken, margin_t=top)
