"""The Image tab: what to draw and how at the left, the picture as it grows with its tree and its codes at the right."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import gradio as gr

from specviz.methods.registry import all_methods
from specviz.trace.schema import Run
from specviz.ui import choice, controls, image_asking, panels, tail, text_run, theme
from specviz.ui.gathered import gathered
from specviz.ui.image_asking import Asked
from specviz.ui.shared import Shared
from specviz.ui.shown import choices, title
from specviz.ui.text_run import Change
from specviz.viewer.component import Stage

_PICK = """
element.addEventListener("click", (event) => {
  const button = event.target.closest("button[data-at]");
  if (!button) return;
  element.querySelector("details").open = false;
  trigger("choose", { at: Number(button.dataset.at) });
});
"""
PROMPTS = tuple(prompt for _, prompts in image_asking.EXAMPLES for prompt in prompts)


@dataclass
class ImageTab:
    """The tab's components, and how a :class:`Change` reaches them."""

    shared: Shared
    shown: gr.State
    runs: gr.State
    recording: gr.Dropdown
    stage: gr.HTML
    banner: gr.HTML
    run: gr.Button
    stop: gr.Button
    why: gr.HTML
    method: gr.HTML
    summary: gr.HTML
    own: gr.HTML
    target: gr.Dropdown
    prompt: gr.Textbox
    examples: gr.HTML
    basics: gr.HTML
    advanced: gr.HTML

    @property
    def asked(self) -> list[Any]:
        """The controls in the order of :class:`Asked`."""
        return [self.method, self.target, self.prompt, self.basics, self.advanced, self.own]

    @property
    def outputs(self) -> list[Any]:
        """Everything a change may touch."""
        return [
            self.stage, self.shown, self.runs, self.recording, self.banner, self.run, self.stop, self.why, self.method,
            self.summary, self.own, self.prompt, self.basics, self.advanced,
        ]  # fmt: skip

    def updates(self, change: Change, runs: list[tuple[str, str]]) -> dict[Any, Any]:
        """The change as Gradio wants it: only the components that differ. A run that is kept joins ``runs`` itself."""
        made: dict[Any, Any] = {}
        if change.feed is not None:
            made[self.stage] = change.feed
        if change.shown is not None:
            made[self.shown] = change.shown
            if change.kept and change.trace is not None and all(name != change.shown for _, name in runs):
                runs.append((title(change.trace), change.shown))
                made[self.runs] = runs
            made[self.recording] = gr.Dropdown(choices(self.shared.library, runs, "image"), value=change.shown or None)
        if change.banner is not None:
            said = panels.banner(change.banner, "note" if change.note else "error")
            made[self.banner] = gr.HTML(said, visible=bool(change.banner))
        if change.running is not None:
            made[self.run] = gr.Button("Drawing" if change.running else "Draw live")
            made[self.stop] = gr.Button(visible=change.running)
            if change.running:
                made[self.why] = panels.why(None)
        if change.trace is not None:
            made[self.why] = panels.why(change.trace, change.timing)
        if change.asked is not None and "image" in getattr(all_methods().get(change.asked.method), "modality", ()):
            made |= self.take_over(change.asked, change.shown or "")
        return made

    def take_over(self, run: Run, shown: str) -> dict[Any, Any]:
        """Set the controls to what a recorded run was asked."""
        return {
            self.method: run.method,
            self.summary: panels.summary(run.method, self.shared.library.note(shown)),
            self.own: controls.method_answer(run.method, dict(run.parameters)),
            self.prompt: run.prompt,
            self.basics: image_asking.basics(run),
            self.advanced: image_asking.advanced(run),
        }


def build(shared: Shared) -> ImageTab:
    """Lay the tab out and connect it."""
    first = shared.library.gallery.first("image")
    shown, runs = gr.State(first.name if first else ""), gr.State([])
    parts: dict[str, Any] = {"shown": shown, "runs": runs}
    parts["recording"] = gr.Dropdown(
        choices(shared.library, [], "image"), value=first.name if first else None, label="Showing",
        elem_id="sp-image-recording", elem_classes="sp-top", min_width=0,
    )  # fmt: skip
    with gr.Row(elem_classes="sp-room"):
        with gr.Column(elem_classes="sp-side", scale=0, min_width=0):
            with gr.Column(elem_classes="sp-scroll", min_width=0):
                parts |= _controls(first.run if first else None, first.note if first else "")
            with gr.Column(elem_classes="sp-foot", min_width=0):
                with gr.Row(elem_classes="sp-go"):
                    parts["run"] = gr.Button(
                        "Draw live", variant="primary", size="lg", min_width=0, elem_id="sp-draw-live"
                    )
                    parts["stop"] = gr.Button("Stop", size="lg", min_width=0, visible=False, elem_classes="sp-stop")
                parts["why"] = theme.html(panels.why(first.trace if first else None))
        with gr.Column(elem_classes="sp-main", min_width=0):
            with gr.Column(elem_classes="sp-front", min_width=0):
                parts["banner"] = theme.html("", visible=False)
                parts["stage"] = Stage(
                    shared.library.feed(first.name) if first else "", elem_id="sp-image-stage", elem_classes="sp-stage",
                    lines=shared.library.store.lines, tail=tail.PATH,
                )  # fmt: skip
    tab = ImageTab(shared, **parts)
    _wire(tab)
    return tab


def _controls(first: Run | None, note: str) -> dict[str, Any]:
    method = first.method if first else image_asking.METHOD
    made = {
        "method": choice.choice(choice.methods("image"), method, "Method", elem_id="sp-image-method"),
        "summary": theme.html(panels.summary(method, note)),
        "target": gr.Dropdown(
            image_asking.targets(), value=image_asking.catalog.DEFAULT_IMAGE_TARGET, label="Target",
            allow_custom_value=True, elem_id="sp-image-target",
        ),
        "prompt": gr.Textbox(
            first.prompt if first else PROMPTS[0], label="What to draw", lines=2, max_lines=4, elem_id="sp-image-prompt"
        ),
        "examples": gr.HTML(_examples(), js_on_load=_PICK, apply_default_css=False, elem_id="sp-image-examples"),
        "basics": controls.form(image_asking.basics(first), elem_id="sp-image-basics"),
        "own": controls.form(
            controls.method_answer(method, dict(first.parameters) if first else None), elem_id="sp-image-own"
        ),
    }  # fmt: skip
    with gr.Accordion("Advanced", open=False, elem_classes="sp-fold"):
        made["advanced"] = controls.form(image_asking.advanced(first), elem_id="sp-image-advanced")
    return made


def _examples() -> str:
    at = iter(range(len(PROMPTS)))
    groups = "".join(
        f"<section><h4>{kind}</h4><div>"
        + "".join(f'<button type="button" data-at="{next(at)}">{prompt}</button>' for prompt in prompts)
        + "</div></section>"
        for kind, prompts in image_asking.EXAMPLES
    )
    return f'<details class="sp-examples"><summary>Examples</summary><div class="sp-pop">{groups}</div></details>'


def _wire(tab: ImageTab) -> None:
    shared = tab.shared
    quiet: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private", "concurrency_limit": None}

    def go(shown: str, runs: list[tuple[str, str]], request: gr.Request, *asked: Any) -> Iterator[dict[Any, Any]]:
        mine, wanted = list(runs), Asked(*asked)
        changes = text_run.running(
            shared, request.session_hash, shown, lambda: image_asking.request(wanted, shared.settings)
        )
        with closing(changes):
            yield from gathered(tab.updates(change, mine) for change in changes)

    def play(name: str, runs: list[tuple[str, str]], request: gr.Request) -> dict[Any, Any]:
        return tab.updates(text_run.recording(shared, request.session_hash, name), list(runs))

    def of_method(name: str) -> dict[Any, Any]:
        return {tab.summary: panels.summary(name), tab.own: controls.method_answer(name)}

    def halt(request: gr.Request) -> None:
        text_run.stop(shared, request.session_hash)

    tab.recording.input(play, [tab.recording, tab.runs], tab.outputs, **quiet)
    gr.on([tab.run.click, tab.prompt.submit], go, [tab.shown, tab.runs, *tab.asked], tab.outputs, **quiet)
    tab.stop.click(halt, None, None, queue=False, show_progress="hidden", api_visibility="private")
    tab.examples.choose(chosen, None, tab.prompt, queue=False, **quiet)
    tab.method.input(of_method, tab.method, [tab.summary, tab.own], queue=False, **quiet)


def chosen(event: gr.EventData) -> Any:
    """The prompt that was clicked; nothing for a number the list does not have."""
    at = event._data.get("at") if isinstance(event._data, dict) else None
    return PROMPTS[at] if isinstance(at, int) and 0 <= at < len(PROMPTS) else gr.skip()
