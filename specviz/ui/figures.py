"""The fold under the stage: why it was (not) faster term by term, and summary figures, made only when somebody opens it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gradio as gr

from specviz import views
from specviz.errors import SpecvizError
from specviz.ui import panels
from specviz.ui.shared import Shared

LOOK = "() => document.body.classList.contains('dark') ? 'dark' : 'light'"


@dataclass
class Figures:
    """The fold and what is in it."""

    fold: gr.Accordion
    table: gr.HTML
    plots: list[gr.Plot]
    look: gr.Textbox

    @staticmethod
    def build(shared: Shared, shown: gr.State) -> Figures:
        """Lay it out, closed; opening it draws the run that is on the stage."""
        with gr.Accordion("Why (not) faster, and figures of the whole run", open=False, elem_id="sp-figures", elem_classes="sp-fold sp-figures") as fold:
            table = gr.HTML("")
            with gr.Row(elem_classes="sp-plots"):
                plots = [gr.Plot(show_label=False, min_width=320) for _ in range(4)]
            look = gr.Textbox("light", visible=False)
        made = Figures(fold, table, plots, look)
        fold.expand(made.draw(shared), [shown, look], [table, *plots], js=f"(shown) => [shown, ({LOOK})()]",
                    show_progress="hidden", api_visibility="private", concurrency_limit=None)  # fmt: skip
        return made

    def draw(self, shared: Shared) -> Any:
        """A handler that draws the run called ``shown`` in the page's colours."""

        def drawn(shown: str, look: str) -> list[Any]:
            look = look if look in ("light", "dark") else "light"
            try:
                trace = shared.library.trace(shown)
            except SpecvizError as error:
                return [panels.banner(str(error)), *([None] * len(self.plots))]
            made = (views.speed_explained, views.accepted_length, views.acceptance_by_depth, views.time_shares)
            return [views.speed_table(trace, look), *(view(trace, look) for view in made)]

        return drawn
