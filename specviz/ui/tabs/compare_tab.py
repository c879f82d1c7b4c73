"""The Compare tab: speed and text of two runs, either recorded or run live on the same prompt, temperature and seed."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from typing import Any

import gradio as gr
from msgspec.structs import asdict

from specviz.errors import BadInput, SpecvizError
from specviz.figures.theme import markup
from specviz.methods.registry import all_methods
from specviz.pipeline.request import Memory, Request
from specviz.trace import metrics
from specviz.trace.schema import Run, Trace
from specviz.ui import theme
from specviz.ui.access import Caller
from specviz.ui.app_state import AppState
from specviz.ui.archive import MINE, OPENING, choices, join
from specviz.ui.stream import sse
from specviz.ui.tabs import request_form
from specviz.ui.tabs.events import QUIET, TabParts, Updates, run_buttons
from specviz.ui.tabs.request_form import FormState
from specviz.ui.tabs.run_tab import Runs, RunTab
from specviz.viewer import pair
from specviz.viewer.component import Race, Stage, control

WAITS = "Waits until the left run is over"
"""Message on the right stage while the left run is active."""

Pair = tuple[str, str]
Offered = tuple[str, float]
"""Prompt and temperature that the tab filled in."""
ALIGN = "(how) => window.specvizPage.align('#sp-left', '#sp-right', how)"

ROUNDS = 2
"""Number of runs per side, in alternating order, so that a machine that slows down affects both sides."""


def requests(shared: AppState, form_state: FormState, names: Pair) -> list[Request]:
    """Return the requests of both sides, with the form's prompt and temperature and a baseline.

    Length and seed come from the left run, to reproduce a recorded run. Raises BadInput if a side cannot be run.
    """
    if not all(names):
        raise BadInput("Choose what to run on both sides.")
    left, right = (shared.archive.run(name) for name in names)
    length = min(left.max_new_tokens, shared.settings.max_new_tokens)
    basics = request_form.replaced(form_state.basics, "max_new_tokens", length)
    advanced = request_form.replaced(form_state.advanced, "seed", left.sampling.seed)
    listed = []
    for run in (left, right):
        if run.method not in all_methods() or "text" not in all_methods()[run.method].modality:
            raise BadInput(f"{run.title} generates no text; run it in its own tab.")
        own = request_form.method_answer(run.method, dict(run.parameters))
        form = replace(form_state, method=run.method, basics=basics, advanced=advanced, own=own)
        listed.append(replace(request_form.request(form, shared.settings), baseline=True))
    return listed


def unlike(left: Run, right: Run) -> str:
    """Return the names of the properties that prevent a comparison of two runs; empty if the runs are comparable."""
    ours, theirs = (
        asdict(run) | {"temperature": (run.sampling.temperature, run.sampling.top_k, run.sampling.top_p)} for run in (left, right)
    )
    names = [title for name, title in theme.texts()["comparable"].items() if ours[name] != theirs[name]]
    return " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))


ROWS = {name: pair.ROWS[name] for name in ("tokens", "target passes")} | {
    "tokens per pass, τ": lambda trace: pair.number(metrics.tau(trace.steps)),
    "tokens per second": lambda trace: pair.number(trace.end.metrics.get("tokens_per_second") if trace.end else None, 1),
    "speed-up of this run": lambda trace: f"{found.speedup:.2f}×" if (found := metrics.compared_speed(trace)) else "–",
}


@dataclass(frozen=True)
class Speeds:
    """Speed-ups of one side over the autoregressive runs, one per round."""

    each: tuple[float, ...]

    @property
    def middle(self) -> float:
        return statistics.median(self.each)

    @property
    def label(self) -> str:
        """The median and, for several rounds, the range."""
        spread = f" ({min(self.each):.2f} to {max(self.each):.2f})" if len(self.each) > 1 else ""
        return f"{self.middle:.2f}×{spread}"

    def overlaps(self, other: Speeds) -> bool:
        """Return whether the difference may be noise: overlapping ranges, or a ratio of medians below ``metrics.LEVEL``."""
        low, high = max(min(self.each), min(other.each)), min(max(self.each), max(other.each))
        return low <= high or max(self.middle, other.middle) < metrics.LEVEL * min(self.middle, other.middle)


@dataclass(frozen=True)
class MethodComparison:
    """Result of a comparison.

    ``headline``: which run is faster; ``text``: comparison of the texts; ``beside``: remarks; ``speeds``: speed-ups of both
    sides, or None if the speeds cannot be compared.
    """

    headline: str
    text: str = ""
    beside: str = ""
    speeds: tuple[Speeds, Speeds] | None = None


def compare(rounds: Sequence[tuple[Trace, Trace]], rehearsals: Sequence[int] = (0, 0)) -> MethodComparison:
    """Compare two runs over one or more rounds. ``rehearsals``: number of earlier runs of each side."""
    left, right = rounds[-1]
    if different := unlike(left.run, right.run):
        return MethodComparison(
            f"Their {different} differ", beside="So neither texts nor times can be compared. Run both methods on one prompt."
        )
    sides = [[metrics.compared_speed(one) for one in side] for side in zip(*rounds, strict=True)]
    left_speeds, right_speeds = (Speeds(tuple(found.speedup for found in side if found)) for side in sides)
    beside = [_remembered(trace.run, count) for trace, count in zip((left, right), rehearsals, strict=True)]
    if min(len(left_speeds.each), len(right_speeds.each)) < len(rounds):
        return MethodComparison("No speed to compare", _texts(left, right), "The autoregressive run was not timed for both.")
    named = ((left_speeds.middle, left.run.title), (right_speeds.middle, right.run.title))
    (fast, winner), (slow, other) = sorted(named, reverse=True)
    headline = f"{winner} is {fast / slow:.1f}× as fast as {other}"
    if left_speeds.overlaps(right_speeds):
        headline = f"{winner} and {other} are about equally fast"
    times = [1e3 / one.end.metrics["baseline_tokens_per_second"] for pair in rounds for one in pair if one.end]
    alternated = f"Measured alternately, {len(rounds)} times each, with an empty memory."
    beside.append("One run each, so the variation between runs is unknown." if len(rounds) == 1 else alternated)
    beside.append(f"The autoregressive runs took {min(times):.1f} to {max(times):.1f} ms per token.")
    return MethodComparison(headline, _texts(left, right), " ".join(filter(None, beside)), (left_speeds, right_speeds))


def _texts(left: Trace, right: Trace) -> str:
    """Compare the texts of two runs by tokens, temperature and the methods' guarantees."""
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


def race(left: Trace, right: Trace, judged: MethodComparison) -> str:
    """Return the HTML of the speed-up bars on one scale, longer is faster: the baseline, and both sides with their range."""
    if not judged.speeds:
        return ""
    rows = [("One at a time", Speeds((1.0,))), *zip((left.run.title, right.run.title), judged.speeds, strict=True)]
    percent = 100 / max(max(speeds.each) for _, speeds in rows)
    cells = ""
    for title, speeds in rows:
        low, high = percent * min(speeds.each), percent * max(speeds.each)
        bar = f'<i style="width:{percent * speeds.middle:.1f}%"></i>'
        if len(speeds.each) > 1:  # range from slowest to fastest
            bar += f'<u style="left:{low:.1f}%;width:{high - low:.1f}%"></u>'
        cells += f"<tr><th scope=row>{markup(title)}</th><td>{bar}</td><td>{speeds.label}</td></tr>"
    return f'<table class="sp-race"><caption>Speed-up: longer is faster</caption>{cells}</table>'


def banner(rounds: Sequence[tuple[Trace, Trace]], rehearsals: Sequence[int] = (0, 0)) -> str:
    """Return the HTML of the verdict."""
    judged = compare(rounds, rehearsals)
    return _block(judged.headline, judged.text, judged.beside, race(*rounds[-1], judged))


def _block(headline: str, text: str, beside: str, bars: str = "") -> str:
    verdict = f"<b>{markup(headline)}</b>" + (f", {markup(text)}" if text else "")
    words = f'<p class="sp-won">{verdict}</p><p class="sp-beside">{markup(beside)}</p>'
    return f'<div class="sp-verdict"><div>{words}</div>{bars}</div>'


RUNNING = _block(
    "Running both", "", f"Alternately, {ROUNDS} times each, on this prompt and from an empty memory. The verdict follows."
)
"""HTML shown instead of the verdict during the runs."""


class CompareTab(TabParts):
    """The Compare tab. The runs are sent when the tab is opened."""

    verb = ("Run both", "Running")

    def __init__(self, shared: AppState, tab_page: gr.Tab, text: RunTab) -> None:
        """Build the tab. Both runs use the target of the ``text`` tab."""
        self.shared, self.runs = shared, text.runs
        gallery, listed = shared.archive.gallery, choices(shared.archive, [])
        names = (*gallery.pair, *gallery.recordings, "", "")[:2]
        first = gallery.recordings.get(names[0])
        offered = (first.run.prompt, first.run.sampling.temperature) if first else ("", 0.0)
        self.offered = gr.State(offered)
        with gr.Column(elem_classes="sp-compare"):
            with gr.Row(elem_classes="sp-bar"):
                self.sides = [
                    gr.Dropdown(listed, value=name or None, label=label, elem_id=elem_id, min_width=330)
                    for name, label, elem_id in zip(names, ("Left", "Right"), ("sp-one", "sp-two"), strict=True)
                ]
                self.how = gr.Radio(
                    ["token", "time", ("neither", "off")], value="token", label="Align by", elem_classes="sp-how", min_width=180
                )
            with gr.Row(elem_classes="sp-bar"):
                self.prompt = gr.Textbox(
                    offered[0], label="Prompt", lines=1, max_lines=1, elem_id="sp-both-prompt", min_width=300
                )  # fmt: skip
                self.temperature = gr.Number(
                    offered[1], label="Temperature", minimum=0, maximum=2, step=0.1, elem_classes="sp-warm", min_width=150
                )
                self.run, self.stop = run_buttons(shared, self.verb[0], min_width=0)
            self.banner = theme.html("", visible=False)
            self.verdict = theme.html("")
            Race("#sp-left #sp-right", name="compare", opened=False, elem_classes="sp-race-box")
            with gr.Row(elem_classes="sp-pair"):
                options: dict[str, Any] = {"elem_classes": "sp-stage", "tail": sse.PATH, "autoplay": False}
                self.stages = [Stage(OPENING, elem_id=elem_id, **options) for elem_id in ("sp-left", "sp-right")]
            self.table = theme.html("")
        self.wire(tab_page, text)

    def both(self, names: Pair, runs: Runs, rounds: Sequence[Pair] = ()) -> Updates:
        """Return the updates that show two runs and the comparison, over several ``rounds`` if given."""
        try:
            feeds = [self.shared.archive.feed(name) for name in names]
        except SpecvizError as error:
            return self.say(error)
        return dict(zip(self.stages, feeds, strict=True)) | self.say("") | self.versus(rounds or (names,), runs)

    def versus(self, rounds: Sequence[Pair], runs: Runs) -> Updates:
        """Return the updates that select the last of these pairs and show the verdict and the table."""
        archive, listed = self.shared.archive, choices(self.shared.archive, runs)
        chosen = {side: gr.Dropdown(listed, value=name or None) for side, name in zip(self.sides, rounds[-1], strict=True)}
        verdict = table = ""
        with suppress(SpecvizError):
            traces = [(archive.trace(left), archive.trace(right)) for left, right in rounds]
            recordings = [archive.gallery.recordings.get(name) for name in rounds[-1]]
            verdict = banner(traces, [one.rehearsals if one else 0 for one in recordings])
            table = f'<div class="sp-versus">{pair.table(*traces[-1], ROWS)}</div>'
        return chosen | {self.verdict: verdict, self.table: table}

    async def opened(self, left: str | None, right: str | None, request: gr.Request, *values: Any) -> Updates:
        """Return the updates that show the pair named in the URL, else the selected pair."""
        recordings = self.shared.archive.gallery.recordings
        named = (request.query_params.get(side) for side in ("left", "right"))
        left, right = (name if name in recordings else one for name, one in zip(named, (left, right), strict=True))
        return await self.pair(left, right, request, *values)

    async def pair(
        self, left: str | None, right: str | None, request: gr.Request, runs: Runs, prompt: str, temperature: float,
        offered: Offered,
    ) -> Updates:  # fmt: skip
        """Return the updates that show the selected pair.

        Prompt and temperature are set to those of the left run, unless the visitor has changed them.
        """

        def shown() -> Updates:
            updates = self.both((left or "", right or ""), list(runs))
            if (prompt, temperature) != offered or not left:
                return updates
            run = self.shared.archive.run(left)
            new = (run.prompt, run.sampling.temperature)
            return updates | {self.prompt: new[0], self.temperature: new[1], self.offered: new}

        return await self.shared.read([left or "", right or ""], shown, request)

    def go(
        self, left: str | None, right: str | None, runs: Runs, prompt: str, temperature: float, request: gr.Request, *values: Any
    ) -> Iterator[Updates]:
        """Run both sides with the prompt and temperature of this tab."""
        shared, names, form = self.shared, (left or "", right or ""), FormState(*values)
        asked = replace(form, prompt=prompt, basics=request_form.replaced(form.basics, "temperature", temperature))
        yield from self.merged(self.running(shared.presence.caller(request), asked, names, list(runs)))

    def running(self, caller: Caller, form_state: FormState, names: Pair, runs: Runs) -> Iterator[Updates]:
        """Yield the updates of running both sides :data:`ROUNDS` times with an empty memory. Adds the runs to ``runs``."""
        waits = control("live", "next", message=WAITS)
        try:
            asked = requests(self.shared, form_state, names)
            yield (
                self.busy(True)
                | self.say("")
                | {self.verdict: RUNNING, self.table: ""}
                | dict(zip(self.stages, ("", waits), strict=True))
            )
            yield from self.in_turn(caller, asked, names, runs)
        except SpecvizError as error:
            yield self.say(error)
        yield self.busy(False)

    def in_turn(self, caller: Caller, requests: list[Request], before: Pair, runs: Runs) -> Iterator[Updates]:
        """Yield the updates of alternating runs.

        A stop leaves the last complete round, or the left run alone. If a run cannot start, the pair ``before`` is shown again.
        """
        page, rounds = self.shared.pages.enter(caller), list[Pair]()
        for _ in range(ROUNDS):
            names = list(rounds[-1] if rounds else before)
            for side, request in enumerate(requests):
                with closing(self.shared.live.run(page, request, caller, Memory())) as frames:
                    for frame in frames:
                        failure = self.say(frame.failure) if frame.failure else {}
                        if not page.current(frame.cancel) or (failure and not frame.begun):
                            yield self.both(before, runs) | (failure if page.current(frame.cancel) else {})
                            return
                        updates: Updates = {self.stages[side]: frame.feed} | failure
                        if frame.begun:
                            names[side] = MINE + frame.key
                        if frame.trace and join(runs, names[side], frame.trace.run):
                            updates[self.runs] = runs
                        yield updates
                stopped = frame.trace and frame.trace.end and frame.trace.end.reason == "cancelled"
                if stopped and (rounds or not side):
                    yield self.both(rounds[-1] if rounds else (names[0], names[1]), runs, rounds)
                    return
            rounds.append((names[0], names[1]))
        yield self.versus(rounds, runs)

    def wire(self, tab_page: gr.Tab, text: RunTab) -> None:
        choices = [*self.sides, self.runs, self.prompt, self.temperature]
        outputs = [*self.outputs, *self.stages, *self.sides]
        for event, handler in ((tab_page.select, self.opened), *((side.input, self.pair) for side in self.sides)):
            event(handler, [*choices, self.offered], outputs, **QUIET).then(None, self.how, None, js=ALIGN)
        self.how.input(None, self.how, None, js=ALIGN)
        started = gr.on([self.run.click, self.prompt.submit], self.go, [*choices, *text.request_controls], outputs, **QUIET)
        started.then(None, self.how, None, js=ALIGN)
