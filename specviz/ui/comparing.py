"""Comparison of two runs: first divergence of their texts, differing metrics, and steps aligned by token or time."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import combinations

from specviz.errors import SpecvizError
from specviz.figures.theme import markup
from specviz.request import Request
from specviz.trace import metrics
from specviz.trace.schema import Run, Trace
from specviz.ui.shared import AppState
from specviz.ui.shown import MINE
from specviz.ui.stream.presence import Caller
from specviz.ui.tabs import request_form
from specviz.ui.tabs.request_form import FormState
from specviz.ui.widgets import controls
from specviz.ui.widgets.gallery import Gallery


@dataclass(frozen=True)
class Change:
    """What is to change; None leaves it. ``left`` and ``right`` are the stages' feeds, ``names`` what they show,
    ``session_run`` one that joins this session's list."""

    left: str | None = None
    right: str | None = None
    names: tuple[str, str] | None = None
    session_run: tuple[str, Trace] | None = None
    banner: str | None = None
    running: bool | None = None


def both(shared: AppState, left: str, right: str) -> Change:
    """Two runs that are there already."""
    try:
        archive = shared.archive
        return Change(archive.feed(left), archive.feed(right), (left, right), banner="")
    except SpecvizError as error:
        return Change(banner=str(error))


def live(
    shared: AppState, caller: Caller, form_state: FormState, other: str, before: tuple[str, str]
) -> Generator[Change, None, None]:
    """Run one method and then the other on the same prompt and seed. The other runs with its defaults."""
    try:
        other_state = replace(form_state, method=other, own=controls.method_answer(other))
        requests = [request_form.request(state, shared.settings) for state in (form_state, other_state)]
        yield Change(running=True, banner="", left="", right="")
        yield from _one_after_the_other(shared, caller, requests, before)
    except SpecvizError as error:
        yield Change(banner=str(error))
    yield Change(running=False)


def _one_after_the_other(
    shared: AppState, caller: Caller, requests: list[Request], before: tuple[str, str]
) -> Generator[Change, None, None]:
    page, names = shared.pages.enter(caller.session, caller.address), list(before)
    for side, request in enumerate(requests):
        with closing(shared.live.run(page, request, caller.reader())) as frames:
            for frame in frames:
                if not page.current(frame.cancel):
                    return
                if frame.failure and not frame.lines:
                    yield replace(both(shared, *before), banner=frame.failure)
                    return
                if frame.lines:
                    names[side] = MINE + frame.key
                session_run = (names[side], frame.trace) if frame.trace else None
                yield Change(**{("left", "right")[side]: frame.feed}, session_run=session_run, banner=frame.failure or None)
        if frame.trace and frame.trace.end and frame.trace.end.reason == "cancelled":
            break
    yield Change(names=(names[0], names[1]))


def first_pair(gallery: Gallery) -> tuple[str, str]:
    """Two recordings to begin with: of one prompt on one target where there are such, else the first two."""
    recordings = list(gallery.recordings.values())
    for first, second in combinations(recordings, 2):
        if _alike(first.run, second.run):
            return first.name, second.name
    names = [recording.name for recording in recordings[:2]]
    return (names[0] if names else ""), (names[1] if len(names) > 1 else "")


def _alike(left: Run, right: Run) -> bool:
    return (left.prompt, left.target) == (right.prompt, right.target)


def first_divergence(left: Trace, right: Trace) -> int | None:
    """The first output position where two runs write different tokens; None when one goes on as the other."""
    left_tokens, right_tokens = (tuple(token for step in trace.steps for token in step.emitted) for trace in (left, right))
    return next((position for position, (a, b) in enumerate(zip(left_tokens, right_tokens, strict=False)) if a != b), None)


def table(left: Trace, right: Trace) -> str:
    """The numbers of both."""
    rows = [
        ("tokens", *(sum(len(step.emitted) for step in trace.steps) for trace in (left, right))),
        ("target passes", len(left.steps), len(right.steps)),
        ("tokens per pass, τ", _number(metrics.tau(left.steps)), _number(metrics.tau(right.steps))),
        ("tokens a second", _metric(left, "tokens_per_second", 1), _metric(right, "tokens_per_second", 1)),
        ("speed-up", _metric(left, "speedup", 2, "×"), _metric(right, "speedup", 2, "×")),
    ]
    cells = "".join(f"<tr><th scope=row>{name}</th><td>{a}</td><td>{b}</td></tr>" for name, a, b in rows)
    heads = "".join(f"<th scope=col>{markup(trace.run.title)}</th>" for trace in (left, right))
    return f'<div class="sp-versus"><table><thead><tr><td></td>{heads}</tr></thead><tbody>{cells}</tbody></table></div>'


def sentence(left: Trace, right: Trace) -> str:
    """Whether the two wrote the same, and what that means."""
    if not _alike(left.run, right.run):
        return "Their prompts or targets differ, so their texts and times do not compare."
    position = first_divergence(left, right)
    if position is None:
        return "Same prompt, same target, and token for token the same text as far as both go."
    drawn = left.run.sampling.temperature > 0
    why = (
        "drawn tokens may differ between methods that are exact in distribution"
        if drawn
        else "at temperature 0 rounding may decide between two tokens that are nearly as likely"
    )
    return f"Same prompt and target; the texts part at output token {position + 1}: {why}."


def _metric(trace: Trace, name: str, digits: int, unit: str = "") -> str:
    value = trace.end.metrics.get(name) if trace.end else None
    return "–" if value is None else f"{value:.{digits}f}{unit}"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"
