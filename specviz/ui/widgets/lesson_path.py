"""The way through the lessons: a drop-down by group, a mark a lesson, and the sheet to print.

What a visitor has finished and predicted stays in the browser; the server learns nothing of it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import gradio as gr

from specviz.errors import SpecvizError
from specviz.figures.theme import markup
from specviz.ui.lessons import Lesson


def groups(lesson_by_name: dict[str, Lesson]) -> dict[str, list[tuple[int, Lesson]]]:
    """The lessons under the titles of their groups, numbered through as they stand."""
    by_group: dict[str, list[tuple[int, Lesson]]] = {}
    for number, lesson in enumerate(lesson_by_name.values(), 1):
        by_group.setdefault(lesson.group or "Lessons", []).append((number, lesson))
    return by_group


def path(lesson_by_name: dict[str, Lesson], value: str, make_sheet: Callable[[str], str], **more: Any) -> gr.HTML:
    """The widget; its value is the chosen lesson's name, and ``input`` says that the visitor chose it.

    ``make_sheet`` makes a lesson's sheet as HTML when a visitor prints it.
    """

    def sheet(name: str) -> str:
        """A lesson's sheet; nothing for one that is not here."""
        try:
            return make_sheet(name) if name in lesson_by_name else ""
        except SpecvizError:
            return ""

    return gr.HTML(
        value,
        html_template=_template(groups(lesson_by_name), value),
        js_on_load=_script(),
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


@cache
def _script() -> str:
    return (Path(__file__).parent / "lesson_path.js").read_text(encoding="utf-8")
