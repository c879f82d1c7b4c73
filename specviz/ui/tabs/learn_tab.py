"""The Learn tab: a lesson's page at the left, its recorded run at the right, a prediction before each reveal."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import gradio as gr

from specviz.trace import store as traces
from specviz.ui import lessons, theme
from specviz.ui.lessons import Lesson, Page
from specviz.ui.shared import AppState
from specviz.ui.stream import feed
from specviz.ui.widgets import panels
from specviz.viewer.component import Stage

SEEK = "(at) => window.specvizPage.go('#sp-lesson', JSON.parse(at))"


@dataclass(frozen=True)
class View:
    """What one page puts on the screen. ``at`` is the step to stop at, -1 for none in particular, and the panel."""

    text: str
    feed: str
    at: str
    choices: tuple[str, ...]
    verdict: str
    first: bool
    last: bool
    asks: bool


def playable(shared: AppState, lesson_by_name: dict[str, Lesson]) -> dict[str, Lesson]:
    """The lessons whose recorded run is here."""
    return {name: lesson for name, lesson in lesson_by_name.items() if _recording(shared, lesson) is not None}


def _recording(shared: AppState, lesson: Lesson) -> str | None:
    gallery = shared.archive.gallery
    if lesson.trace in gallery.recordings:
        return lesson.trace
    other = gallery.of_method(lesson.method)
    return other.name if other else None


def view(shared: AppState, lesson: Lesson, number: int, guess: str | None = None, revealed: bool = False) -> View:
    """Page ``number`` before its reveal, or after it with the class's ``guess`` beside the answer."""
    name = _recording(shared, lesson)
    trace = shared.archive.trace(name or "")
    page = lessons.page(lesson, number, trace)
    hidden = page.veiled and page.step is not None and page.ask is not None and not revealed
    text = traces.text(lessons.veiled(trace, page.step)) if hidden and page.step is not None else shared.archive.text(name or "")
    return View(
        text=_text(lesson, page, number),
        feed=feed.recorded(f"{name}#{number}{'?' if hidden else ''}", text),
        at=json.dumps({"step": -1 if page.step is None else page.step, "panel": page.panel}),
        choices=page.ask.choices if page.ask and not revealed else (),
        verdict=_verdict(page, guess) if revealed else "",
        first=number == 0,
        last=number == len(lesson.pages) - 1,
        asks=page.ask is not None and not revealed,
    )


def _text(lesson: Lesson, page: Page, number: int) -> str:
    paragraphs = "".join(f"<p>{paragraph}</p>" for paragraph in page.text)
    question = f'<p class="sp-ask">{panels.markup(page.ask.question)}</p>' if page.ask else ""
    place = f"<small>{number + 1} of {len(lesson.pages)}</small>"
    at = f'data-lesson="{panels.markup(lesson.name)}" data-at="{number + 1}"'
    return f'<div class="sp-lesson" {at}><h2>{panels.markup(lesson.title)} {place}</h2>{paragraphs}{question}</div>'


def _verdict(page: Page, guess: str | None) -> str:
    if page.ask is None:
        return ""
    right = page.ask.choices[page.ask.answer]
    head = "Nobody guessed." if guess is None else "Right." if guess == right else f"You said: {guess}."
    answer = f"<p><b>{panels.markup(head)}</b> Answer: {panels.markup(right)}</p><p>{page.reveal}</p>"
    return f'<div class="sp-reveal" role="status">{answer}</div>'


def build(shared: AppState, lesson_by_name: dict[str, Lesson], tab_page: gr.Tab) -> None:
    """Lay the tab out and connect it; ``tab_page``, the tab itself, stays empty until it is opened."""
    names = [(entry.title, name) for name, entry in lesson_by_name.items()]
    with gr.Row(elem_classes="sp-room sp-learn"):
        with gr.Column(elem_classes="sp-side", scale=0, min_width=0):
            with gr.Column(elem_classes="sp-scroll", min_width=0):
                lesson = gr.Dropdown(names, value=names[0][1], label="Lesson", elem_id="sp-lesson-choice")
                text = theme.html("")
                guess = gr.Radio([], label="Your prediction", visible=False, elem_classes="sp-guess")
                verdict = theme.html("", visible=False)
            with gr.Column(elem_classes="sp-foot", min_width=0), gr.Row(elem_classes="sp-go"):
                back = gr.Button("Back", size="lg", min_width=0, interactive=False)
                reveal = gr.Button("Reveal", variant="primary", size="lg", min_width=0, visible=False)
                onward = gr.Button("Next", variant="primary", size="lg", min_width=0)
        with gr.Column(elem_classes="sp-main", min_width=0), gr.Column(elem_classes="sp-front", min_width=0):
            stage = Stage("", elem_id="sp-lesson", elem_classes="sp-stage", with_script=False, autoplay=False)
    number, at = gr.State(0), gr.Textbox(visible=False)
    parts = {
        "text": text,
        "stage": stage,
        "at": at,
        "guess": guess,
        "verdict": verdict,
        "back": back,
        "reveal": reveal,
        "onward": onward,
    }
    _wire(shared, lesson_by_name, lesson, number, parts, tab_page)


def updates(view: View, number: int, parts: dict[str, Any]) -> list[Any]:
    """The view as Gradio wants it, in the order of ``parts``, the page's number last."""
    components = {
        "text": view.text,
        "stage": view.feed,
        "at": view.at,
        "guess": gr.Radio(list(view.choices), value=None, visible=view.asks),
        "verdict": gr.HTML(view.verdict, visible=bool(view.verdict)),
        "back": gr.Button(interactive=not view.first),
        "reveal": gr.Button(visible=view.asks),
        "onward": gr.Button(interactive=not view.last, variant="secondary" if view.asks else "primary"),
    }
    return [*(components[name] for name in parts), number]


def _wire(
    shared: AppState,
    lesson_by_name: dict[str, Lesson],
    lesson: gr.Dropdown,
    number: gr.State,
    parts: dict[str, Any],
    tab_page: gr.Tab,
) -> None:
    quiet: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private", "concurrency_limit": None}
    outputs, filled = [*parts.values(), number], gr.State(False)

    def turn(by: int | None) -> Any:
        def turned(name: str, now: int) -> list[Any]:
            to = 0 if by is None else min(max(now + by, 0), len(lesson_by_name[name].pages) - 1)
            return updates(view(shared, lesson_by_name[name], to), to, parts)

        return turned

    def shown(name: str, now: int, guess: str | None) -> list[Any]:
        return updates(view(shared, lesson_by_name[name], now, guess, revealed=True), now, parts)

    def opened(first: str, filled_before: bool, request: gr.Request) -> Any:
        """The page of a lesson that the address names, or the first lesson where it names none; a lesson that is open stays."""
        if filled_before:
            return [gr.skip()] * (len(outputs) + 2)
        name, asked = request.query_params.get("lesson", ""), request.query_params.get("at", "")
        if name not in lesson_by_name:
            name, asked = first, ""
        last = len(lesson_by_name[name].pages) - 1
        to = min(max(int(asked) - 1, 0), last) if asked.isascii() and asked.isdecimal() and len(asked) < 6 else 0
        return [*updates(view(shared, lesson_by_name[name], to), to, parts), name, True]

    tab_page.select(opened, [lesson, filled], [*outputs, lesson, filled], **quiet)
    filled.change(None, parts["at"], None, js=SEEK)
    for event, handler, inputs in (
        (lesson.input, turn(None), [lesson, number]),
        (parts["back"].click, turn(-1), [lesson, number]),
        (parts["onward"].click, turn(1), [lesson, number]),
        (parts["reveal"].click, shown, [lesson, number, parts["guess"]]),
    ):
        event(handler, inputs, outputs, **quiet).then(None, parts["at"], None, js=SEEK)
