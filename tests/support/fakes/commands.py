"""A stand-in for the engine, so that commands are tested without a model, and a way to start the real program."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from specviz.__main__ import main
from specviz.pipeline.request import Request
from specviz.trace.schema import End, Run, Step, Trace
from tests.support.traces.samples import sample_trace

ROOT = Path(__file__).resolve().parents[3]
RUN = ("run", "--method", "token_recycling", "--prompt", "hello")
Event = Run | Step | End
Events = Callable[[Trace, Any], Iterator[Event]]


class FakeRun:
    """Stands in for ``specviz.run``: remembers what it was asked and yields what ``events`` makes of a recorded run."""

    def __init__(self, trace: Trace, events: Events | None = None) -> None:
        self.trace = trace
        self.asked: Request | None = None
        self._events = events or (lambda one, cancel: iter([one.run, *one.steps, one.end]))

    def stream(self, request: Request, *, cancel: Any, progress: Callable[[str, float | None], None]) -> Iterator[Event]:
        self.asked = request
        progress("Loading a model", None)
        progress("Loading a model", 0.5)
        yield from self._events(self.trace, cancel)


def put_fake(monkeypatch: pytest.MonkeyPatch, trace: Trace | None = None, events: Events | None = None) -> FakeRun:
    """Put a fake engine in the real one's place; it plays ``trace``, a plain sample when None."""
    made = FakeRun(trace or sample_trace(6), events)
    monkeypatch.setitem(sys.modules, "specviz.pipeline.runner", made)
    return made


def breaking(problem: BaseException) -> Events:
    """A run that gives three steps and then raises this."""

    def events(trace: Trace, cancel: Any) -> Iterator[Event]:
        yield from (trace.run, *trace.steps[:3])
        raise problem

    return events


def one_sentence(error: str) -> bool:
    """Whether this is one line that ends as a sentence does, and no traceback."""
    return error.endswith((".\n", "help.\n")) and error.count("\n") == 1 and "Traceback" not in error


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    """Run a command that has to succeed, and return the JSON that it prints."""
    code = main([*words, "--json"])
    said = capsys.readouterr()
    assert code == 0, said.err
    found: dict[str, Any] = json.loads(said.out)
    return found
