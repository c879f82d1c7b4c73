"""Printable sheet of a lesson: its texts, the drafts to verify, the questions with tick boxes, the answers on a separate page."""

from __future__ import annotations

from specviz.figures.theme import markup, show_whitespace
from specviz.trace.schema import PRUNED, Step, Trace
from specviz.ui import lessons, theme
from specviz.ui.lessons import Lesson, Page

MOST_NODES = 40
"""Maximum number of a draft's nodes on paper; the rest is counted."""


def html(lesson: Lesson, trace: Trace, beside: Trace | None = None) -> str:
    """Return the sheet as an HTML document. After the first question, pages that ask nothing are printed with the answers."""
    sections: list[str] = []
    answers: list[str] = []
    drawn: set[int | None] = set()
    for number in range(len(lesson.pages)):
        page = lessons.page(lesson, number, trace, beside)
        if page.ask or not answers:
            draft = lesson.pages[number].get("veiled") and page.step is not None and page.step not in drawn
            drawn.update([page.step] if draft else [])
            body = _paragraphs(page) + (_draft(trace.steps[page.step or 0]) if draft else "") + _question(page)
            sections.append(f"<section><h2>{number + 1}</h2><div>{body}</div></section>")
        if page.ask or answers:
            answers.append(_answer(number + 1, page))
    title, about = markup(lesson.title), markup(lesson.about)
    run = markup(f"{trace.run.title} on {trace.run.target}: {trace.run.prompt}")
    return (
        f"<!doctype html><meta charset=utf-8><title>{title}</title><style>{theme.source('lesson_sheet.css')}</style>"
        f"<h1>{title}</h1><p>{about}</p><p><small>Recorded run: {run}</small></p>{''.join(sections)}"
        f"<section class='answers'><h2>Answers: {title}</h2><ol>{''.join(answers)}</ol></section>"
    )


def _paragraphs(page: Page) -> str:
    return "".join(f"<p>{paragraph}</p>" for paragraph in page.text)


def _question(page: Page) -> str:
    if page.ask is None:
        return ""
    boxes = "".join(f"<li>{markup(choice)}</li>" for choice in page.ask.choices)
    return f"<p><b>{markup(page.ask.question)}</b></p><ul class='boxes'>{boxes}</ul>"


def _answer(number: int, page: Page) -> str:
    answer = f"<b>{markup(page.ask.choices[page.ask.answer])}.</b> {page.reveal}" if page.ask else _paragraphs(page)
    return f'<li value="{number}">{answer}</li>'


def _draft(step: Step) -> str:
    """The drafted tree as nested lists, a chain on one line."""
    sent = [index for index, node in enumerate(step.nodes) if index and node.status != PRUNED]
    listed = set(sent[:MOST_NODES])
    children: dict[int, list[int]] = {}
    for index in sorted(listed):
        children.setdefault(step.nodes[index].parent, []).append(index)

    def line(index: int) -> str:
        words = [_token(step, index)]
        while len(children.get(index, [])) == 1:
            index = children[index][0]
            words.append(_token(step, index))
        below = "".join(f"<li>{line(child)}</li>" for child in children.get(index, []))
        return " ".join(words) + (f"<ul>{below}</ul>" if below else "")

    rest = f"<p><small>and {len(sent) - len(listed)} more</small></p>" if len(sent) > len(listed) else ""
    return f"<div class='draft'>{line(0)}{rest}</div>"


def _token(step: Step, index: int) -> str:
    return f"<code>{markup(show_whitespace(step.nodes[index].text))}</code>"
