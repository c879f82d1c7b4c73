"""The Text tab: a prompt, a target and a method, with the speed-up explained below the stage."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gradio as gr

from specviz.methods.registry import all_methods
from specviz.ui.app_state import AppState
from specviz.ui.browser_state import Kept
from specviz.ui.tabs import request_form, run_tab
from specviz.ui.tabs.run_tab import RunTab, Updates
from specviz.ui.tabs.text_run import QUIET
from specviz.ui.widgets.examples import GROUPS, chosen, picker

METHOD = "prompt_lookup"


@dataclass
class TextTab(RunTab):
    """The tab that the page opens with."""

    modality = "text"
    prefix = "sp"
    kept = (*RunTab.kept, "draft")

    draft: gr.Dropdown
    target_before: gr.State
    """Target chosen before a method switched to one that it runs on; else empty."""
    examples: gr.HTML

    @property
    def outputs(self) -> list[Any]:
        """Components that a change may update."""
        return [*super().outputs, self.draft, self.target_before]

    @property
    def own_choices(self) -> list[Any]:
        """The target, which stays the visitor's choice if the method runs on it, and the target before."""
        return [self.target, self.target_before]

    def apply_limits(self, updates: Updates, method: str, *own_choices: Any) -> Updates:
        """Keep the target, switch to one that the method runs on, or restore the earlier one after such a method."""
        target, before = own_choices or (self.shared.settings.target, "")
        others = super().apply_limits(updates, method)
        others.pop(self.target_before, None)
        if runs_on := all_methods()[method].targets:
            listed = target in [name for _, name in self.target.choices]
            return others | {self.target: runs_on[0], self.target_before: target} if listed and target not in runs_on else others
        return others | {self.target: before, self.target_before: ""} if before else others

    def on_target(self, target: str) -> Updates:
        """Select this target; if only some methods run on it, the default target is restored after them."""
        special = any(target in method.targets for method in all_methods().values())
        return super().on_target(target) | {self.target_before: self.shared.settings.target if special else ""}

    def restore(self, part: Kept) -> Updates:
        """Return the updates that restore a page's kept controls, the draft model among them."""
        updates = super().restore(part)
        draft = part.form(self.kept).get("draft")
        if updates and (draft in [value for _, value in self.draft.choices] or self.shared.settings.any_model):
            updates[self.draft] = gr.update(value=draft, visible=all_methods()[updates[self.method]].needs_draft)
        return updates

    @property
    def request_controls(self) -> list[Any]:
        """The controls in the order of :class:`FormState`."""
        return [self.method, self.target, self.draft, self.prompt, self.basics, self.advanced, self.own]

    def of_method(self, name: str, values: dict[str, Any] | None = None, note: str = "") -> Updates:
        """Updates that depend on the method alone: some require a draft model."""
        needs = all_methods()[name].needs_draft
        return super().of_method(name, values, note) | {self.draft: gr.Dropdown(visible=needs)}


def build(shared: AppState, run_name: gr.State, runs: gr.State) -> TextTab:
    """Lay the tab out and connect it."""
    parts = run_tab.layout(
        TextTab,
        shared,
        shared.archive.gallery.default,
        run_name,
        lambda: _controls(shared),
        filled=True,
    )
    tab = TextTab(shared, run_name, runs, target_before=gr.State(""), **parts)
    tab.wire()
    tab.examples.choose(chosen, tab.basics, [tab.prompt, tab.basics], queue=False, **QUIET)
    return tab


def _controls(shared: AppState) -> dict[str, Any]:
    """Build the controls with the settings of the first recorded run."""
    settings, gallery = shared.settings, shared.archive.gallery
    first = gallery.default.run if gallery.default else None
    method = first.method if first else METHOD
    targets = [*request_form.models("target", settings, own=settings.target), *request_form.servers(settings)]
    note = gallery.default.watch if gallery.default else ""
    return {
        **run_tab.method_controls(TextTab, method, note, targets, settings.target, settings.any_model),
        "draft": gr.Dropdown(
            [("The small one that ships", request_form.OWN_DRAFT), *request_form.models("draft", settings)],
            value=request_form.OWN_DRAFT,
            label="Draft model", allow_custom_value=settings.any_model, visible=all_methods()[method].needs_draft,
            elem_id="sp-draft",
        ),
        "prompt": gr.Textbox(first.prompt if first else "", label="Prompt", lines=3, max_lines=6, elem_id="sp-prompt"),
        "examples": picker(GROUPS, "sp-examples"),
        **run_tab.form_controls(TextTab, request_form.forms(settings, first), method, first),
    }  # fmt: skip
