"""``run`` when it breaks off: the status says how, and what was decoded is kept."""

import json
import signal

import pytest
from msgspec.structs import replace

from specviz.__main__ import main
from specviz.errors import ModelUnavailable
from specviz.trace import store
from tests.support.fakes.commands import RUN, breaking, put_fake
from tests.support.traces.samples import sample_trace


@pytest.mark.parametrize(
    ("problem", "status", "reason"),
    [
        (KeyboardInterrupt(), 130, "cancelled"),
        (ModelUnavailable("The target went away; try again."), 2, "error"),
        (ZeroDivisionError("by zero"), 1, "error"),
    ],
)
def test_what_was_decoded_is_kept_however_it_breaks_off(
    problem, status, reason, monkeypatch, tmp_path,
    capsys,
):  # fmt: skip
    out = tmp_path / "run.spectrace.jsonl"
    trace = put_fake(monkeypatch, events=breaking(problem)).trace
    assert main([*RUN, "--out", str(out)]) == status
    kept = store.read(out)
    assert len(kept.steps) == 3 and kept.end.reason == reason
    assert kept.end.text == "".join(piece for step in trace.steps[:3] for piece in step.pieces)
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize(("reason", "status"), [("error", 1), ("out_of_memory", 2)])
def test_a_run_that_the_engine_gave_up_says_why_and_keeps_its_trace(reason, status, monkeypatch, tmp_path, capsys):
    out = tmp_path / "run.spectrace.jsonl"
    trace = sample_trace(4, reason=reason, baseline=False)
    put_fake(monkeypatch, replace(trace, end=replace(trace.end, message="The cache needs 3 GB more; take a smaller model.")))
    assert main([*RUN, "--json", "--out", str(out)]) == status
    said = capsys.readouterr()
    assert said.err.endswith("The cache needs 3 GB more; take a smaller model.\n")
    assert json.loads(said.out)["reason"] == reason
    assert len(store.read(out).steps) == 4


def test_an_interrupt_lets_the_step_finish_and_keeps_the_trace(monkeypatch, tmp_path, capsys):
    def events(trace, cancel):
        yield trace.run
        for count, step in enumerate(trace.steps[:3]):
            if count == 2:
                signal.raise_signal(signal.SIGINT)
            yield step
            if cancel.is_set():
                break
        yield replace(sample_trace(3, reason="cancelled", baseline=False).end, reason="cancelled")

    before = signal.getsignal(signal.SIGINT)
    out = tmp_path / "run.spectrace.jsonl"
    put_fake(monkeypatch, sample_trace(3, reason="cancelled", baseline=False), events)
    assert main([*RUN, "--out", str(out)]) == 130
    assert len(store.read(out).steps) == 3
    assert "Stopped" in capsys.readouterr().err
    assert signal.getsignal(signal.SIGINT) is before


def test_an_interrupt_while_the_model_loads_stops_at_once(monkeypatch, capsys):
    def events(trace, cancel):
        signal.raise_signal(signal.SIGINT)
        yield trace.run

    put_fake(monkeypatch, events=events)
    assert main(list(RUN)) == 130
    assert capsys.readouterr().err.endswith("Stopped.\n")
