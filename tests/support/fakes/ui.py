"""Stand-ins for tests of the page: an engine that replays a sample run, and an app with recorded runs and no model."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from msgspec.structs import replace

from specviz.engine.stop import Stop
from specviz.errors import SpecvizError
from specviz.methods.registry import all_methods
from specviz.pipeline.request import Memory, Request
from specviz.trace import metrics, store
from specviz.trace.schema import End, Run, Step, Trace
from specviz.ui.app_state import AppState, make
from specviz.ui.settings import Settings
from specviz.ui.stream.engine import Progress
from specviz.ui.tabs import request_form
from specviz.ui.tabs.request_form import FormState
from tests.support.traces.image_runs import image_trace
from tests.support.traces.recordings import beginning, said
from tests.support.traces.samples import KINDS, sample_trace

HARDWARE = {"kind": "cpu", "name": "AMD EPYC 7763", "cores": 2, "dtype": "float32", "tier": "eager", "unused_gpu": False}
VISITOR: Any = SimpleNamespace(session_hash="a", query_params={}, headers={}, client=None, state=SimpleNamespace())
"""The request of a visitor's page, as far as a handler looks at it."""
PAIR = ("prompt_lookup", "token_recycling")
"""Recorded runs that can be compared."""
RECORDED = ("token_recycling", "prompt_lookup", "stand", "speculative_sampling")


@dataclass
class FakeEngine:
    """Replays a sample of the method asked for, a step every ``pace`` seconds, and notices a stop between two steps.

    ``before_baseline`` are the seconds that the autoregressive run takes; a stop leaves it out.
    ``reading`` is the word on a long prompt, between the run line and the first step.
    ``breaks`` is raised after ``breaks_at`` steps, before the run line when that is -1.
    """

    steps: int = 12
    pace: float = 0.0
    before_baseline: float = 0.0
    breaks: Exception | None = None
    breaks_at: int = -1
    reading: tuple[str, float] | None = None
    running: int = 0
    most_running: int = 0
    cancelled: int = 0
    asked: list[Request] = field(default_factory=list)

    @property
    def begun(self) -> int:
        """How many runs have reached the engine."""
        return len(self.asked)

    def __call__(
        self, request: Request, memory: Memory, cancel: threading.Event, progress: Progress
    ) -> Iterator[Run | Step | End]:
        progress("Loading", 0.5)
        if isinstance(cancel, Stop):
            cancel.begin()
        self.asked.append(request)
        self.running += 1
        self.most_running = max(self.running, self.most_running)
        try:
            yield from self.events(request, cancel, progress)
        finally:
            self.running -= 1

    def events(self, request: Request, cancel: threading.Event, progress: Progress) -> Iterator[Run | Step | End]:
        if self.breaks and self.breaks_at < 0:
            raise self.breaks
        trace = recorded(request.method, self.steps, request.seed)
        assert trace.end is not None
        yield replace(trace.run, prompt=request.prompt, max_new_tokens=request.max_new_tokens, warnings=())
        if self.reading:
            progress(*self.reading)
        for step in trace.steps:
            if step.index == self.breaks_at and self.breaks:
                raise self.breaks
            if cancel.wait(self.pace) or cancel.is_set():
                self.cancelled += 1
                yield stopped(trace.steps[: step.index], cancel.reason)
                return
            yield step
        yield replace(trace.end, baseline=None, metrics=metrics.summarise(trace.steps, "budget", trace.end.prefill_ns))
        if request.baseline and not cancel.wait(self.before_baseline):
            yield trace.end


def stopped(steps: tuple[Step, ...], limit: str = "") -> End:
    """The end of a run that somebody stopped, or whose time was up."""
    reason = "time_limit" if limit else "cancelled"
    return End(reason, *said(steps), 1, metrics.summarise(steps, reason, 1), limit)


RUNS = {"eagle3_list": "eagle3", "vllm_eagle3": "speculative_sampling"}
"""Recordings that are not called by a method's name, and the method whose rounds theirs look like."""


@cache
def recorded(method: str, steps: int, seed: int = 0) -> Trace:
    """A run of any method with its default parameters, as real as one without a model can be."""
    method = RUNS.get(method, method)
    made = _recorded(method, steps, seed)
    return replace(made, run=replace(made.run, method=method, parameters=asdict(all_methods()[method].parameters())))


def _recorded(method: str, steps: int, seed: int) -> Trace:
    if "text" not in all_methods()[method].modality and "image" in all_methods()[method].modality:
        return image_trace(method)
    return sample_trace(steps, seed, method=method) if method in KINDS else beginning(method, steps)


@cache
def written(name: str) -> str:
    """The file of a recorded run."""
    return store.text(recorded(name, 16))


def gallery(folder: Path, names: tuple[str, ...] = RECORDED) -> Path:
    """A folder of recorded runs with its index; the first is the default."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / f"{name}.spectrace.jsonl").write_text(written(name), encoding="utf-8")
        (folder / f"{name}.json").write_text(json.dumps({"title": f"A run of {name}"}), encoding="utf-8")
    pair = [name for name in PAIR if name in names]
    (folder / "index.json").write_text(json.dumps({"first": {"text": names[0]}, "pair": pair}), encoding="utf-8")
    return folder


def app(folder: Path, engine: FakeEngine | None = None, **settings: object) -> AppState:
    """An app as it runs, its engine replaced, and what its hardware is."""
    found = Settings(traces=gallery(folder / "traces"), **settings)
    return make(found, engine or FakeEngine(), lambda device: HARDWARE)


def asked(shared: AppState, method: str = "stand", prompt: str = "Say something.", **changes: str) -> FormState:
    """What the controls say, as the page would send it."""
    settings = shared.settings
    given = {
        "method": method, "target": settings.target, "draft": "", "prompt": prompt, "basics": request_form.forms(settings)[0],
        "advanced": request_form.forms(settings)[1], "own": request_form.method_answer(method),
    }  # fmt: skip
    return FormState(**{**given, **changes})


def changed(form: str, **values: object) -> str:
    """A form's answer after somebody typed into it."""
    found = json.loads(form)
    found["values"].update(values)
    return json.dumps(found)


class Refused(SpecvizError):
    """Any error with a sentence for the user."""


def banners(tab: Any, updates: list[dict[Any, Any]]) -> list[str]:
    """What a tab's banner said, from first to last."""
    return [one[tab.banner].value for one in updates if tab.banner in one and one[tab.banner].value]
