"""Costs that learn: what passes and forwards take now, whichever sizes were seen, and no later than the runs show it."""

from dataclasses import replace

import pytest

from specviz.engine.cost import CURVE_TOLERANCE, SIZES, TIMED, PassTimes, RunCosts
from tests.support.tiny.text import composed, decode, tiny_target
from tests.support.worlds.text import GREEDY, PROMPT, compose, resources


def usual(rows):
    return 10.0 + max(0, rows - 8) * 0.4


def timed(cost=usual, contention=0.0):
    times = PassTimes()
    for rows in TIMED * 2:
        times.learn(rows, cost(rows), contention, 0.0)
    return times


def ratio(times, rows):
    return times.curve.at(rows) / times.curve.at(1)


@pytest.mark.parametrize("rows", [1, 2, 3, 8, 12, 25, 48])
def test_a_few_sizes_tell_the_others(rows):
    assert ratio(timed(), rows) == pytest.approx(usual(rows) / usual(1), rel=0.12)


def test_a_machine_that_slows_down_as_a_whole_keeps_its_ratios():
    """Three times slower from one pass to the next, and a round's tree and the baseline are all that is seen of it."""
    times = timed()
    for number in range(200):
        rows = (12, 20, 9)[number % 3] if number < 100 else 1
        times.learn(rows, 3 * usual(rows), now=0.03 * number)
    assert times.row == pytest.approx(3 * usual(1), rel=0.05)
    for rows in (2, 8, 16, 32):
        assert ratio(times, rows) == pytest.approx(usual(rows) / usual(1), rel=0.15)


def test_a_size_that_grows_dear_moves_its_neighbours_and_not_the_far_ones():
    times = timed()
    for number in range(300):
        times.learn(*((16, 2 * usual(16)) if number % 2 else (1, usual(1))), now=0.02 * number)
    assert ratio(times, 16) == pytest.approx(2 * usual(16) / usual(1), rel=0.1)
    assert ratio(times, 24) > 1.3 * usual(24) / usual(1) and ratio(times, 2) < 1.3
    assert list(times.curve.milliseconds) == sorted(times.curve.milliseconds), "more rows never cost less"


def test_one_pass_that_something_came_between_changes_no_tree():
    times = timed()
    for number in range(50):
        times.learn(16, usual(16), now=0.02 * number)
    before = [ratio(times, rows) for rows in SIZES]
    times.learn(16, 20 * usual(16), now=1.0)
    assert [ratio(times, rows) for rows in SIZES] == pytest.approx(before, rel=2 * CURVE_TOLERANCE)


def test_times_of_a_busy_machine_count_little():
    quiet, busy = timed(), timed()
    for times, contention in ((quiet, 0.0), (busy, 2.0)):
        for number in range(20):
            times.learn(32, 3 * usual(32), contention, 0.02 * number)
            times.learn(1, usual(1), contention, 0.02 * number)
    assert ratio(busy, 32) < 0.8 * ratio(quiet, 32)
    assert timed().sure and not timed(contention=2.0).sure


def test_waiting_without_measure_leaves_costs_that_can_be_kept_and_learned_anew():
    times = timed()
    for number in range(100):
        times.learn(16, 50 * usual(16), 1e12, 0.02 * number)
    again = PassTimes.of(times.state(), age=1e9)
    for number in range(200):
        again.learn(*((16, usual(16)) if number % 2 else (1, usual(1))), now=0.02 * number)
    assert ratio(again, 16) == pytest.approx(usual(16) / usual(1), rel=0.1)


@pytest.mark.parametrize(("rows", "milliseconds"), [(0, 1.0), (SIZES[-1] + 1, 1.0), (4, 0.0)])
def test_a_pass_that_says_nothing_teaches_nothing(rows, milliseconds):
    times = timed()
    before = times.state()
    times.learn(rows, milliseconds)
    assert times.state() == before


def test_a_forward_is_timed_once_and_then_learned_from_the_runs():
    times, asked = timed(), []
    costs = RunCosts(lambda timed: times, "eagle2")
    assert costs.forward(6, lambda: asked.append(1) or 2.0) == pytest.approx(2.0, rel=0.1)
    for _ in range(40):
        times.learn_forward("eagle2 6", 5.0)
    assert costs.forward(6, lambda: asked.append(1) or 2.0) == pytest.approx(5.0, rel=0.1) and len(asked) == 1


@pytest.mark.parametrize("misled", [100.0, 0.01], ids=["dear", "cheap"])
@pytest.mark.parametrize("when", ["first", "later"])
def test_a_forward_whose_time_misled_is_known_again_after_the_next_steps(misled, when):
    times, costs = timed(), RunCosts(lambda _: times, "eagle2")
    costs.forward(6, lambda: misled if when == "first" else 1.0)
    for milliseconds in () if when == "first" else [*[1.0] * 20, misled]:
        times.learn_forward("eagle2 6", milliseconds)
    if when == "later":
        assert costs.forward(6) == pytest.approx(1.0, rel=0.2), "one time among many"
    for _ in range(3):
        times.learn_forward("eagle2 6", 1.0)
    assert costs.forward(6) == pytest.approx(1.0, rel=0.2)
    for _ in range(5):
        times.learn_forward("eagle2 6", misled)
    assert costs.forward(6) == pytest.approx(misled, rel=0.2), "the machine is another one now"


@pytest.mark.parametrize("method", ["eagle2", "ddd", "autoregressive"])
def test_every_step_of_a_run_teaches_and_none_sizes_itself(method):
    """The tree of a round is sized by what was known when the step before it had ended."""
    times, target, told = timed(), tiny_target(), []
    costs = RunCosts(lambda timed: times, method)
    seen = []
    parts = resources(target, GREEDY).using(
        cost_curve=lambda: seen.append(len(told)) or costs.curve(),
        forward_cost=lambda network, rows, taught=True: costs.forward(rows),
    )
    values = {"eagle2": {"depth": 3}, "ddd": {"threshold": "own"}}.get(method, {})
    made = composed(method, values, parts)

    def learn(step):
        told.append(step)
        costs.learn(step)

    decoded = decode(target, replace(made, learn=learn), PROMPT, 30)
    assert told == decoded.steps
    assert times._forwards.keys() == (set() if method == "autoregressive" else {f"{method} 6"})
    if method != "autoregressive":
        assert seen[-1] == len(told) - 1, "the last tree was sized by all steps but its own"


def test_a_draft_that_was_looked_up_says_nothing_of_a_forward(monkeypatch):
    times, target, told = timed(), tiny_target(), []
    costs = RunCosts(lambda timed: times, "howl")
    costs.forward(6)
    monkeypatch.setattr(times, "learn_forward", lambda *asked: told.append(asked))
    made = compose("howl", {"depth": 3, "nodes": 12}, target, GREEDY)
    steps = decode(target, replace(made, learn=costs.learn), [5, 9, 2, 31, 17] * 6, 40).steps
    halves = [step.notes[0].data["half"] for step in steps]
    assert len(told) == halves.count("tree") < len(halves)
