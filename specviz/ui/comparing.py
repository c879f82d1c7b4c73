"""Comparison of two runs: which is faster and by how much, whether they wrote the same, and both made anew on one prompt."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import combinations

from specviz.errors import BadInput, SpecvizError
from specviz.figures.theme import markup
from specviz.methods.registry import all_methods
from specviz.request import Request
from specviz.trace import metrics
from specviz.trace.schema import Run, Trace
from specviz.ui.shared import AppState
from specviz.ui.shown import MINE, Archive, choices
from specviz.ui.stream import feed
from specviz.ui.stream.presence import Caller
from specviz.ui.tabs import request_form
from specviz.ui.tabs.request_form import FormState
from specviz.ui.widgets import controls
from specviz.ui.widgets.gallery import Gallery

METHOD = "method:"
"""Before the name of a method that has no recorded run: it can be chosen, and shows something once it has been run."""

WAITS = "Waits until the left run is over"
"""What the right stage says meanwhile."""

EQUAL = 1.05
"""Runs whose times differ by less are called equally fast; the baselines of two recordings differ by as much."""


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


TITLE_LETTERS = 34
"""Of a session's run in a drop-down, which shows about so many."""


def shortened(runs: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """The session's runs under titles that a drop-down shows whole; those that read alike then are numbered."""
    short: list[tuple[str, str]] = []
    seen: Counter[str] = Counter()
    for title, name in runs:
        cut = title if len(title) <= TITLE_LETTERS else title[: TITLE_LETTERS - 1].rstrip(" ·,") + "…"
        seen[cut] += 1
        short.append((cut if seen[cut] == 1 else f"{cut} ({seen[cut]})", name))
    return short


def listed(archive: Archive, runs: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """What either side may show: this session's runs, the recorded ones, and the methods of text that have none."""
    recorded = {recording.run.method for recording in archive.gallery.recordings.values()}
    others = [one for one in all_methods().values() if "text" in one.modality and one.name not in recorded]
    return [*choices(archive, shortened(runs)), *((f"{one.title} (live only)", METHOD + one.name) for one in others)]


def both(shared: AppState, left: str, right: str) -> Change:
    """Two runs that are there already; a method without one leaves its side empty."""
    try:
        feeds = ["" if name.startswith(METHOD) else shared.archive.feed(name) for name in (left, right)]
        return Change(feeds[0], feeds[1], (left, right), banner="")
    except SpecvizError as error:
        return Change(banner=str(error))


def live(
    shared: AppState, caller: Caller, form_state: FormState, pair: tuple[str, str], before: tuple[str, str]
) -> Generator[Change, None, None]:
    """Run what both sides show, one after the other, on the form's prompt, temperature and seed.

    ``before`` is what the stages show: it comes back when a run cannot begin.
    """
    try:
        requests = [request_form.request(_asked(shared.archive, form_state, name), shared.settings) for name in pair]
        yield Change(running=True, banner="", left="", right=feed.control("live", "next", message=WAITS))
        yield from _one_after_the_other(shared, caller, requests, before)
    except SpecvizError as error:
        yield Change(banner=str(error))
    yield Change(running=False)


def _asked(archive: Archive, form_state: FormState, name: str) -> FormState:
    """The form with the method of a run, and that run's parameters; a method without a run has its defaults."""
    if not name:
        raise BadInput("Choose what to run on both sides.")
    run = None if name.startswith(METHOD) else archive.trace(name).run
    method = run.method if run else name.removeprefix(METHOD)
    if method not in all_methods() or "text" not in all_methods()[method].modality:
        raise BadInput(f"{run.title if run else method} writes no text; run it in the tab of its own.")
    parameters = dict(run.parameters) if run else None
    return replace(form_state, method=method, own=controls.method_answer(method, parameters))


def _one_after_the_other(
    shared: AppState, caller: Caller, requests: list[Request], before: tuple[str, str]
) -> Generator[Change, None, None]:
    page, names = shared.pages.enter(caller.session, caller.address), list(before)
    for side, request in enumerate(requests):
        with closing(shared.live.run(page, request, caller.reader())) as frames:
            for frame in frames:
                if not page.current(frame.cancel):
                    yield both(shared, *before)
                    return
                if frame.failure and not frame.lines:
                    yield replace(both(shared, *before), banner=frame.failure)
                    return
                if frame.lines:
                    names[side] = MINE + frame.key
                session_run = (names[side], frame.trace) if frame.trace else None
                change = Change(session_run=session_run, banner=frame.failure or None)
                yield replace(change, right=frame.feed) if side else replace(change, left=frame.feed)
        if not side and frame.trace and frame.trace.end and frame.trace.end.reason == "cancelled":
            yield replace(both(shared, names[0], names[1]), left=None)
            return
    yield Change(names=(names[0], names[1]))


def first_pair(gallery: Gallery) -> tuple[str, str]:
    """Two recordings to begin with: the index's, else of one prompt, target and temperature, else the first two."""
    if gallery.pair:
        return gallery.pair
    recordings = list(gallery.recordings.values())
    for first, second in combinations(recordings, 2):
        if not unlike(first.run, second.run):
            return first.name, second.name
    names = [recording.name for recording in recordings[:2]]
    return (names[0] if names else ""), (names[1] if len(names) > 1 else "")


def unlike(left: Run, right: Run) -> str:
    """What two runs would have to share to be compared, and do not; nothing when they can be."""
    of = {
        "modalities": lambda run: run.modality,
        "prompts": lambda run: run.prompt,
        "targets": lambda run: run.target,
        "number formats": lambda run: run.dtype,
        "devices": lambda run: run.device,
        "temperatures": lambda run: (run.sampling.temperature, run.sampling.top_k, run.sampling.top_p),
    }
    names = [name for name, value in of.items() if value(left) != value(right)]
    return " and ".join(part for part in (", ".join(names[:-1]), *names[-1:]) if part)


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


@dataclass(frozen=True)
class Verdict:
    """What two runs come to: who is faster, what that means for the text, what to know beside it.

    ``times`` are both times per token in autoregressive passes, None where they are not to be compared.
    """

    headline: str
    text: str = ""
    beside: str = ""
    times: tuple[float, float] | None = None


def verdict(left: Trace, right: Trace, rehearsals: tuple[int, int] = (0, 0)) -> Verdict:
    """The comparison in words. ``rehearsals`` says how often each was run before it was recorded."""
    if different := unlike(left.run, right.run):
        return Verdict(
            f"Their {different} differ", beside="So neither texts nor times compare. Run both to see them on one prompt."
        )
    speedups = [trace.end.metrics.get("speedup") if trace.end else None for trace in (left, right)]
    beside = [_remembered(trace.run, count) for trace, count in zip((left, right), rehearsals, strict=True)]
    if speedups[0] is None or speedups[1] is None:
        return Verdict("No speed to compare", _texts(left, right), "The autoregressive run was not timed beside both.")
    pair = sorted(((speedups[0], left.run.title), (speedups[1], right.run.title)), reverse=True)
    (fast, winner), (slow, other) = pair
    headline = (
        f"{winner} is {fast / slow:.1f}× as fast as {other}" if fast / slow > EQUAL else f"{winner} and {other} are equally fast"
    )
    beside.append(_baselines(left, right))
    return Verdict(headline, _texts(left, right), " ".join(part for part in beside if part), (1 / speedups[0], 1 / speedups[1]))


def _texts(left: Trace, right: Trace) -> str:
    """What the two texts have in common, by what was drawn and by what the methods promise."""
    position = first_divergence(left, right)
    if position is None:
        return "same text"
    if left.run.sampling.temperature and "relaxed" in (left.run.exactness, right.run.exactness):
        return "different distributions"
    if left.run.sampling.temperature:
        return "same distribution"
    return f"same text up to token {position}, where rounding decides"


def _remembered(run: Run, rehearsals: int) -> str:
    count = rehearsals or run.sampling.generation
    return f"{run.title} had answered {'this' if rehearsals else 'a'} prompt {_times(count)} before." if count else ""


def _times(count: int) -> str:
    return {1: "once", 2: "twice"}.get(count, f"{count} times")


def _baselines(left: Trace, right: Trace) -> str:
    """The autoregressive runs that the speed-ups are measured by, in milliseconds a token."""
    rates = [trace.end.metrics["baseline_tokens_per_second"] if trace.end else 0 for trace in (left, right)]
    told = " and ".join(f"{1000 / rate:.1f}" for rate in rates if rate)
    return f"Each is timed against the autoregressive run made beside it: {told} ms a token."


def race(left: Trace, right: Trace, judged: Verdict) -> str:
    """Bars of the time per token on one scale: the autoregressive baseline of both, and the two runs."""
    if judged.times is None:
        return ""
    rows = [
        ("Autoregressive", 1.0, "baseline"),
        *((trace.run.title, time, "run") for trace, time in zip((left, right), judged.times, strict=True)),
    ]
    most = max(time for _, time, _ in rows)
    cells = "".join(
        f'<tr class="sp-{kind}"><th scope=row>{markup(title)}</th><td><i style="width:{100 * time / most:.1f}%"></i></td>'
        f"<td>{1 / time:.2f}×</td></tr>"
        for title, time, kind in rows
    )
    return f'<table class="sp-race"><caption>time per token</caption>{cells}</table>'


def running() -> str:
    """What stands in the verdict's place meanwhile."""
    return _block("Running both", "", "One after the other, on this prompt. The verdict follows.")


def banner(left: Trace, right: Trace, rehearsals: tuple[int, int] = (0, 0)) -> str:
    """The verdict as it stands above the two stages."""
    judged = verdict(left, right, rehearsals)
    return _block(judged.headline, judged.text, judged.beside, race(left, right, judged))


def _block(headline: str, text: str, beside: str, bars: str = "") -> str:
    told = f"<b>{markup(headline)}</b>" + (f", {markup(text)}" if text else "")
    words = f'<p class="sp-won">{told}</p><p class="sp-beside">{markup(beside)}</p>'
    return f'<div class="sp-verdict"><div>{words}</div>{bars}</div>'


def unrecorded() -> str:
    """What stands there where a side has a method without a run."""
    return _block(
        "Nothing to compare yet", "", "A method without a recorded run shows something once it has been run: press Run both."
    )


def _metric(trace: Trace, name: str, digits: int, unit: str = "") -> str:
    value = trace.end.metrics.get(name) if trace.end else None
    return "–" if value is None else f"{value:.{digits}f}{unit}"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"
