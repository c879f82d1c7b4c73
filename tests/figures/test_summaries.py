"""Accepted lengths, acceptance by depth and time shares."""

import pytest

from specviz import figures
from specviz.trace.notes.models import ServedNote
from tests.support.traces.made import TREE, trace


def test_drafts_that_a_server_counted_without_naming_them_are_drawn():
    step = TREE.replace(notes=(ServedNote(batch=1, untold=2).to_note(),))
    (points,) = figures.acceptance_by_depth(trace(step)).data
    assert [text.partition(" of ")[2] for text in points.hovertext] == ["1 steps"] * (len(TREE.path) + 1) and points.y[-1] == 0


@pytest.mark.spread(1)
@pytest.mark.parametrize("name", ["accepted_length", "acceptance_by_depth", "time_shares", "speed_explained"])
def test_a_run_without_steps_is_drawn_empty(name):
    for begun in (trace(ended=False), trace(plain_ms=40), trace(plain_ms=None)):
        assert getattr(figures, name)(begun).layout.title.text
