"""The Text tab, with which the page opens: a prompt, a target, a method, and for some methods a draft model."""

from __future__ import annotations

from typing import Any

import gradio as gr

from specviz.methods.registry import all_methods
from specviz.ui.browser_state import Kept
from specviz.ui.tabs import request_form
from specviz.ui.tabs.run_tab import RunTab, Updates


class TextTab(RunTab):
    """Words in, words out."""

    modality, prefix, default_method, lines = "text", "sp", "prompt_lookup", 3
    controls = kept = (*RunTab.controls, "draft")

    def add_method(self, method: str, note: str = "") -> None:
        """Make the controls of method, target and draft model."""
        super().add_method(method, note)
        settings = self.shared.settings
        self.draft = gr.Dropdown(
            [("The small one that ships", request_form.OWN_DRAFT), *request_form.models("draft", settings)],
            value=request_form.OWN_DRAFT, label="Draft model", allow_custom_value=settings.any_model,
            visible=all_methods()[method].needs_draft, elem_id="sp-draft",
        )  # fmt: skip

    @property
    def default_target(self) -> str:
        """The configured target."""
        return self.shared.settings.target

    def targets(self) -> list[tuple[str, str]]:
        """Title and name of every target, servers among them."""
        return [*super().targets(), *request_form.servers(self.shared.settings)]

    @property
    def outputs(self) -> list[Any]:
        """Components that a change may update."""
        return [*super().outputs, self.draft]

    def restore(self, part: Kept) -> Updates:
        """Return the updates that restore a page's kept controls, the draft model among them."""
        updates = super().restore(part)
        draft = part.form(self.kept).get("draft")
        if updates and (draft in [value for _, value in self.draft.choices] or self.shared.settings.any_model):
            updates[self.draft] = gr.update(value=draft, visible=all_methods()[updates[self.method]].needs_draft)
        return updates

    def of_method(self, name: str, values: dict[str, Any] | None = None, note: str = "") -> Updates:
        """Updates that depend on the method alone: some require a draft model."""
        return super().of_method(name, values, note) | {self.draft: gr.Dropdown(visible=all_methods()[name].needs_draft)}
