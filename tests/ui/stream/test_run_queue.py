"""Runs wait their turn, in order, and nobody waits in a line that is full."""

from __future__ import annotations

import pytest

from specviz.ui.stream.run_queue import LineFull, RunQueue


def test_first_come_first_served() -> None:
    line = RunQueue(waiting=2)
    first, second, third = line.join(), line.join(), line.join()
    assert [len(one.ahead) for one in (first, second, third)] == [0, 1, 2]
    assert first.wait(0) and not second.wait(0)
    first.leave()
    assert second.wait(0) and third.ahead == [second]


def test_a_full_line_says_how_many_wait_and_what_to_do() -> None:
    line = RunQueue(waiting=1)
    line.join()
    waiting = line.join()
    with pytest.raises(LineFull, match="1 more run waiting .* Try again .* recorded runs"):
        line.join()
    waiting.leave()
    assert len(line.join().ahead) == 1


def test_whoever_gives_up_lets_the_next_one_through() -> None:
    line = RunQueue(waiting=4)
    first, second, third = line.join(), line.join(), line.join()
    second.leave()
    second.leave()
    first.leave()
    assert third.wait(0)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_the_wait_is_told_by_how_long_recent_runs_took() -> None:
    clock = Clock()
    line = RunQueue(waiting=4, clock=clock)
    first, second, third = line.join(), line.join(), line.join()
    assert (first.seconds, second.seconds) == (0.0, None), "nothing is known before the first run"
    for took in (4.0, 6.0, 60.0):
        done = first
        done.start()
        clock.now += took
        done.leave()
        first, second, third = second, third, line.join()
    assert second.seconds == 6.0 and third.seconds == 12.0
    first.start()
    clock.now += 5.0
    assert third.seconds == 7.0, "what has gone by of the run in front counts"
    clock.now += 50.0
    assert third.seconds == 11.0, "one that takes long is judged by those that took longer"
    clock.now += 50.0
    assert third.seconds is None, "none took as long, so nobody can know"


def test_a_place_that_was_given_up_while_waiting_says_nothing_about_durations() -> None:
    line = RunQueue(waiting=4)
    line.join().leave()
    line.join()
    assert line.join().seconds is None
