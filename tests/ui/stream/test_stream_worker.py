"""What the engine hands over reaches the screen whole and in order, and a page that closes ends the run."""

from __future__ import annotations

import threading

import pytest

from specviz.engine.stop import Interrupted
from specviz.errors import BadInput
from specviz.ui.stream.stream_worker import StreamSink, pump


def test_every_line_arrives_in_order() -> None:
    def work(outlet: StreamSink) -> None:
        for number in range(500):
            outlet.line(str(number), ended=number == 499)

    batches = list(pump(work, threading.Event(), every=0.001))
    assert [line for batch in batches for line in batch.lines] == [str(number) for number in range(500)]
    assert [batch.ended for batch in batches if batch.lines][-1]
    assert not any(batch.failure for batch in batches)


def test_between_two_updates_lines_are_gathered() -> None:
    def work(outlet: StreamSink) -> None:
        pause = threading.Event()
        for number in range(30):
            outlet.line(str(number))
            pause.wait(0.002)

    batches = list(pump(work, threading.Event(), every=60.0))
    assert len(batches) == 2, "one at once, and one when the work is over, long before the minute is"
    assert len(batches[0].lines) < 30


def test_an_engine_that_closes_long_after_its_last_line_adds_no_empty_update() -> None:
    def work(outlet: StreamSink) -> None:
        outlet.line("the last", ended=True)

    batches = list(pump(work, threading.Event(), lambda: threading.Event().wait(0.1) and None, every=0.0))
    assert [(batch.lines, batch.ended) for batch in batches] == [(["the last"], True)]


def test_a_screen_that_is_slow_holds_the_engine_back_but_loses_nothing() -> None:
    handed = []

    def work(outlet: StreamSink) -> None:
        for number in range(40):
            outlet.line(str(number))
            handed.append(number)

    batches = pump(work, threading.Event(), every=0.0, bound=4)
    first = next(batches)
    assert len(handed) <= len(first.lines) + 6
    assert [line for batch in [first, *batches] for line in batch.lines] == [str(number) for number in range(40)]


def test_closing_cancels_and_the_place_is_given_back_when_the_work_is_over() -> None:
    cancel, over, noticed = threading.Event(), threading.Event(), threading.Event()

    def work(outlet: StreamSink) -> None:
        outlet.line("one")
        assert cancel.wait(20)
        noticed.set()

    batches = pump(work, cancel, over.set)
    assert next(batches).lines == ["one"]
    assert not over.is_set()
    batches.close()
    assert cancel.is_set() and noticed.wait(20) and over.wait(20)


def test_an_engine_whose_screen_is_gone_does_not_wait_for_room() -> None:
    cancel, over = threading.Event(), threading.Event()

    def work(outlet: StreamSink) -> None:
        for _ in range(50):
            outlet.line("more")

    batches = pump(work, cancel, over.set, bound=2)
    next(batches)
    batches.close()
    assert over.wait(20)


def test_an_error_for_the_user_is_told_as_it_is() -> None:
    def work(outlet: StreamSink) -> None:
        outlet.line("kept")
        raise BadInput("The prompt is too long; shorten it.")

    batches = list(pump(work, threading.Event()))
    assert [line for batch in batches for line in batch.lines] == ["kept"]
    assert batches[-1].failure == "The prompt is too long; shorten it."


def test_a_fault_of_ours_is_told_without_its_text_and_logged_with_it(caplog: pytest.LogCaptureFixture) -> None:
    def work(outlet: StreamSink) -> None:
        raise ZeroDivisionError("/secret/path")

    failure = list(pump(work, threading.Event()))[-1].failure
    assert "ZeroDivisionError" in failure and "secret" not in failure
    assert "/secret/path" in caplog.text


def test_a_long_download_ends_when_the_run_is_stopped() -> None:
    cancel = threading.Event()
    outlet = StreamSink(cancel, 8)
    outlet.status("Fetching", 0.25)
    cancel.set()
    with pytest.raises(Interrupted):
        outlet.status("Fetching", 0.5)
