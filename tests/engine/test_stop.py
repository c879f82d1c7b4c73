"""A run ends when it is stopped and when its time is up, and says which."""

import math
import threading

import pytest

from specviz.engine import stop as stop_module
from specviz.engine.stop import Interrupted, Stop, computing, heed, locked, stoppable, waiting
from specviz.errors import SpecvizError


def silent(message, share):
    """Who does not want to know."""


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


def test_a_plain_stop_has_no_reason():
    stop = Stop()
    stop.begin()
    assert not stop.is_set() and not stop.halfway() and stop.has_time_for(1e9)
    stop.set()
    assert stop.is_set() and stop.halfway() and not stop.has_time_for(0.0) and stop.reason == ""


def test_time_counts_from_the_beginning_of_the_work_and_not_from_before():
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
    assert stop.is_set() and stop.reason == "10 s are the most."


def test_a_limit_may_shrink_while_the_run_goes_on():
    clock, limit = Clock(), [60.0]
    stop = Stop(lambda: (limit[0], f"{limit[0]:g} s"), clock)
    stop.begin()
    clock.now += 20
    assert not stop.is_set()
    limit[0] = 5.0
    assert stop.is_set() and stop.reason == "5 s"
    limit[0] = 60.0
    assert stop.is_set(), "what is over stays over"


def test_what_is_known_to_take_too_long_is_not_begun():
    clock = Clock()
    stop = Stop(lambda: (10.0, "10 s"), clock)
    stop.begin()
    clock.now += 6
    assert stop.has_time_for(3.0) and not stop.is_set()
    assert not stop.has_time_for(5.0) and stop.is_set() and stop.reason == "10 s"


def test_preparing_has_a_limit_of_its_own_until_the_run_begins():
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
    assert late.is_set() and late.reason == "preparing"


def test_a_thread_hears_of_a_stop_of_any_block_around_it_and_of_no_other_threads():
    outer, inner = threading.Event(), threading.Event()
    with stoppable(outer), stoppable(inner):
        heed()
        outer.set()
        with pytest.raises(Interrupted):
            heed()
        heard = []
        other = threading.Thread(target=lambda: (heed(), heard.append("went on")))
        other.start()
        other.join()
        assert heard == ["went on"]
    heed()


def test_one_thread_computes_at_a_time_and_one_that_waits_lets_others():
    lock, release, others = threading.Lock(), threading.Event(), []

    def waits():
        with computing(lock, silent):
            with waiting():
                release.wait(20)
            others.append("back")

    thread = threading.Thread(target=waits)
    thread.start()
    with computing(lock, silent):
        others.append("beside")
        release.set()
        assert not others[1:], "what comes back from its wait does not compute beside this"
    thread.join(20)
    assert others == ["beside", "back"] and lock.acquire(blocking=False)


def test_what_was_stopped_while_it_waited_computes_no_more():
    lock, cancel = threading.Lock(), threading.Event()
    with pytest.raises(Interrupted), stoppable(cancel), computing(lock, silent):
        with waiting():
            cancel.set()
        raise AssertionError("it went on")
    assert lock.acquire(blocking=False)


@pytest.mark.parametrize("kind", [threading.Lock, threading.RLock])
def test_a_lock_of_another_is_waited_for_only_while_the_run_is_wanted(kind):
    computes, lock, cancel = threading.Lock(), kind(), threading.Event()
    held, done = threading.Event(), threading.Event()
    holder = threading.Thread(target=lambda: (lock.acquire(), held.set(), done.wait(20), lock.release()))
    holder.start()
    assert held.wait(20)
    threading.Timer(0.3, cancel.set).start()
    with pytest.raises(Interrupted), stoppable(cancel), computing(computes, silent), locked(lock):
        raise AssertionError("it got the lock")
    assert computes.acquire(blocking=False), "who waits for a lock does not keep others from computing"
    done.set()
    holder.join(20)


def test_a_run_waits_for_a_stopped_one_so_long_and_says_so(monkeypatch):
    monkeypatch.setattr(stop_module, "PATIENCE_SECONDS", 0.2)
    lock, told = threading.Lock(), []
    lock.acquire()
    with pytest.raises(SpecvizError, match="still computing"), computing(lock, lambda message, share: told.append(message)):
        raise AssertionError("it computes beside another")
    assert told and "Waiting for a stopped run" in told[0]
