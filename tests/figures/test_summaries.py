"""Accepted lengths, acceptance by depth and time shares."""

import pytest

from specviz import figures
from specviz.trace.notes.models import ServedNote
from specviz.trace.schema import Nanoseconds
from tests.support.traces.made import MS, SILENT, TREE, trace


def test_drafts_that_a_server_counted_without_naming_them_are_drawn():
    step = TREE.replace(notes=(ServedNote(batch=1, untold=2).to_note(),))
    (points,) = figures.acceptance_by_depth(trace(step)).data
    assert [text.partition(" of ")[2] for text in points.hovertext] == ["1 steps"] * (len(TREE.path) + 1) and points.y[-1] == 0


@pytest.mark.spread(1)
@pytest.mark.parametrize("name", ["accepted_length", "acceptance_by_depth", "time_shares", "speed_explained"])
def test_a_run_without_steps_is_drawn_empty(name):
    for begun in (trace(ended=False), trace(plain_ms=40), trace(plain_ms=None)):
        assert getattr(figures, name)(begun).layout.title.text


def test_a_recording_of_accepted_paths_alone_is_said_to_lack_the_rejected_tokens():
    figure = figures.acceptance_by_depth(trace(SILENT.replace(verified=5)))
    assert figure.layout.title.subtitle.text == "the rejected tokens were not recorded"
    assert figures.acceptance_by_depth(trace(SILENT)).layout.title.subtitle.text == "nothing was drafted"


def test_only_phases_that_were_timed_have_a_bar():
    figure = figures.time_shares(trace(TREE.replace(time=Nanoseconds(host=MS))))
    assert list(figure.data[0].y) == ["host"] and figure.layout.title.subtitle.text.endswith("its phases were not recorded")
    assert len(figures.time_shares(trace(TREE)).data[0].y) == 5


def test_the_hover_of_accepted_lengths_claims_no_bonus_token():
    assert figures.accepted_length(trace(TREE)).data[0].hovertext[-1] == "1 of 1 steps accepted 2"
