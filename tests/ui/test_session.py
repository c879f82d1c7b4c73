"""Each page has its own memory and its own stop; only runs make visits, and whoever comes later ends nobody's run."""

from __future__ import annotations

import pytest

from specviz.errors import BadInput, SpecvizError
from specviz.ui.session import Visits


def test_two_pages_share_nothing() -> None:
    visits = Visits()
    one, two = visits.enter("one"), visits.enter("two")
    assert one is visits.enter("one") and one is not two and one.memory is not two.memory
    first, second = one.begin(), two.begin()
    assert one.stop()
    assert first.is_set() and not second.is_set()


def test_leaving_ends_the_run_and_forgets_the_page() -> None:
    visits = Visits()
    before = visits.enter("one")
    cancel = before.begin()
    visits.leave("one")
    assert cancel.is_set() and len(visits) == 0
    assert visits.enter("one") is not before
    visits.leave("never came")
    visits.leave(None)


def test_looking_for_a_page_makes_no_visit() -> None:
    visits = Visits()
    assert visits.find("one") is None and visits.find(None) is None and len(visits) == 0
    assert visits.find("one") is not visits.enter("one") is visits.find("one")


def test_newcomers_take_the_place_of_idle_visits_and_never_of_running_ones() -> None:
    visits = Visits(most=3)
    running = visits.enter("one", "a").begin()
    for number in range(20):
        visits.enter(f"idle {number}", f"from {number}")
    assert len(visits) == 3 and visits.find("one") is not None and not running.is_set()


def test_one_address_makes_room_among_its_own() -> None:
    visits = Visits(most=100, each=3)
    visits.enter("theirs", "b")
    for number in range(20):
        visits.enter(f"mine {number}", "a")
    assert len(visits) == 4 and visits.find("theirs") is not None
    assert visits.find("mine 16") is None and visits.find("mine 17") is not None


def test_an_address_whose_visits_all_run_is_told_so_and_others_are_not() -> None:
    visits = Visits(most=100, each=2)
    cancels = [visits.enter(name, "a").begin() for name in ("one", "two")]
    with pytest.raises(SpecvizError, match="2 runs from your address .* Try again when one of them is over"):
        visits.enter("three", "a")
    assert visits.enter("one", "a") is visits.find("one") and visits.enter("four", "b") is visits.find("four")
    assert not any(cancel.is_set() for cancel in cancels)


def test_a_run_that_has_been_shown_is_idle() -> None:
    visits = Visits(most=1)
    visit = visits.enter("one")
    visit.begin()
    assert visit.running
    visit.over.set()
    assert not visit.running
    visits.enter("two")
    assert visits.find("one") is None


def test_a_call_without_a_session_is_refused() -> None:
    with pytest.raises(BadInput, match="reload"):
        Visits().enter(None)


def test_turning_to_something_else_is_not_a_stop() -> None:
    visit = Visits().enter("one")
    cancel = visit.begin()
    visit.stop()
    assert visit.current(cancel), "a stopped run still shows its last steps"
    visit.turn_away()
    assert not visit.current(cancel), "a run that was left must not come back over what is shown now"
