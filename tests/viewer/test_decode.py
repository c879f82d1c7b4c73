"""What comes in a line, checked once: what is wrong in it is put away, nulled or emptied before any panel reads it."""

import pytest

from tests.support.viewer import cases
from tests.support.viewer.panes import PAGE, step

GROWTH = {"beams": [[0], [1]], "value": [0, -0.2, -1.9], "kept": 3, "considered": 2}
NOTE = "return parseStep(given).notes[0];"


@pytest.mark.parametrize("wrong", [{"kept": "3"}, {"kept": 1.5}, {"kept": None}, {"beams": [[0], ["x"]]}, {"value": {"0": 1}}])
def test_a_note_that_is_not_as_its_type_promises_is_listed_as_it_came(node, wrong):
    came = step("growth", GROWTH | wrong)
    assert node(NOTE, came) == {"type": None, "source": came["notes"][0]}
    said = node(PAGE + "return said(pane);", {"step": came})
    assert "This note does not match its type" in said and "considered" in said


def test_a_field_that_may_be_null_is_null_where_it_is_wrong_and_missing_lists_are_empty(node):
    assert node(NOTE, step("growth", GROWTH | {"depth": {"levels": "many"}}))["depth"] is None
    mass = {"mass": [-0.1], "tested": [1], "threshold": -0.5, "stopped": None, "limit": 4}
    assert node(NOTE, step("beam_mass", mass)) == {"type": "beam_mass", **mass, "below": [], "forward": None}


def test_a_note_of_another_type_stays_as_it_is(node):
    assert node(NOTE, step("of_tomorrow", {"what": [1]})) == {"type": "of_tomorrow", "what": [1]}


def test_a_run_and_its_end_are_made_whole(node):
    """A stranger's file is shown as far as it can be read."""
    body = "const one = feed(); one.accept(given); return [one.trace.run, one.trace.end];"
    baseline = {"token_ns": [5, "x"], "prefill_ns": -1, "equal": "yes"}
    damaged = [cases.run(prompt=7, warnings="!", grid=[2], sampling=[]), cases.end(1, message=None, baseline=baseline)]
    run, end = node(body, cases.text(damaged))
    assert (run["prompt"], run["warnings"], run["grid"], run["sampling"]["temperature"], run["bound"]) == ("", [], None, 0, "")
    assert end["message"] == "" and end["baseline"]["token_ns"] == [] and end["baseline"]["equal"] is False
