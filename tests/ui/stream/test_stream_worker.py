"""What happens in the engine is told to the page in time, and a page that closes ends the run."""

import threading

import pytest

from specviz.engine.stop import Interrupted, Stop
from specviz.ui.stream import live
from specviz.ui.stream.live import Frame, StreamSink, pump


@pytest.fixture
def sink():
    return StreamSink(Frame(Stop(), "run"))


def test_the_first_lines_and_the_end_are_told_at_once_and_messages_are_gathered(sink):
    told = threading.Event()

    def work():
        sink.status("Loading", 0.1)
        assert told.wait(20)
        for share in (0.2, 0.3):
            sink.status("Loading", share)
        sink.lines()

    found = []
    for frame, urgent in pump(work, sink, every=60.0):
        found.append((frame.fraction, frame.begun, urgent))
        told.set()
    assert found == [(0.1, False, False), (0.3, True, True)], "one message at once, the next ones a minute later"


def test_an_engine_that_closes_long_after_its_last_line_adds_no_empty_update(sink):
    frames = list(pump(lambda: sink.lines(ended=True), sink, lambda: threading.Event().wait(0.1) and None, every=0.0))
    assert [urgent for _, urgent in frames] == [True]


def test_nothing_is_told_behind_the_end_of_a_run_that_was_given_up(sink, monkeypatch):
    monkeypatch.setattr(live, "GRACE_SECONDS", 0.05)
    over = threading.Event()

    def work():
        sink.lines()
        over.wait(20)
        sink.lines(ended=True)

    frames = pump(work, sink, over.set)
    assert next(frames)[1]
    sink.cancel.set()
    *_, (last, urgent) = frames
    assert sink.abandoned and urgent and last.message == "Stopping"


def test_a_stop_is_not_told_behind_the_end_that_it_brought(sink, monkeypatch):
    watch, ended, watched = live._watch, threading.Event(), threading.Event()

    def late(sink, done, over):
        assert ended.wait(20)
        over = threading.Event()
        over.set()
        watch(sink, done, over)
        watched.set()

    def work():
        sink.lines()
        assert sink.cancel.wait(20)
        sink.lines(ended=True)
        ended.set()
        assert watched.wait(20), "the watcher says what it has to before the work is over"

    monkeypatch.setattr(live, "_watch", late)
    frames = pump(work, sink)
    assert next(frames)[1]
    sink.cancel.set()
    assert [(frame.message, urgent) for frame, urgent in frames] == [("", True)]


def test_a_fault_of_ours_is_told_without_its_text_and_logged_with_it(
    sink, caplog
):  # fmt: skip
    def work():
        raise ZeroDivisionError("/secret/path")

    *_, (last, urgent) = pump(work, sink)
    assert urgent and "ZeroDivisionError" in last.failure and "secret" not in last.failure
    assert "/secret/path" in caplog.text


def test_a_long_download_ends_when_the_run_is_stopped(sink):
    sink.status("Fetching", 0.25)
    sink.cancel.set()
    with pytest.raises(Interrupted):
        sink.status("Fetching", 0.5)
