"""Comparison of two runs: which is faster and by how much, whether their texts agree, and a fresh run of both on one prompt."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from msgspec.structs import asdict

from specviz.errors import BadInput
from specviz.figures.theme import markup
from specviz.methods.registry import all_methods
from specviz.pipeline.request import Request
from specviz.trace import metrics
from specviz.trace.schema import Run, Trace
from specviz.ui import theme
from specviz.ui.app_state import AppState
from specviz.ui.archive import Archive, choices
from specviz.ui.tabs import request_form
from specviz.ui.tabs.request_form import FormState
from specviz.ui.widgets import controls
from specviz.ui.widgets.gallery import Gallery, Titles
from specviz.viewer import pair

METHOD = "method:"
"""Prefix of the name of a method without a recorded run, which can be chosen but shows nothing until it has run."""

ROUNDS = 2
"""Number of rounds, with alternating sides: A, B, A, B, each with its own autoregressive run. A machine that slows down then
slows both, and the range shows the remaining noise."""


def listed(archive: Archive, runs: Titles) -> Titles:
    """Return the choices for either side: this session's runs, the recorded ones, and text methods without a recorded run."""
    recorded = {recording.run.method for recording in archive.gallery.recordings.values()}
    others = [one for one in all_methods().values() if "text" in one.modality and one.name not in recorded]
    return [*choices(archive, runs), *((f"{one.title} (live only)", METHOD + one.name) for one in others)]


def requests(shared: AppState, form_state: FormState, names: tuple[str, str]) -> list[Request]:
    """Return the requests of both sides, for the form's prompt and temperature, each with an autoregressive run.

    Length and seed are those of the left run, so that a recording is reproduced. A method without a run uses its default
    parameters. Raises BadInput.
    """
    archive = shared.archive
    if not all(names):
        raise BadInput("Choose what to run on both sides.")
    runs = [None if name.startswith(METHOD) else archive.run(name) for name in names]
    if left := runs[0]:
        length = min(left.max_new_tokens, shared.settings.max_new_tokens)
        basics = controls.replaced(form_state.basics, "max_new_tokens", length)
        advanced = controls.replaced(form_state.advanced, "seed", left.sampling.seed)
        form_state = replace(form_state, basics=basics, advanced=advanced)
    listed = []
    for run, name in zip(runs, names, strict=True):
        method = run.method if run else name.removeprefix(METHOD)
        if method not in all_methods() or "text" not in all_methods()[method].modality:
            raise BadInput(f"{run.title if run else method} writes no text; run it in its own tab.")
        own = controls.method_answer(method, dict(run.parameters) if run else None)
        asked = request_form.request(replace(form_state, method=method, own=own), shared.settings)
        listed.append(replace(asked, baseline=True))
    return listed


def first_pair(gallery: Gallery) -> tuple[str, str]:
    """Names of the two recordings shown first: the index's pair, else two that can be compared, else the first two."""
    recordings = list(gallery.recordings.values())
    alike = (found for found in combinations(recordings, 2) if not unlike(found[0].run, found[1].run))
    names = gallery.pair or [one.name for one in next(alike, recordings[:2])]
    left, right, *_ = (*names, "", "")
    return left, right


def unlike(left: Run, right: Run) -> str:
    """Name the properties whose difference prevents a comparison of two runs; empty when they can be compared."""
    ours, theirs = (
        asdict(run) | {"temperature": (run.sampling.temperature, run.sampling.top_k, run.sampling.top_p)} for run in (left, right)
    )
    names = [title for name, title in theme.texts()["comparable"].items() if ours[name] != theirs[name]]
    return " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))


ROWS = {name: pair.ROWS[name] for name in ("tokens", "target passes")} | {
    "tokens per pass, τ": lambda trace: pair.number(metrics.tau(trace.steps)),
    "tokens a second": lambda trace: pair.number(trace.end.metrics.get("tokens_per_second") if trace.end else None, 1),
    "speed-up of this run": lambda trace: f"{found.speedup:.2f}×" if (found := metrics.verdict(trace)) else "–",
}


@dataclass(frozen=True)
class Speeds:
    """Speed-ups of one side over its own autoregressive runs, one for each round."""

    each: tuple[float, ...]

    @property
    def middle(self) -> float:
        return statistics.median(self.each)

    @property
    def label(self) -> str:
        """The median, with the range if there are several rounds."""
        spread = f" ({min(self.each):.2f} to {max(self.each):.2f})" if len(self.each) > 1 else ""
        return f"{self.middle:.2f}×{spread}"

    def overlaps(self, other: Speeds) -> bool:
        """Whether their order may be due to chance: their ranges overlap, or their medians' ratio is below ``metrics.LEVEL``."""
        low, high = max(min(self.each), min(other.each)), min(max(self.each), max(other.each))
        return low <= high or max(self.middle, other.middle) < metrics.LEVEL * min(self.middle, other.middle)


@dataclass(frozen=True)
class Verdict:
    """Result of a comparison: ``headline`` names the faster run, ``text`` compares the texts, ``beside`` adds remarks.

    ``speeds`` are the speed-ups of both sides, None when they cannot be compared.
    """

    headline: str
    text: str = ""
    beside: str = ""
    speeds: tuple[Speeds, Speeds] | None = None


def verdict(rounds: Sequence[tuple[Trace, Trace]], rehearsals: Sequence[int] = (0, 0)) -> Verdict:
    """Compare one pair or several rounds, in words. ``rehearsals`` counts each side's runs before the recorded one."""
    left, right = rounds[-1]
    if different := unlike(left.run, right.run):
        return Verdict(
            f"Their {different} differ", beside="So neither their texts nor their times can be compared. Run both on one prompt."
        )
    sides = [[metrics.verdict(one) for one in side] for side in zip(*rounds, strict=True)]
    left_speeds, right_speeds = (Speeds(tuple(found.speedup for found in side if found)) for side in sides)
    beside = [_remembered(trace.run, count) for trace, count in zip((left, right), rehearsals, strict=True)]
    if min(len(left_speeds.each), len(right_speeds.each)) < len(rounds):
        return Verdict("No speed to compare", _texts(left, right), "The autoregressive run was not timed for both.")
    named = ((left_speeds.middle, left.run.title), (right_speeds.middle, right.run.title))
    (fast, winner), (slow, other) = sorted(named, reverse=True)
    headline = f"{winner} is {fast / slow:.1f}× as fast as {other}"
    if left_speeds.overlaps(right_speeds):
        headline = f"{winner} and {other} are about equally fast"
    times = [1e3 / one.end.metrics["baseline_tokens_per_second"] for pair in rounds for one in pair if one.end]
    if len(rounds) == 1:
        beside.append(
            "One run each, so the variation between runs is unknown. The autoregressive runs beside them took "
            f"{times[0]:.1f} and {times[1]:.1f} ms per token."
        )
    else:
        beside.append(
            f"Measured alternately, {len(rounds)} times each, from an empty memory. The autoregressive runs beside them took "
            f"{min(times):.1f} to {max(times):.1f} ms per token."
        )
    words = " ".join(part for part in beside if part)
    return Verdict(headline, _texts(left, right), words, (left_speeds, right_speeds))


def _texts(left: Trace, right: Trace) -> str:
    """Compare the two texts by their tokens, their temperature and the methods' promises."""
    tokens = ((token for step in trace.steps for token in step.emitted) for trace in (left, right))
    position = next((at for at, (one, other) in enumerate(zip(*tokens, strict=False)) if one != other), None)
    if position is None:
        return "same text"
    if left.run.sampling.temperature and "relaxed" in (metrics.promise(left), metrics.promise(right)):
        return "different distributions"
    if left.run.sampling.temperature:
        return "same distribution"
    return f"same text up to token {position}, where rounding decides"


def _remembered(run: Run, rehearsals: int) -> str:
    count = rehearsals or run.sampling.generation
    times = {1: "once", 2: "twice"}.get(count, f"{count} times")
    return f"{run.title} had answered {'this' if rehearsals else 'a'} prompt {times} before." if count else ""


def race(left: Trace, right: Trace, judged: Verdict) -> str:
    """HTML bars of the speed-ups on one scale, longer is faster: the baseline, and both sides with their range."""
    if judged.speeds is None:
        return ""
    sides = [(trace.run.title, speeds, "run") for trace, speeds in zip((left, right), judged.speeds, strict=True)]
    rows = [("One at a time", Speeds((1.0,)), "baseline"), *sides]
    percent = 100 / max(max(speeds.each) for _, speeds, _ in rows)
    cells = ""
    for title, speeds, kind in rows:
        low, high = percent * min(speeds.each), percent * max(speeds.each)
        bar = f'<i style="width:{percent * speeds.middle:.1f}%"></i>'
        if len(speeds.each) > 1:  # a line from the slowest to the fastest run
            bar += f'<u style="left:{low:.1f}%;width:{high - low:.1f}%"></u>'
        cells += f'<tr class="sp-{kind}"><th scope=row>{markup(title)}</th><td>{bar}</td><td>{speeds.label}</td></tr>'
    return f'<table class="sp-race"><caption>Speed-up: longer is faster</caption>{cells}</table>'


def running() -> str:
    """HTML in place of the verdict while both run."""
    words = f"Alternately, {ROUNDS} times each, on this prompt and from an empty memory. The verdict follows."
    return _block("Running both", "", words)


def banner(rounds: Sequence[tuple[Trace, Trace]], rehearsals: Sequence[int] = (0, 0)) -> str:
    """HTML of the verdict above the two stages."""
    judged = verdict(rounds, rehearsals)
    return _block(judged.headline, judged.text, judged.beside, race(*rounds[-1], judged))


def _block(headline: str, text: str, beside: str, bars: str = "") -> str:
    verdict = f"<b>{markup(headline)}</b>" + (f", {markup(text)}" if text else "")
    words = f'<p class="sp-won">{verdict}</p><p class="sp-beside">{markup(beside)}</p>'
    return f'<div class="sp-verdict"><div>{words}</div>{bars}</div>'


def unrecorded() -> str:
    """HTML in place of the verdict when one side is a method without a run."""
    return _block("Nothing to compare yet", "", "A method without a recorded run shows nothing until you press Run both.")
