"""A step's time: phases end to end, the rest is the host's, and what is spent aside belongs to nobody."""

import time

import pytest
import torch

from specviz.engine.clock import Stopwatch, Untimed

CPU = torch.device("cpu")
MS = 1_000_000


def test_time_aside_is_in_no_phase_and_not_in_the_whole(monkeypatch):
    now = [0]
    monkeypatch.setattr(time, "perf_counter_ns", lambda: now[0] * MS)

    def passes(milliseconds):
        now[0] += milliseconds

    aside = Untimed(CPU)
    with aside:
        passes(7)
    clock = Stopwatch(CPU, aside)
    clock.start(carried=2 * MS)
    passes(10)
    with aside:
        passes(100)
    clock.mark("draft")
    passes(20)
    clock.mark("verify")
    with aside:
        passes(50)
    passes(3)
    clock.mark("draft")
    passes(4)
    with aside:
        passes(1000)
    clock.stop()
    found = clock.read()
    assert (found.draft, found.verify, found.judge, found.commit) == (13 * MS, 20 * MS, 0, 0)
    assert (found.host, found.aside) == (6 * MS, 1150 * MS)
    assert found.total == 39 * MS and aside.spent == 1157 * MS


def test_a_fault_inside_still_ends_what_is_aside(monkeypatch):
    now = iter((5 * MS, 17 * MS))
    monkeypatch.setattr(time, "perf_counter_ns", lambda: next(now))
    aside = Untimed(CPU)
    with pytest.raises(ValueError), aside:
        raise ValueError
    assert aside.spent == 12 * MS
