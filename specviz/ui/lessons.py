"""Lessons: JSON files that walk a class through a recorded run, a prediction before every reveal.

A file of ``assets/lessons`` holds {"title", "about", "trace", "method", "pages": [...]}: ``trace`` names the recording, or,
where there is none of that name, ``method`` takes the first recording of a method. A page is {"text", "at", "veiled",
"ask", "reveal"}. ``at`` says which step: "first", "last", "longest", "none_kept", "first_rejection" or {"step": 4}, counted
from 0, so that a lesson survives a new recording. ``veiled`` hides the verdict of that step until it is revealed. ``ask`` is
{"about": "kept"} or {"about": "bonus"}, whose choices and answer come from the step itself, or {"question", "choices",
"answer"} with the answer counted from 0. ``panel`` opens the method's own panel beside the tree, or, where a step has several
stories, the one of that note type: "rows". In every text, {tau} and the other names of :func:`facts` stand for the run's own
numbers, **x** is bold and `x` is code.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from specviz.errors import BadInput
from specviz.figures.theme import markup, show_whitespace
from specviz.trace import metrics
from specviz.trace.schema import PRUNED, ROOT, SKIPPED, Nanoseconds, Step, Trace

PLACES = ("first", "last", "longest", "none_kept", "first_rejection")
MOST_CHOICES = 6
VERDICTS = frozenset({"traversal", "typical", "reward", "arms", "relaxed", "islands", "canvas", "rows"})
"""Notes that tell how a step was judged, which a veiled step must not."""


@dataclass(frozen=True)
class Question:
    """What the class is asked before it sees: the answer is the place of the right choice."""

    question: str
    choices: tuple[str, ...]
    answer: int


@dataclass(frozen=True)
class Page:
    """One page, with every number filled in. ``step`` is the step on the stage, None for none in particular."""

    text: tuple[str, ...]
    step: int | None
    veiled: bool
    ask: Question | None
    reveal: str
    panel: bool | str = False


@dataclass(frozen=True)
class Lesson:
    """A lesson as its file has it. ``pages`` are raw until a trace fills them, see :func:`page`."""

    name: str
    title: str
    about: str
    trace: str
    method: str
    pages: tuple[Mapping[str, Any], ...]


def load(folder: Path) -> dict[str, Lesson]:
    """Every lesson of a folder by name, in the order of the file names. Raises BadInput naming a file that is none."""
    return {path.stem: _lesson(path) for path in sorted(folder.glob("*.json"))}


def _lesson(path: Path) -> Lesson:
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
        pages = tuple(fields["pages"])
        lesson = Lesson(path.stem, fields["title"], fields["about"], fields.get("trace", ""), fields["method"], pages)
        for number, raw_page in enumerate(pages, 1):
            _check(raw_page, number)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadInput(f"The lesson {path.name} cannot be read: {error}.") from None
    return lesson


def _check(page: Mapping[str, Any], number: int) -> None:
    at = page.get("at")
    if not page["text"] or not (at is None or at in PLACES or isinstance(at, dict)):
        raise ValueError(f"page {number} needs a text, and an at that is one of {', '.join(PLACES)} or a step")
    if not isinstance(page.get("panel", False), bool | str):
        raise ValueError(f"page {number} opens the panel {page['panel']!r}; say true or the type of a note")
    ask = page.get("ask") or {"about": "kept"}
    if "about" in ask:
        if ask["about"] not in ("kept", "bonus") or (page.get("ask") and at is None):
            raise ValueError(f"page {number} asks about {ask['about']!r}; kept and bonus are known, and need an at")
    elif not 0 <= ask["answer"] < len(ask["choices"]):
        raise ValueError(f"page {number} has no choice number {ask['answer']}")


def page(lesson: Lesson, number: int, trace: Trace) -> Page:
    """Page ``number``, its step found and its texts filled in."""
    raw = lesson.pages[number]
    at = find(trace, raw["at"]) if "at" in raw else None
    known = facts(trace, at)
    text = tuple(filled(paragraph, known) for paragraph in raw["text"])
    return Page(
        text,
        at,
        bool(raw.get("veiled")),
        _question(raw.get("ask"), trace, at, known),
        filled(raw.get("reveal", ""), known),
        raw.get("panel", False),
    )


def find(trace: Trace, at: Any) -> int:
    """The index of the step that ``at`` means; the first one that drafted something where there is none like it."""
    steps = trace.steps
    if not steps:
        raise BadInput("This recording has no step to look at.")
    if isinstance(at, dict):
        return min(max(int(at["step"]), 0), len(steps) - 1)
    drafted = [step for step in steps if step.verified]
    candidates = [step for step in drafted if step.cut is None] or drafted or list(steps)
    if at == "last":
        return len(steps) - 1
    if at == "longest":
        return max(candidates, key=lambda step: (step.accepted, -step.index)).index
    matches = {"none_kept": lambda step: not step.accepted, "first_rejection": _stopped}.get(at, lambda step: True)
    return next((step.index for step in candidates if matches(step)), candidates[0].index)


def _stopped(step: Step) -> bool:
    """Something was kept, and the target then overruled the draft."""
    last = step.path[-1] if step.path else 0
    return bool(step.path) and any(node.parent == last and node.status == "rejected" for node in step.nodes)


def facts(trace: Trace, at: int | None) -> dict[str, str]:
    """What texts may name: of the run, and of the step ``at``."""
    end = trace.end.metrics if trace.end else {}
    known = {
        "method": trace.run.title,
        "target": trace.run.target,
        "steps": str(len(trace.steps)),
        "tokens": str(sum(len(step.emitted) for step in trace.steps)),
        "tau": _number(metrics.tau(trace.steps)),
        "speedup": _number(end.get("speedup")),
        "predicted": _number(end.get("predicted_speedup")),
    }
    return known if at is None else known | _step_facts(trace.steps[at])


def _step_facts(step: Step) -> dict[str, str]:
    bonus = step.bonus.text if step.bonus else ""
    return {
        "step": str(step.index + 1),
        "root": show_whitespace(step.nodes[0].text),
        "drafted": str(step.verified),
        "kept": str(step.accepted),
        "emitted": str(len(step.emitted)),
        "bonus": show_whitespace(bonus),
        "text": show_whitespace("".join(step.pieces)),
        "depth": str(max(step.depths)),
    }


def _number(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.2f}"


def filled(text: str, known: Mapping[str, str]) -> str:
    """``text`` as safe HTML, its names replaced by what is known."""
    named = re.sub(r"\{(\w+)\}", lambda match: known.get(match[1], match[0]), text)
    bold = re.sub(r"\*\*(.+?)\*\*", r"<b>\1</b>", markup(named))
    return re.sub(r"`(.+?)`", r"<code>\1</code>", bold)


def _question(ask: Mapping[str, Any] | None, trace: Trace, at: int | None, known: Mapping[str, str]) -> Question | None:
    if ask is None:
        return None
    if "about" not in ask:
        return Question(ask["question"], tuple(ask["choices"]), ask["answer"])
    assert at is not None
    step = trace.steps[at]
    return _kept_question(step, known) if ask["about"] == "kept" else _bonus_question(step)


def _kept_question(step: Step, known: Mapping[str, str]) -> Question:
    """How many drafted tokens go into the output: from none to as deep as the draft is."""
    deepest = max(max(step.depths), step.accepted)
    lowest = max(0, min(step.accepted - 2, deepest - MOST_CHOICES + 1))
    counts = range(lowest, min(deepest, lowest + MOST_CHOICES - 1) + 1)
    question = f"The drafter proposes {known['drafted']} tokens, at most {deepest} in a row. How many will the target keep?"
    return Question(question, tuple(str(count) for count in counts), step.accepted - lowest)


def _bonus_question(step: Step) -> Question | None:
    """Which token the target says where the walk ends, among those it ranked high there and those that were drafted."""
    if step.bonus is None:
        return None
    place = step.bonus.parent
    drafted = [node.text for node in step.nodes if node.parent == place]
    ranked = [candidate.text for row in step.rows if row.node == place for candidate in row.top]
    others = [text for text in dict.fromkeys((*drafted, *ranked)) if text != step.bonus.text]
    choices = sorted([step.bonus.text, *others[: MOST_CHOICES - 1]])
    question = "Where the walk ends, the target adds a token of its own. Which one?"
    return Question(question, tuple(show_whitespace(text) for text in choices), choices.index(step.bonus.text))


def veiled(trace: Trace, at: int) -> Trace:
    """The run up to step ``at``, of which only the draft is known: no verdict, no target's numbers, no output."""
    step = trace.steps[at]
    nodes = tuple(
        node if node.status in (ROOT, PRUNED) else replace(node, p=None, status=SKIPPED, threshold=None, draw=None)
        for node in step.nodes
    )
    hidden = replace(
        step,
        nodes=nodes,
        path=(),
        bonus=None,
        emitted=(),
        pieces=(),
        rows=(),
        notes=tuple(note for note in step.notes if note.type not in VERDICTS),
        cut=None,
        time=Nanoseconds(draft=step.time.draft),
    )
    return replace(trace, steps=(*trace.steps[:at], hidden), end=None)
