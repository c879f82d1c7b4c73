"""The load suite counts truly: who was served, refused, left or waited, what a file came to, and what the app was left with."""

import pytest

from specviz.bench import load
from specviz.bench.visitor import Form, Outcome, Visitor
from specviz.trace import store
from tests.support.fakes.ui import FakeEngine, app
from tests.support.pages.served import served


@pytest.fixture(scope="module")
def engine():
    return FakeEngine(steps=4, pace=0.02)


@pytest.fixture(scope="module")
def address(tmp_path_factory, engine):
    built, url = served(app(tmp_path_factory.mktemp("app"), engine, max_waiting=2))
    yield url
    built.close()


def test_a_visitor_sees_what_was_asked_for_from_its_first_update_to_its_end(address, engine):
    seen = Visitor(Form(address)).press(load.SHORT)
    assert seen.served
    assert seen.first_update <= seen.first_step <= seen.over and seen.decoding > 0
    asked = engine.asked[-1]
    assert (asked.method, asked.max_new_tokens, asked.baseline) == ("prompt_lookup", 32, False)


def test_a_visitor_who_leaves_is_counted_apart_and_frees_the_engine(address, engine):
    form = Form(address)
    engine.steps, before = 900, engine.cancelled
    seen = Visitor(form).press(load.SHORT, lambda seen: seen.first_step is not None)
    engine.steps = 4
    assert seen.left and not seen.served
    assert Visitor(form).press(load.SHORT).served and engine.cancelled == before + 1


def test_a_run_without_its_end_is_lost():
    cut = Outcome()
    for seconds, line in enumerate(('data: {"kind":"step"}', 'data: {"msg":"close_stream"}')):
        cut.take(line, seconds)
    assert (cut.first_step, cut.over) == (0, 1) and not cut.served
    cut.take('data: {"kind":"end","metrics":{"seconds":{"total":0.5},"emitted":3}}', 2)
    assert cut.served and cut.tokens == 3


def test_a_long_trace_has_the_steps_asked_for():
    assert len(store.read(load.long_trace(120)).steps) == 120
