"""The Learn tab: a lesson page beside a recorded run, with a prediction before each reveal.

The visitor's progress and predictions are stored in the browser only.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache

import gradio as gr
from msgspec.structs import replace

from specviz.errors import BadInput, SpecvizError
from specviz.figures.theme import markup
from specviz.methods.registry import all_methods
from specviz.trace import store as traces
from specviz.trace.schema import Trace
from specviz.ui import lessons, theme
from specviz.ui.app_state import AppState
from specviz.ui.archive import OPENING, Groups
from specviz.ui.lessons import Ask, Lesson
from specviz.ui.tabs.events import QUIET, TabParts, Updates
from specviz.ui.widgets import panels
from specviz.viewer.component import Stage, control

SEEK = """(at) => {
  const place = JSON.parse(at);
  document.dispatchEvent(new CustomEvent("specviz:lesson", { detail: place }));
  window.specvizPage.go("#sp-lesson", place);
  const read = document.querySelector(".sp-reveal") || document.querySelector(".sp-lesson h2");
  read.scrollIntoView({ block: "nearest" });
}"""

PATH = (
    '<div class="sp-path" aria-hidden="true"></div><div class="sp-learned"><span role="status"></span>'
    '<button type="button" class="sp-link" data-do="forget" hidden>Start over</button>'
    '<button type="button" class="sp-link" data-do="print">Print sheet</button>'
    '<button type="button" class="sp-link" data-do="notes">Teacher’s notes</button>'
    '<button type="button" class="sp-link" data-do="class">Class mode</button></div>'
)
"""HTML of the lesson progress."""

COVERED = "hidden until the questions about this run are answered"
"""Message on the stage instead of the autoregressive run."""


def playable(shared: AppState, lesson_by_name: dict[str, Lesson]) -> dict[str, Lesson]:
    """Return the lessons whose recorded runs exist, with ``trace`` set to the name of the run."""
    gallery, found = shared.archive.gallery, dict[str, Lesson]()
    for name, lesson in lesson_by_name.items():
        run = gallery.recordings.get(lesson.trace) or gallery.of_method(lesson.method)
        if run and (not lesson.beside or lesson.beside in gallery.recordings):
            found[name] = replace(lesson, trace=run.name)
    return found


def course(shared: AppState) -> dict[str, Lesson]:
    """Return the playable lessons, then one per recorded run with drafts, which asks for predictions."""
    found = playable(shared, lessons.load(shared.settings.lessons))
    for run in shared.archive.gallery.of() if found else ():
        if (method := run.run.method) in all_methods() and method != panels.BASELINE:
            name = f"run-{run.name}"
            found[name] = Lesson(run.title, run.note, method, lessons.PREDICTIONS, name, run.name, lessons.RECORDED)
    return found


def runs(shared: AppState, lesson: Lesson) -> tuple[Trace, Trace | None]:
    """Return the lesson's run, and the second run that the lesson quotes, or None."""
    return shared.archive.trace(lesson.trace), shared.archive.trace(lesson.beside) if lesson.beside else None


def asking(shared: AppState) -> Callable[[str, int], tuple[str, Ask | None]]:
    """Return a function from a lesson's name and page number to the lesson's title and the page's question."""
    offered = cache(lambda: course(shared))

    @cache
    def ask(name: str, number: int) -> tuple[str, Ask | None]:
        try:
            lesson = offered()[name]
            return lesson.title, lessons.page(lesson, number, *runs(shared, lesson)).ask
        except LookupError:
            raise BadInput("There is no such page.") from None

    return ask


def groups(lesson_by_name: dict[str, Lesson]) -> Groups:
    """Return the numbered titles and the names of the lessons, by group."""
    by_group: Groups = {}
    for number, lesson in enumerate(lesson_by_name.values(), 1):
        title = lesson.title if lesson.group == lessons.RECORDED else f"{number} · {lesson.title}"
        by_group.setdefault(lesson.group or "Lessons", []).append((title, lesson.name))
    return by_group


def turned(lesson_by_name: dict[str, Lesson], name: str, number: int, by: int) -> tuple[str, int]:
    """Return the lesson and page ``by`` pages further, wrapping around after the last lesson."""
    to = max(number + by, 0)
    if to < len(lesson_by_name[name].pages):
        return name, to
    names = list(lesson_by_name)
    return names[(names.index(name) + 1) % len(names)], 0


class LearnTab(TabParts):
    """The Learn tab, which stays empty until opened."""

    def __init__(self, shared: AppState, lesson_by_name: dict[str, Lesson], tab_page: gr.Tab) -> None:
        """Build the tab. ``tab_page``: the Gradio tab."""
        self.shared, self.lessons = shared, lesson_by_name
        with gr.Row(elem_classes="sp-room sp-learn"):
            with gr.Column(elem_classes="sp-side", scale=0, min_width=0):
                with gr.Column(elem_classes="sp-scroll", min_width=0):
                    self.lesson = self.picker()
                    self.text = theme.html("")
                    self.guess = gr.Radio([], label="Your prediction", visible=False, elem_classes="sp-guess")
                    theme.html('<div class="sp-class"></div>')
                    self.verdict = theme.html("", visible=False)
                with gr.Column(elem_classes="sp-foot", min_width=0), gr.Row(elem_classes="sp-go"):
                    self.back = gr.Button("Back", size="lg", min_width=0, interactive=False)
                    self.reveal = gr.Button("Reveal", variant="primary", size="lg", min_width=0, visible=False)
                    self.onward = gr.Button("Next", variant="primary", size="lg", min_width=0, visible=False)
            with gr.Column(elem_classes="sp-main", min_width=0), gr.Column(elem_classes="sp-front", min_width=0):
                self.stage = Stage(OPENING, elem_id="sp-lesson", elem_classes="sp-stage", autoplay=False)
        self.number, self.filled, self.at = gr.State(0), gr.State(False), gr.Textbox(visible=False)
        self.wire(tab_page)

    def picker(self) -> gr.HTML:
        """Return the lesson drop-down, whose value is the name of the selected lesson."""

        def sheet(name: str) -> str:
            """Return a lesson's sheet as HTML, or the teacher's notes if ``name`` is empty; an empty string if missing."""
            try:
                if not name:
                    return (self.shared.settings.lessons / "notes.html").read_text("utf-8")
                lesson = self.lessons[name]
                return lessons.sheet(lesson, *runs(self.shared, lesson))
            except (KeyError, OSError, SpecvizError):
                return ""

        return panels.drop_down(
            groups(self.lessons), next(iter(self.lessons)), "Lesson", elem_id="sp-lesson-choice",
            script="tabs/lesson_path.js", below=PATH, server_functions=[sheet],
        )  # fmt: skip

    def page(self, name: str, number: int = 0, guess: str | None = None, revealed: bool = False) -> Updates:
        """Return the updates that show a page of a lesson.

        ``revealed``: whether to show the answer; ``guess``: the visitor's prediction, shown with the answer.
        """
        lesson, names = self.lessons[name], list(self.lessons)
        following = self.lessons.get((names + [""])[names.index(name) + 1])
        trace, beside = runs(self.shared, lesson)
        page, (shown, at) = lessons.page(lesson, number, trace, beside), lessons.shown(lesson, number, trace, revealed)
        asks, last = page.ask is not None and not revealed, number == len(lesson.pages) - 1
        answer = page.ask.choices[page.ask.answer] if page.ask and revealed else None
        right = None if answer is None or guess is None else guess == answer
        place = {
            "lesson": name, "page": number, "right": right, "done": last and not asks, "step": at,
            "panel": revealed if page.panel == lessons.REVEAL else page.panel,
        }  # fmt: skip
        feed = control("recorded", f"{lesson.trace}#{number}") + self.shared.archive.text(lesson.trace)
        if shown is not trace:
            feed = control("recorded", f"{lesson.trace}#{number}?{revealed:d}", baseline=COVERED) + traces.text(shown)
        verdict = ""
        if answer is not None:
            head = "" if guess is None else "Right. " if right else f"You said: {guess}. "
            words = f"<p>{markup(head)}<b>Answer:</b> {markup(answer)}</p><p>{page.reveal}</p>"
            verdict = f'<div class="sp-reveal" role="status">{words}</div>'
        if last and not asks:
            verdict += f'<p class="sp-task"><b>Task.</b> {page.task}</p>' if page.task else ""
            onward = "This was the last lesson."
            if following:
                onward = f"Next: <b>{markup(following.title)}</b>. {markup(following.about)}"
            verdict += f'<p class="sp-onward">{onward}</p>'
        text = (
            f'<div class="sp-lesson" data-lesson="{markup(name)}" data-at="{number + 1}">'
            f"<h2>{markup(lesson.title)} <small>{number + 1} of {len(lesson.pages)}</small></h2>"
            f"{''.join(f'<p>{paragraph}</p>' for paragraph in page.text)}"
        ) + (f'<p class="sp-ask">{markup(page.ask.question)}</p></div>' if page.ask else "</div>")
        word = "Next" if not last else "Next lesson" if following else "First lesson"
        return {
            self.text: text,
            self.stage: feed,
            self.at: json.dumps(place),
            self.guess: gr.Radio(list(page.ask.choices) if page.ask and asks else [], value=None, visible=asks),
            self.verdict: gr.HTML(verdict, visible=bool(verdict)),
            self.back: gr.Button(interactive=number > 0),
            self.reveal: gr.Button(visible=asks),
            self.onward: gr.Button(word, variant="secondary" if asks else "primary", visible=True),
            self.number: number,
            self.lesson: name,
        }

    def opened(self, first: str, filled_before: bool, request: gr.Request) -> Updates:
        """Return the updates of opening the tab: the lesson and page named in the URL, else the lesson ``first``."""
        if filled_before:
            return {self.filled: True}
        name, at = request.query_params.get("lesson", ""), request.query_params.get("at", "")
        name = next((each for each in self.lessons if each.lstrip("0123456789") == name.lstrip("0123456789")), "")
        if not name:
            name, at = first, ""
        number = int(at[:5]) if at.isascii() and at.isdecimal() else 1
        return self.page(name, min(max(number, 1), len(self.lessons[name].pages)) - 1) | {self.filled: True}

    def wire(self, tab_page: gr.Tab) -> None:
        tab_page.select(self.opened, [self.lesson, self.filled], self.outputs, **QUIET)
        self.filled.change(None, self.at, None, js=SEEK)
        place = [self.lesson, self.number]
        for event, handler, inputs in (
            (self.lesson.input, self.page, [self.lesson]),
            (self.back.click, lambda name, number: self.page(*turned(self.lessons, name, number, -1)), place),
            (self.onward.click, lambda name, number: self.page(*turned(self.lessons, name, number, 1)), place),
            (self.reveal.click, lambda name, number, guess: self.page(name, number, guess, True), [*place, self.guess]),
        ):
            event(handler, inputs, self.outputs, **QUIET).then(None, self.at, None, js=SEEK)
