"""Each page has its own memory and its own stop; only runs open sessions, and whoever comes later ends nobody's run."""

import pytest

from specviz.errors import BadInput, SpecvizError
from specviz.ui.access import Caller, PageSessions


def test_two_pages_share_nothing():
    pages = PageSessions()
    one, two = pages.enter(Caller("one")), pages.enter(Caller("two"))
    assert one is pages.enter(Caller("one")) and one is not two and one.memory is not two.memory
    first, second = one.begin(), two.begin()
    assert one.stop()
    assert first.is_set() and not second.is_set()


def test_leaving_ends_the_run_and_forgets_the_page():
    pages = PageSessions()
    before = pages.enter(Caller("one"))
    cancel = before.begin()
    pages.leave("one")
    assert cancel.is_set() and len(pages) == 0
    assert pages.enter(Caller("one")) is not before
    pages.leave("never came")
    pages.leave(None)


def test_newcomers_take_the_place_of_idle_pages_and_never_of_running_ones():
    pages = PageSessions(most=3)
    running = pages.enter(Caller("one", "a")).begin()
    for number in range(20):
        pages.enter(Caller(f"idle {number}", f"from {number}"))
    assert len(pages) == 3 and pages.find("one") is not None and not running.is_set()


def test_one_address_makes_room_among_its_own():
    pages = PageSessions(most=100, each=3)
    pages.enter(Caller("theirs", "b"))
    for number in range(20):
        pages.enter(Caller(f"mine {number}", "a"))
    assert len(pages) == 4 and pages.find("theirs") is not None
    assert pages.find("mine 16") is None and pages.find("mine 17") is not None


def test_an_address_whose_pages_all_run_is_told_so_and_others_are_not():
    pages = PageSessions(most=100, each=2)
    cancels = [pages.enter(Caller(name, "a")).begin() for name in ("one", "two")]
    with pytest.raises(SpecvizError, match="2 runs are already waiting or running.* Try again when one of these runs is over"):
        pages.enter(Caller("three", "a"))
    assert pages.enter(Caller("one", "a")) is pages.find("one") and pages.enter(Caller("four", "b")) is pages.find("four")
    assert not any(cancel.is_set() for cancel in cancels)


def test_a_run_that_has_been_shown_is_idle():
    pages = PageSessions(most=1)
    page = pages.enter(Caller("one"))
    page.begin()
    assert page.running
    page.over.set()
    assert not page.running
    pages.enter(Caller("two"))
    assert pages.find("one") is None


def test_a_call_without_a_session_is_refused():
    with pytest.raises(BadInput, match="reload"):
        PageSessions().enter(Caller(None))


def test_turning_to_something_else_is_not_a_stop():
    page = PageSessions().enter(Caller("one"))
    cancel = page.begin()
    page.stop()
    assert page.current(cancel), "a stopped run still shows its last steps"
    page.turn_away()
    assert not page.current(cancel), "a run that was left must not come back over what is shown now"
