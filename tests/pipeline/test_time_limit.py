"""A time limit counts for all that a run computes, and what was computed by then is kept and explained."""

import pytest

from specviz.engine.stop import Stop
from specviz.models import cache
from specviz.pipeline.request import Request
from specviz.pipeline.runner import stream
from specviz.trace import store
from specviz.trace.schema import End, Run, Step, Trace
from tests.support.tiny.shelf import fill, stock

LIMIT = "A run has 100 s here."


class Clock:
    """Time that passes by one second whenever somebody looks, once it is ``on``."""

    def __init__(self, on=False):
        self.now, self.on = 0.0, on

    def __call__(self):
        self.now += self.on
        return self.now

    def from_the_run(self, events):
        """The events, with the clock on from the first: how often anybody looks before depends on what has to be measured."""
        first = next(events)
        self.on = True
        return [first, *events]


@pytest.fixture(scope="module", autouse=True)
def small(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        stock(fill(tmp_path_factory.mktemp("project")), patch)
        list(stream(Request(method="stand", prompt="Why?", target="hybrid-small", max_new_tokens=2)))  # loads it on no clock
        yield
    cache.MODELS.release()


def told(seconds, tokens=12, on=False, **more):
    """A run's trace under a limit, and how many end lines it has. The clock is ``on`` at once, or from the run line."""
    clock = Clock(on)
    stop = Stop(lambda: (seconds, LIMIT), clock)
    fields = {"method": "stand", "prompt": "Why is the sky blue?", "target": "hybrid-small", "baseline": True, **more}
    request = Request(max_new_tokens=tokens, temperature=0.9, **fields)
    events = clock.from_the_run(stream(request, cancel=stop))
    ends = [one for one in events if isinstance(one, End)]
    assert isinstance(events[0], Run)
    trace = Trace(events[0], tuple(one for one in events if isinstance(one, Step)), ends[-1])
    assert store.read(store.text(trace).encode()).end is not None, "the file is one that this project reads"
    return trace, len(ends)


def test_a_run_over_its_time_keeps_its_steps_and_says_why():
    trace, ends = told(7.0, tokens=200)
    assert 0 < len(trace.steps) < 12
    assert (trace.end.reason, trace.end.message, ends) == ("time_limit", LIMIT, 1)
    assert trace.end.output_ids == tuple(token for step in trace.steps for token in step.emitted)


@pytest.mark.slow
def test_earlier_trajectories_leave_half_of_the_time():
    trace, _ = told(100.0, tokens=400, on=True, parameters={"earlier_trajectories": 16})
    assert trace.end.reason == "time_limit" and len(trace.steps) > 10
    assert "of 16 earlier trajectories were completed within half the time" in trace.run.warnings[-1]


def test_a_baseline_over_the_time_is_left_out_in_so_many_words():
    alone = Clock()
    stop = Stop(lambda: (1e6, LIMIT), alone)
    request = Request(method="autoregressive", prompt="Why?", target="hybrid-small", max_new_tokens=12)
    assert isinstance(alone.from_the_run(stream(request, cancel=stop))[-1], End)
    trace, ends = told(alone.now + 2, method="autoregressive", prompt="Why?")
    assert trace.end.reason == "budget" and trace.end.baseline is None and ends == 2
    assert trace.end.message == f"{LIMIT} That left no time for the baseline."


def test_a_user_who_stops_reads_nothing_about_time():
    stop = Stop(lambda: (1e6, LIMIT))
    request = Request(method="stand", prompt="Why?", target="hybrid-small", baseline=True, parameters={"earlier_trajectories": 4})
    found = []
    for one in stream(request, cancel=stop):
        found.append(one)
        stop.set()
    end = found[-1]
    assert (end.reason, end.message) == ("cancelled", "")
