"""Processor threads follow the load: fewer when waiting again and again, all of them again afterwards."""

import pytest
import torch

import specviz
from specviz.engine import threads
from specviz.engine.threads import ThreadLimit


@pytest.fixture
def four():
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def waiting(monkeypatch):
    """A process whose threads wait for as long as the list's one number says, between any two looks."""
    more, total = [0], [0]

    def counted():
        total[0] += more[0]
        return total[0]

    monkeypatch.setattr(threads, "WINDOW", 0.0)
    monkeypatch.setattr(threads, "waiting_seconds", counted)
    return more


def test_threads_are_halved_only_when_two_windows_running_had_to_wait(four, waiting):
    with ThreadLimit() as limit:
        for more, left in [(10**9, 4), (0, 4), (10**9, 4), (10**9, 2), (10**9, 2), (10**9, 1), (10**9, 1)]:
            waiting[0] = more
            threads.adjust()
            assert (limit.now, torch.get_num_threads()) == (left, left)
    assert torch.get_num_threads() == 4


def test_a_thread_that_ends_takes_its_waiting_with_it(four, waiting):
    with ThreadLimit() as limit:
        waiting[0] = -(10**9)
        threads.adjust()
        assert (limit.share, limit.now) == (0.0, 4)


def test_how_long_threads_waited_is_known_even_of_one_thread(four, waiting):
    assert threads.contention() == 0.0
    with ThreadLimit() as limit:
        for _ in range(5):
            waiting[0] = 10**9
            threads.adjust()
        assert limit.now == 1 and threads.contention() > 1
        waiting[0] = 0
        threads.adjust()
        assert threads.contention() == 0.0


def test_a_run_on_a_busy_machine_says_so_and_leaves_the_threads_as_they_were(four, waiting):
    waiting[0] = 10**9
    trace = specviz.run(method="autoregressive", prompt="Hello", target="hybrid-small", max_new_tokens=12, baseline=True)
    assert trace.end.baseline is not None
    assert "1 of 4 CPU threads" in trace.end.busy and not trace.end.message
    assert torch.get_num_threads() == 4
