"""What happens in the engine is told to the page in time, and a page that closes ends the run."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from specviz.engine.stop import Interrupted
from specviz.ui.stream import stream_worker
from specviz.ui.stream.stream_worker import Batch, StreamSink, pump


def test_the_first_lines_and_the_end_are_told_at_once_and_messages_are_gathered() -> None:
    told = threading.Event()

    def work(outlet: StreamSink) -> None:
        outlet.status("Loading", 0.1)
        assert told.wait(20)
        for share in (0.2, 0.3):
            outlet.status("Loading", share)
        outlet.lines()
        outlet.lines(ended=True)

    found = []
    for batch in pump(work, threading.Event(), every=60.0):
        found.append(batch)
        told.set()
    assert found[0] == Batch(status=("Loading", 0.1)), "one message at once, the next ones a minute later"
    assert found[1].lines and found[1].status == ("Loading", 0.3) and found[-1].ended


def test_an_engine_that_closes_long_after_its_last_line_adds_no_empty_update() -> None:
    def work(outlet: StreamSink) -> None:
        outlet.lines(ended=True)

    batches = list(pump(work, threading.Event(), lambda: threading.Event().wait(0.1) and None, every=0.0))
    assert batches == [Batch(lines=True, ended=True)]


def test_nothing_is_told_behind_the_end_of_a_run_that_was_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_worker, "GRACE_SECONDS", 0.05)
    cancel, over = threading.Event(), threading.Event()

    def work(outlet: StreamSink) -> None:
        outlet.lines()
        over.wait(20)
        outlet.lines(ended=True)

    batches = pump(work, cancel, over.set)
    assert next(batches).lines
    cancel.set()
    rest = list(batches)
    assert rest[-1].abandoned and not any(batch.ended for batch in rest)


def test_a_stop_is_not_told_behind_the_end_that_it_brought(monkeypatch: pytest.MonkeyPatch) -> None:
    watch, cancel, ended, watched = stream_worker._watch, threading.Event(), threading.Event(), threading.Event()

    def late(outlet: StreamSink, done: Callable[[], None], over: threading.Event) -> None:
        assert ended.wait(20)
        over = threading.Event()
        over.set()
        watch(outlet, done, over)
        watched.set()

    def work(outlet: StreamSink) -> None:
        outlet.lines()
        assert cancel.wait(20)
        outlet.lines(ended=True)
        ended.set()
        assert watched.wait(20), "the watcher says what it has to before the work is over"

    monkeypatch.setattr(stream_worker, "_watch", late)
    batches = pump(work, cancel)
    assert next(batches) == Batch(lines=True)
    cancel.set()
    assert list(batches) == [Batch(lines=True, ended=True)]


def test_a_stop_while_the_baseline_is_timed_is_told() -> None:
    cancel, over = threading.Event(), threading.Event()
    outlet = StreamSink(cancel)
    outlet.lines(ended=True)
    cancel.set()
    over.set()
    stream_worker._watch(outlet, over.clear, over)
    assert outlet.batch.status == ("Stopping", None)


def test_a_fault_of_ours_is_told_without_its_text_and_logged_with_it(caplog: pytest.LogCaptureFixture) -> None:
    def work(outlet: StreamSink) -> None:
        raise ZeroDivisionError("/secret/path")

    failure = list(pump(work, threading.Event()))[-1].failure
    assert "ZeroDivisionError" in failure and "secret" not in failure
    assert "/secret/path" in caplog.text


def test_a_long_download_ends_when_the_run_is_stopped() -> None:
    cancel = threading.Event()
    outlet = StreamSink(cancel)
    outlet.status("Fetching", 0.25)
    cancel.set()
    with pytest.raises(Interrupted):
        outlet.status("Fetching", 0.5)
