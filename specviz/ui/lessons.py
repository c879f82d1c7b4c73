"""Lessons: JSON files that explain a recorded run page by page, with predictions before the answers are revealed.

A file of ``assets/lessons`` holds {"title", "about", "group", "trace", "method", "beside", "task", "pages": [...]}: ``trace``
names the recording; if it is missing, ``method`` selects that method's first recording. ``beside`` names another recording
whose numbers the texts quote. ``task`` is an exercise at the end of the last page, with a goal that can be checked in the app.
A page is {"text", "at", "veiled", "ask", "reveal", "panel"}.

``at`` selects the step so that a lesson survives a new recording: one of :data:`PLACES`, or {"step": 4}, counted from 0. An
``at`` repeated from an earlier page selects the same step. Any other selects a step after those of earlier pages, if possible.
``veiled`` hides the verdict of that step on every earlier page and until this page's question is answered. Until such a
question is answered, the stage shows the run only up to its page's step. ``ask`` is {"about": "kept"} or {"about": "bonus"},
whose choices and answer come from the step itself, or {"question", "choices", "answer"} with the answer counted from 0. A
question about the kept tokens states the drafter's probabilities or, without any, quotes a chain. ``panel`` opens the method's
panel beside the tree: true, a note type if there are several ("batch_cache"), or "reveal", which waits until the answer is given.

In every text **x** is bold, *x* is stressed, `x` is code, [x](?tab=learn) and arXiv 2211.17192 are links; {tau} and the other
names of :func:`facts` denote the run's numbers, {page2.kept} those of the step on page 2, and {beside.tau} those of the other
recording.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import accumulate
from pathlib import Path
from statistics import fmean
from typing import Any

import msgspec
from msgspec.structs import force_setattr, replace

from specviz.errors import BadInput
from specviz.figures.theme import markup, show_whitespace
from specviz.trace import metrics
from specviz.trace.schema import PRUNED, REJECTED, RELAXED, ROOT, SKIPPED, Nanoseconds, Step, Trace
from specviz.trace.validate import RENAMED_NOTES
from specviz.ui import theme

PLACES = ("first", "last", "longest", "none_kept", "relaxed", "first_rejection", "next_rejection", "likely", "likely_rejection")
MOST_CHOICES = 8
REVEAL = "reveal"
ARXIV = r'<a href="https://arxiv.org/abs/\1" target="_blank" rel="noopener noreferrer">\g<0></a>'
MOST_NODES = 40
"""Maximum number of draft nodes on a printed sheet."""
VERDICTS = frozenset(
    ("traversal typical_acceptance tree_reward drafter_selection relaxed local_verification canvas batch_cache overlap cascade "
     "step_embeddings").split()
)  # fmt: skip
"""Note types that reveal a step's verdict or the target's output; a veiled step omits them."""


class Ask(msgspec.Struct, frozen=True):
    """A question: ``about`` the step, or a ``question`` with ``choices`` and ``answer``, the index of the right choice."""

    about: str = ""
    question: str = ""
    choices: tuple[str, ...] = ()
    answer: int = 0


class Page(msgspec.Struct, frozen=True):
    """A page as stored in the file. :func:`page` resolves ``at`` and the placeholders in the texts."""

    text: tuple[str, ...]
    at: Any = None
    veiled: bool = False
    ask: Ask | None = None
    reveal: str = ""
    panel: bool | str = False
    task: str = ""
    """The lesson's task, on its last page."""

    def __post_init__(self) -> None:
        if isinstance(self.at, dict):
            force_setattr(self, "at", self.at.get("step"))
        ask, placed = self.ask, self.at is not None
        if not self.text or not (not placed or isinstance(self.at, int) or self.at in PLACES):
            raise ValueError(f"It needs a text, and its at must be one of {', '.join(PLACES)} or a step")
        if self.veiled and not (ask and placed):
            raise ValueError("It is veiled, so it needs a question and an at")
        if ask and ask.about and not (ask.about in ("kept", "bonus") and placed):
            raise ValueError(f"It asks about {ask.about!r}; kept and bonus are known, and need an at")
        if ask and not ask.about and not 0 <= ask.answer < len(ask.choices):
            raise ValueError(f"It has no choice number {ask.answer}")


class Lesson(msgspec.Struct, frozen=True):
    """Lesson as stored in its file; ``name``: file name without extension."""

    title: str
    about: str
    method: str
    pages: tuple[Page, ...]
    name: str = ""
    trace: str = ""
    group: str = ""
    beside: str = ""
    task: str = ""


RECORDED = "Recorded runs"
"""Group of the lessons that :data:`PREDICTIONS` makes of recorded runs."""
PREDICTIONS = (
    Page(
        ("Step {step} of a run of {method}: the draft is there, the verdict is not. Read the text so far, then the guesses.",),
        "likely", True, Ask("kept"), "{kept} of {drafted} kept, {emitted} written: `{text}`. Click nodes to see why.",
    ),
    Page(("Now step {step}.",), "likely_rejection", True, Ask("kept"), "{kept} of {drafted} kept, {emitted} written: `{text}`."),
    Page(("Over the whole run a pass wrote τ = {tau} tokens. Step through the rest and go on predicting.",)),
)  # fmt: skip
"""Pages that ask for predictions on any recorded run with drafts."""


def load(folder: Path) -> dict[str, Lesson]:
    """Load the lessons in a folder by name, in order of file name. Raises BadInput for an invalid file."""
    lessons: dict[str, Lesson] = {}
    for path in sorted(folder.glob("*.json")):
        try:
            lesson = msgspec.json.decode(path.read_bytes(), type=Lesson)
        except (OSError, ValueError) as error:
            raise BadInput(f"The lesson {path.name} cannot be read: {error}.") from None
        lessons[path.stem] = replace(lesson, name=path.stem)
    return lessons


def page(lesson: Lesson, number: int, trace: Trace, beside: Trace | None = None) -> Page:
    """Return page ``number`` with ``at`` as the index of a step and with placeholders filled in."""
    raw = lesson.pages[number]
    steps = places(lesson, trace)
    known = facts(trace, steps[number])
    for earlier, step in enumerate(steps[:number], 1):
        if step is not None:
            known |= {f"page{earlier}.{name}": value for name, value in step_facts(trace.steps[step]).items()}
    known |= {f"beside.{name}": value for name, value in (facts(beside, None) if beside else {}).items()}
    return replace(
        raw,
        text=tuple(filled(paragraph, known) for paragraph in raw.text),
        at=steps[number],
        veiled=False,
        ask=_question(raw.ask, trace, steps[number], known),
        reveal=filled(raw.reveal, known),
        panel=RENAMED_NOTES.get(str(raw.panel), raw.panel),
        task=filled(lesson.task, known) if raw is lesson.pages[-1] else "",
    )


def places(lesson: Lesson, trace: Trace) -> tuple[int | None, ...]:
    """Return the step of each page, None without ``at``. A new ``at`` selects a later step if possible."""
    by_place: dict[Any, int] = {}
    for raw in lesson.pages:
        if raw.at is not None and raw.at not in by_place:
            by_place[raw.at] = find(trace, raw.at, max(by_place.values(), default=-1))
    return tuple(by_place.get(raw.at) for raw in lesson.pages)


def shown(lesson: Lesson, number: int, trace: Trace, revealed: bool = False) -> tuple[Trace, int]:
    """Return the trace and the step to show on a page, without the answers to questions ahead."""
    steps = places(lesson, trace)
    at = next((step for step in reversed(steps[: number + 1]) if step is not None), 0)
    ahead = [
        step
        for later, (step, raw) in enumerate(zip(steps, lesson.pages, strict=True))
        if step is not None and raw.veiled and later >= number + revealed
    ]
    if ahead and at >= min(ahead):
        at = min(ahead)
        trace = veiled(trace, at)
    elif ahead:
        trace = trace.replace(steps=trace.steps[: at + 1], end=None)
    if lesson.pages[number].panel == REVEAL and not revealed:
        steps_without = (*trace.steps[:at], trace.steps[at].replace(notes=()), *trace.steps[at + 1 :])
        trace = trace.replace(steps=steps_without)
    return trace, at


def find(trace: Trace, at: str | int, after: int = -1) -> int:
    """Return the index of the step that ``at`` selects, if possible after step ``after``.

    Without a match, returns the first step with a draft. Raises BadInput for a trace without steps.
    """
    steps = trace.steps
    if not steps:
        raise BadInput("This recording has no step to look at.")
    if isinstance(at, int):
        return min(max(at, 0), len(steps) - 1)
    if at == "last":
        return len(steps) - 1
    drafted = [step for step in steps if step.verified]
    whole = [step for step in drafted if step.cut is None] or drafted or list(steps)
    candidates = [step for step in whole if step.index > after] or whole
    if at == "longest":
        return max(candidates, key=lambda step: (step.accepted, -step.index)).index

    def matches(step: Step) -> bool:
        if at == "none_kept":
            return not step.accepted
        if at == "relaxed":
            return _relaxed(step) > 0
        path = likeliest(step) if at.startswith("likely") else ()
        if path and sum(q >= 0.5 for q in accumulate(path, min)) != step.accepted:
            return False  # a guess by these probabilities would be wrong
        return not at.endswith("rejection") or any(
            node.status == REJECTED and step.path[-1:] == (node.parent,) for node in step.nodes
        )

    order = candidates if at.startswith("likely") else candidates + whole
    return next((step.index for step in order if matches(step)), candidates[0].index)


def mean_depth(step: Step) -> float:
    """Return the mean depth of the verified draft tokens."""
    return fmean(_sent_depths(step) or [0])


def likeliest(step: Step) -> tuple[float, ...]:
    """Return the drafter's probabilities along the path with the largest expected number of accepted tokens.

    Empty if the drafter has no probabilities.
    """
    best: list[tuple[float, float, tuple[float, ...]]] = [(0, 1, ())]
    for node in step.nodes[1:]:
        expected, reached, path = best[node.parent]
        q = (node.status != PRUNED and node.q) or 0
        best.append((expected + reached * q, reached * q, (*path, q)))
    return max(best)[-1]


def _sent_depths(step: Step) -> list[int]:
    """Return the depths of the verified draft tokens."""
    return [depth for node, depth in zip(step.nodes, step.depths, strict=True) if node.status not in (ROOT, PRUNED)]


def _relaxed(step: Step) -> int:
    """Return the number of tokens accepted only by the relaxed rule."""
    return sum(step.nodes[node].status == RELAXED for node in step.path)


def facts(trace: Trace, at: int | None) -> dict[str, Any]:
    """Return the placeholder values of the run and, if given, of step ``at``."""
    end = trace.end.metrics if trace.end else {}
    sizes = [step.verified for step in trace.steps]
    known: dict[str, Any] = {
        "method": trace.run.title,
        "target": trace.run.target,
        "steps": len(trace.steps),
        "tokens": sum(len(step.emitted) for step in trace.steps),
        "budget": trace.run.max_new_tokens,
        "tau": _number(metrics.tau(trace.steps)),
        "speedup": _number(verdict.speedup if (verdict := metrics.compared_speed(trace)) else None),
        "predicted": _number(end.get("predicted_speedup")),
        "nodes": f"{fmean(sizes or [0]):.0f}",
        "fewest": min(filter(None, sizes), default=0),
        "most": max(sizes, default=0),
        "pass_cost": _number(pass_cost(trace)),
        "draft_share": _percent((end.get("shares") or {}).get("draft")),
    }
    for depth, share in enumerate(metrics.accepted_by_depth(trace.steps), 1):
        known[f"accepted{depth}"] = _percent(share)
    for name, value in trace.run.parameters.items():
        known[f"parameter.{name}"] = f"{value:g}" if isinstance(value, float) else value
    return known if at is None else known | step_facts(trace.steps[at])


def step_facts(step: Step) -> dict[str, Any]:
    """Return the placeholder values of one step."""
    bonus = step.bonus.text if step.bonus else ""
    sent = [node for node in step.nodes if node.status != PRUNED]
    parents = {node.parent for node in sent}
    return {
        "step": step.index + 1,
        "root": show_whitespace(step.nodes[0].text),
        "drafted": step.verified,
        "kept": step.accepted,
        "relaxed": _relaxed(step),
        "emitted": len(step.emitted),
        "bonus": show_whitespace(bonus),
        "text": show_whitespace("".join(step.pieces)),
        "path": show_whitespace("".join(step.nodes[node].text for node in step.path)),
        "mean_depth": f"{mean_depth(step):.1f}",
        "ends": sum(node.status not in (ROOT, PRUNED) for at, node in enumerate(step.nodes) if at not in parents),
        "pass_ms": f"{step.time.verify / 1e6:.1f}",
    }


def pass_cost(trace: Trace) -> float | None:
    """Return the mean time of a target pass over a tree, in units of a single-token pass; None without a baseline."""
    baseline = trace.end.baseline if trace.end else None
    passes = [step.time.verify for step in trace.steps if step.cut is None]
    return fmean(passes) / fmean(baseline.token_ns) if passes and baseline and baseline.total_ns else None


def _percent(share: float | None) -> str:
    return "unknown" if share is None else f"{100 * share:.0f} %"


def _number(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.2f}"


def filled(text: str, known: Mapping[str, Any]) -> str:
    """Return ``text`` as safe HTML, with placeholders replaced by values."""
    bold = re.sub(r"\*\*(.+?)\*\*", r"<b>\1</b>", markup(text))
    stressed = re.sub(r"\*(\w.*?)\*", r"<em>\1</em>", bold)
    code = re.sub(r"`(.+?)`", r"<code>\1</code>", stressed)
    linked = re.sub(r"arXiv (\d{4}\.\d{4,5})", ARXIV, code)
    linked = re.sub(r"\[(.+?)\]\((\?tab=[\w&;=-]+)\)", r'<a href="\2">\1</a>', linked)
    return re.sub(r"\{([\w.]+)\}", lambda match: markup(str(known[match[1]])) if match[1] in known else match[0], linked)


def _question(ask: Ask | None, trace: Trace, at: int | None, known: Mapping[str, Any]) -> Ask | None:
    if not ask or not ask.about:
        return ask
    assert at is not None
    step = trace.steps[at]
    piece = "code" if trace.run.modality == "image" else "token"
    if ask.about == "kept":  # from none to the draft's depth, in ranges if it is deep
        deepest = max(_sent_depths(step), default=0)
        size = -(-(deepest + 1) // MOST_CHOICES)
        counts = [(low, min(low + size - 1, deepest)) for low in range(0, deepest + 1, size)]
        sure = ", ".join(map("{:.2f}".format, likeliest(step)))
        chain = show_whitespace("".join(node.text for node in step.nodes[1:])) if deepest == step.verified else ""
        hint = f" Along its likeliest path it gives them {sure}." if sure else f" They read “{chain}”." if chain else ""
        question = (
            f"The drafter proposes {known['drafted']} {piece}s, at most {deepest} in a row.{hint} How many will the target keep?"
        )
        choices = [str(low) if low == high else f"{low} to {high}" for low, high in counts]
        return Ask("", question, tuple(choices), step.accepted // size)
    if not step.bonus:
        return None
    place = step.bonus.parent  # the end of the walk: the target's ranked tokens and the drafted ones are the choices
    drafted = [node.text for node in step.nodes if node.parent == place]
    ranked = [candidate.text for row in step.rows if row.node == place for candidate in row.top]
    others = [text for text in dict.fromkeys((*drafted, *ranked)) if text != step.bonus.text]
    choices = sorted([step.bonus.text, *others[: MOST_CHOICES - 1]])
    walk = f"It kept {known['kept']} of them: “{known['path']}”" if step.path else "It kept none of them"
    question = f"{walk}. Which {piece} of its own does the target add?"
    return Ask("", question, tuple(show_whitespace(text) for text in choices), choices.index(step.bonus.text))


def veiled(trace: Trace, at: int) -> Trace:
    """Return the run up to step ``at``, of which only the draft is shown, without verdicts and target probabilities."""
    step = trace.steps[at]
    nodes = tuple(
        node if node.status in (ROOT, PRUNED) else node.replace(p=None, status=SKIPPED, threshold=None, draw=None)
        for node in step.nodes
    )
    notes = tuple(note for note in step.notes if note.type not in VERDICTS)
    time = Nanoseconds(draft=step.time.draft)
    hidden = step.replace(nodes=nodes, path=(), bonus=None, emitted=(), pieces=(), rows=(), notes=notes, cut=None, time=time)
    return trace.replace(steps=(*trace.steps[:at], hidden), end=None)


def sheet(lesson: Lesson, trace: Trace, beside: Trace | None = None) -> str:
    """Return a lesson as a printable HTML document: drafts, questions with tick boxes, and the answers at the end.

    After the first question, pages without a question are printed with the answers."""
    sections: list[str] = []
    answers: list[str] = []
    steps, drawn = places(lesson, trace), set[int | None]()
    for number in range(len(lesson.pages)):
        printed = page(lesson, number, trace, beside)
        ask = printed.ask
        if ask or not answers:
            draft = lesson.pages[number].veiled and steps[number] not in drawn
            boxes = ""
            if ask:
                choices = "".join(f"<li>{markup(choice)}</li>" for choice in ask.choices)
                boxes = f"<p><b>{markup(ask.question)}</b></p><ul class='boxes'>{choices}</ul>"
            drawn.update([steps[number]] if draft else [])
            body = _paragraphs(printed) + (_draft(trace.steps[steps[number] or 0]) if draft else "") + boxes
            sections.append(f"<section><h2>{number + 1}</h2><div>{body}</div></section>")
        if ask or answers:
            answer = f"<b>{markup(ask.choices[ask.answer])}.</b> {printed.reveal}" if ask else _paragraphs(printed)
            answers.append(f'<li value="{number + 1}">{answer}</li>')
    title, about = markup(lesson.title), markup(lesson.about)
    run = markup(f"{trace.run.title} on {trace.run.target}: {trace.run.prompt}")
    sections.append(f"<section><h2>★</h2><p><b>Task.</b> {printed.task}</p></section>" if printed.task else "")
    return (
        f"<!doctype html><meta charset=utf-8><title>{title}</title><style>{theme.source('lessons.css')}</style>"
        f"<h1>{title}</h1><p>{about}</p><p><small>Recorded run: {run}</small></p>{''.join(sections)}"
        f"<section class='answers'><h2>Answers: {title}</h2><ol>{''.join(answers)}</ol></section>"
    )


def _paragraphs(page: Page) -> str:
    return "".join(f"<p>{paragraph}</p>" for paragraph in page.text)


def _draft(step: Step) -> str:
    """Return the draft tree as nested HTML lists, with chains on one line."""
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
