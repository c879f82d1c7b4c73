"""A run ends when it is stopped and when its time is up, and says which."""

from __future__ import annotations

import math
import threading

from specviz.engine.stop import Stop, why


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_plain_stop_has_no_reason() -> None:
    stop = Stop()
    stop.begin()
    assert not stop.is_set() and not stop.halfway() and stop.spare(1e9)
    stop.set()
    assert stop.is_set() and stop.halfway() and not stop.spare(0.0) and why(stop) == ""
    assert why(threading.Event()) == ""


def test_time_counts_from_the_beginning_of_the_work_and_not_from_before() -> None:
    clock = Clock()
    stop = Stop(lambda: (10.0, "10 s are the most."), clock)
    clock.now += 50
    assert not stop.is_set()
    stop.begin()
    clock.now += 4
    stop.begin()
    assert not stop.halfway()
    clock.now += 2
    assert stop.halfway() and not stop.is_set()
    clock.now += 5
    assert stop.is_set() and why(stop) == "10 s are the most."


def test_a_limit_may_shrink_while_the_run_goes_on() -> None:
    clock, limit = Clock(), [60.0]
    stop = Stop(lambda: (limit[0], f"{limit[0]:g} s"), clock)
    stop.begin()
    clock.now += 20
    assert not stop.is_set()
    limit[0] = 5.0
    assert stop.is_set() and why(stop) == "5 s"
    limit[0] = 60.0
    assert stop.is_set(), "what is over stays over"


def test_what_is_known_to_take_too_long_is_not_begun() -> None:
    clock = Clock()
    stop = Stop(lambda: (10.0, "10 s"), clock)
    stop.begin()
    clock.now += 6
    assert stop.spare(3.0) and not stop.is_set()
    assert not stop.spare(5.0) and stop.is_set() and why(stop) == "10 s"


def test_preparing_has_a_limit_of_its_own_until_the_run_begins() -> None:
    clock, waiting = Clock(), [False]
    stop = Stop(lambda: (10.0, "run"), clock)
    stop.prepare(lambda: (5.0, "preparing") if waiting[0] else (math.inf, ""))
    clock.now += 50
    assert not stop.is_set()
    stop.begin()
    waiting[0] = True
    assert not stop.is_set()
    late = Stop(lambda: (10.0, "run"), clock)
    late.prepare(lambda: (5.0, "preparing"))
    clock.now += 6
    assert late.is_set() and late.why == "preparing"
