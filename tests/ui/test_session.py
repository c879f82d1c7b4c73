"""Each open page has its own memory and its own stop; a page that is closed is forgotten."""

from __future__ import annotations

import pytest

from specviz.errors import BadInput
from specviz.ui.session import Visits


def test_two_pages_share_nothing() -> None:
    visits = Visits()
    one, two = visits.of("one"), visits.of("two")
    assert one is visits.of("one") and one is not two and one.memory is not two.memory
    first, second = one.begin(), two.begin()
    assert one.stop()
    assert first.is_set() and not second.is_set()


def test_leaving_ends_the_run_and_forgets_the_page() -> None:
    visits = Visits()
    before = visits.of("one")
    cancel = before.begin()
    visits.leave("one")
    assert cancel.is_set() and len(visits) == 0
    assert visits.of("one") is not before
    visits.leave("never came")
    visits.leave(None)


def test_pages_are_bounded_and_the_longest_idle_goes_first() -> None:
    visits = Visits(most=2)
    oldest = visits.of("one").begin()
    kept = visits.of("two").begin()
    visits.of("three")
    assert len(visits) == 2 and oldest.is_set() and not kept.is_set()


def test_a_call_without_a_session_is_refused() -> None:
    with pytest.raises(BadInput, match="reload"):
        Visits().of(None)


def test_turning_to_something_else_is_not_a_stop() -> None:
    visit = Visits().of("one")
    cancel = visit.begin()
    visit.stop()
    assert visit.current(cancel), "a stopped run still shows its last steps"
    visit.turn_away()
    assert not visit.current(cancel), "a run that was left must not come back over what is shown now"
