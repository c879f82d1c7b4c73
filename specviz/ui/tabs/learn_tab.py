"""The Learn tab: a lesson's page at the left, its recorded run at the right, a prediction before each reveal.

A visitor's progress and predictions stay in the browser; the server stores none of them.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gradio as gr

from specviz.errors import SpecvizError
from specviz.figures.theme import markup
from specviz.trace import store as traces
from specviz.trace.schema import Trace
from specviz.ui import lesson_sheet, lessons, theme
from specviz.ui.app_state import AppState
from specviz.ui.lessons import Lesson, Page
from specviz.ui.stream import feed
from specviz.ui.tabs.text_run import QUIET
from specviz.viewer.component import Stage

SEEK = """(at) => {
  const place = JSON.parse(at);
  document.dispatchEvent(new CustomEvent("specviz:lesson", { detail: place }));
  window.specvizPage.go("#sp-lesson", place);
  const read = document.querySelector(".sp-reveal") || document.querySelector(".sp-lesson h2");
  read.scrollIntoView({ block: "nearest" });
}"""

COVERED = "covered until the questions about this run are answered"
"""Message on the stage in place of the autoregressive run."""


@dataclass(frozen=True)
class View:
    """Content of one page. ``at`` holds the stage's step, the panel, and the result of the prediction, as JSON text."""

    text: str
    feed: str
    at: str
    choices: tuple[str, ...]
    verdict: str
    first: bool
    last: bool
    asks: bool


def playable(shared: AppState, lesson_by_name: dict[str, Lesson]) -> dict[str, Lesson]:
    """The lessons whose recorded runs exist."""
    return {name: lesson for name, lesson in lesson_by_name.items() if _recording(shared, lesson) is not None}


def _recording(shared: AppState, lesson: Lesson) -> str | None:
    """Name of a lesson's run; None when it or the run that its texts quote is missing."""
    gallery = shared.archive.gallery
    if lesson.beside and lesson.beside not in gallery.recordings:
        return None
    if lesson.trace in gallery.recordings:
        return lesson.trace
    other = gallery.of_method(lesson.method)
    return other.name if other else None


def _traces(shared: AppState, lesson: Lesson) -> tuple[Trace, Trace | None]:
    """The lesson's run, and the other run that its texts quote, if any."""
    archive = shared.archive
    return archive.trace(_recording(shared, lesson) or ""), archive.trace(lesson.beside) if lesson.beside else None


def view(
    shared: AppState,
    lesson: Lesson,
    number: int,
    guess: str | None = None,
    revealed: bool = False,
    following: Lesson | None = None,
) -> View:
    """Return page ``number`` before its reveal, or after it with the class's ``guess`` beside the answer.

    ``following`` is the lesson after this one, which the last page announces.
    """
    name = _recording(shared, lesson)
    trace, beside = _traces(shared, lesson)
    page = lessons.page(lesson, number, trace, beside)
    shown, at = lessons.shown(lesson, number, trace, revealed)
    whole = shown is trace
    asks = page.ask is not None and not revealed
    last = number == len(lesson.pages) - 1
    right = None if page.ask is None or guess is None or not revealed else guess == page.ask.choices[page.ask.answer]
    panel = page.panel if page.panel != lessons.REVEAL else revealed
    place = {"lesson": lesson.name, "page": number, "right": right, "done": last and not asks, "step": at, "panel": panel}
    covered = {} if whole else {"baseline": COVERED}
    text = shared.archive.text(name or "") if whole else traces.text(shown)
    announced = _announced(following) if last and not asks else ""
    return View(
        text=_text(lesson, page, number),
        feed=feed.control("recorded", f"{name}#{number}{'' if whole else '?' + str(int(revealed))}", **covered) + text,
        at=json.dumps(place),
        choices=page.ask.choices if page.ask and asks else (),
        verdict=(_verdict(page, guess) if revealed else "") + announced,
        first=number == 0,
        last=last,
        asks=asks,
    )


def _text(lesson: Lesson, page: Page, number: int) -> str:
    paragraphs = "".join(f"<p>{paragraph}</p>" for paragraph in page.text)
    question = f'<p class="sp-ask">{markup(page.ask.question)}</p>' if page.ask else ""
    place = f"<small>{number + 1} of {len(lesson.pages)}</small>"
    at = f'data-lesson="{markup(lesson.name)}" data-at="{number + 1}"'
    return f'<div class="sp-lesson" {at}><h2>{markup(lesson.title)} {place}</h2>{paragraphs}{question}</div>'


def _verdict(page: Page, guess: str | None) -> str:
    if page.ask is None:
        return ""
    right = page.ask.choices[page.ask.answer]
    head = "" if guess is None else "Right. " if guess == right else f"You said: {guess}. "
    answer = f"<p>{markup(head)}<b>Answer:</b> {markup(right)}</p><p>{page.reveal}</p>"
    return f'<div class="sp-reveal" role="status">{answer}</div>'


def _announced(following: Lesson | None) -> str:
    """HTML after the last page, which announces the next lesson."""
    if following is None:
        return '<p class="sp-onward">This was the last lesson.</p>'
    return f'<p class="sp-onward">Next: <b>{markup(following.title)}</b>. {markup(following.about)}</p>'


def groups(lesson_by_name: dict[str, Lesson]) -> dict[str, list[tuple[int, Lesson]]]:
    """The lessons under the titles of their groups, numbered consecutively in their order."""
    by_group: dict[str, list[tuple[int, Lesson]]] = {}
    for number, lesson in enumerate(lesson_by_name.values(), 1):
        by_group.setdefault(lesson.group or "Lessons", []).append((number, lesson))
    return by_group


def picker(lesson_by_name: dict[str, Lesson], value: str, make_sheet: Callable[[str], str], **more: Any) -> gr.HTML:
    """Picker of lessons; its value is the chosen lesson's name, and ``input`` fires when the visitor chooses one.

    ``make_sheet`` makes a lesson's sheet as HTML when a visitor prints it.
    """

    def sheet(name: str) -> str:
        """Return a lesson's sheet; empty for an unknown one."""
        try:
            return make_sheet(name) if name in lesson_by_name else ""
        except SpecvizError:
            return ""

    return gr.HTML(
        value,
        html_template=_template(groups(lesson_by_name), value),
        js_on_load=theme.source("tabs/lesson_path.js"),
        apply_default_css=False,
        server_functions=[sheet],
        **more,
    )


def _template(by_group: dict[str, list[tuple[int, Lesson]]], value: str) -> str:
    options = "".join(
        f'<optgroup label="{markup(group)}">{"".join(_option(*entry, value) for entry in listed)}</optgroup>'
        for group, listed in by_group.items()
    )
    marks = "".join(
        f'<span title="{markup(group)}">{"".join(_mark(*entry) for entry in listed)}</span>' for group, listed in by_group.items()
    )
    return (
        '<div class="sp-field sp-choice"><label for="sp-lesson-select">Lesson</label>'
        f'<select id="sp-lesson-select">{options}</select></div>'
        f'<div class="sp-path" aria-hidden="true">{marks}</div>'
        '<div class="sp-learned"><span role="status"></span>'
        '<button type="button" class="sp-link" data-do="forget" hidden>Start over</button>'
        '<button type="button" class="sp-link" data-do="print">Print sheet</button></div>'
    )


def _option(number: int, lesson: Lesson, value: str) -> str:
    chosen = " selected" if lesson.name == value else ""
    return f'<option value="{markup(lesson.name)}"{chosen}>{number} · {markup(lesson.title)}</option>'


def _mark(number: int, lesson: Lesson) -> str:
    title = f"{number} · {lesson.title}"
    return f'<button type="button" tabindex="-1" data-lesson="{markup(lesson.name)}" title="{markup(title)}"></button>'


def build(shared: AppState, lesson_by_name: dict[str, Lesson], tab_page: gr.Tab) -> None:
    """Lay the tab out and connect it; ``tab_page``, the tab itself, stays empty until it is opened."""

    def sheet(name: str) -> str:
        return lesson_sheet.html(lesson_by_name[name], *_traces(shared, lesson_by_name[name]))

    with gr.Row(elem_classes="sp-room sp-learn"):
        with gr.Column(elem_classes="sp-side", scale=0, min_width=0):
            with gr.Column(elem_classes="sp-scroll", min_width=0):
                lesson = picker(lesson_by_name, next(iter(lesson_by_name)), sheet, elem_id="sp-lesson-choice")
                text = theme.html("")
                guess = gr.Radio([], label="Your prediction", visible=False, elem_classes="sp-guess")
                verdict = theme.html("", visible=False)
            with gr.Column(elem_classes="sp-foot", min_width=0), gr.Row(elem_classes="sp-go"):
                back = gr.Button("Back", size="lg", min_width=0, interactive=False)
                reveal = gr.Button("Reveal", variant="primary", size="lg", min_width=0, visible=False)
                onward = gr.Button("Next", variant="primary", size="lg", min_width=0, visible=False)
        with gr.Column(elem_classes="sp-main", min_width=0), gr.Column(elem_classes="sp-front", min_width=0):
            stage = Stage("", elem_id="sp-lesson", elem_classes="sp-stage", with_script=False, autoplay=False)
    number, at = gr.State(0), gr.Textbox(visible=False)
    parts = {
        "text": text, "stage": stage, "at": at, "guess": guess, "verdict": verdict, "back": back, "reveal": reveal,
        "onward": onward,
    }  # fmt: skip
    _wire(shared, lesson_by_name, lesson, number, parts, tab_page)


def updates(view: View, parts: dict[str, Any], more: bool) -> list[Any]:
    """Return the view as Gradio updates, in the order of ``parts``. ``more``: another lesson follows."""
    word = "Next" if not view.last else "Next lesson" if more else "First lesson"
    components = {
        "text": view.text,
        "stage": view.feed,
        "at": view.at,
        "guess": gr.Radio(list(view.choices), value=None, visible=view.asks),
        "verdict": gr.HTML(view.verdict, visible=bool(view.verdict)),
        "back": gr.Button(interactive=not view.first),
        "reveal": gr.Button(visible=view.asks),
        "onward": gr.Button(word, variant="secondary" if view.asks else "primary", visible=True),
    }
    return [components[name] for name in parts]


def turned(lesson_by_name: dict[str, Lesson], name: str, number: int, by: int) -> tuple[str, int]:
    """Return the lesson and page ``by`` pages further. After a lesson comes the next one, after the last one the first."""
    to = max(number + by, 0)
    if to < len(lesson_by_name[name].pages):
        return name, to
    names = list(lesson_by_name)
    return names[(names.index(name) + 1) % len(names)], 0


def _wire(
    shared: AppState,
    lesson_by_name: dict[str, Lesson],
    lesson: gr.HTML,
    number: gr.State,
    parts: dict[str, Any],
    tab_page: gr.Tab,
) -> None:
    outputs, filled = [*parts.values(), number, lesson], gr.State(False)
    names = list(lesson_by_name)

    def page_of(name: str, to: int, guess: str | None = None, revealed: bool = False) -> list[Any]:
        following = names[names.index(name) + 1 :][:1]
        after = lesson_by_name[following[0]] if following else None
        return [*updates(view(shared, lesson_by_name[name], to, guess, revealed, after), parts, bool(following)), to, name]

    def turn(by: int) -> Any:
        return lambda name, now: page_of(*turned(lesson_by_name, name, now, by))

    def begin(name: str) -> list[Any]:
        return page_of(name, 0)

    def shown(name: str, now: int, guess: str | None) -> list[Any]:
        return page_of(name, now, guess, revealed=True)

    def opened(first: str, filled_before: bool, request: gr.Request) -> Any:
        """Open the lesson and page that the address names, else the first lesson; an open lesson stays."""
        if filled_before:
            return [gr.skip()] * (len(outputs) + 1)
        name, asked = request.query_params.get("lesson", ""), request.query_params.get("at", "")
        if name not in lesson_by_name:
            name, asked = first, ""
        last = len(lesson_by_name[name].pages) - 1
        to = min(max(int(asked) - 1, 0), last) if asked.isascii() and asked.isdecimal() and len(asked) < 6 else 0
        return [*page_of(name, to), True]

    tab_page.select(opened, [lesson, filled], [*outputs, filled], **QUIET)
    filled.change(None, parts["at"], None, js=SEEK)
    for event, handler, inputs in (
        (lesson.input, begin, [lesson]),
        (parts["back"].click, turn(-1), [lesson, number]),
        (parts["onward"].click, turn(1), [lesson, number]),
        (parts["reveal"].click, shown, [lesson, number, parts["guess"]]),
    ):
        event(handler, inputs, outputs, **QUIET).then(None, parts["at"], None, js=SEEK)
