"""What a stage is given: a recorded run whole, of a live run only how it is now."""

from __future__ import annotations

import json

import pytest

from specviz.ui.stream.feed import Feed, recorded


def read(text: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in text.splitlines()]


@pytest.mark.parametrize(
    ("state", "said"),
    [
        ({}, {}),
        ({"message": "Loading", "fraction": 0.0}, {"message": "Loading", "fraction": 0.0}),
        ({"message": "Loading", "follow": True}, {"follow": True}),
        ({"follow": True, "timing": True}, {"follow": True, "baseline": "being timed now, on the same prompt"}),
        ({"follow": True, "error": 'broke\n{"kind":"end"}'}, {"follow": True, "error": 'broke\n{"kind":"end"}'}),
    ],
)
def test_a_live_run_is_one_line_that_says_how_it_is_now(state: dict[str, object], said: dict[str, object]) -> None:
    run = 'a"\n{"kind":"run"}'
    expected = {"kind": "stage", "mode": "live", "run": run, "baseline": "", **said}
    assert read(Feed(run, **state).text) == [expected]  # type: ignore[arg-type]


def test_a_recorded_run_is_marked_as_such() -> None:
    control, line = read(recorded("sky", '{"seq":0}\n'))
    assert (control["mode"], control["run"], line["seq"]) == ("recorded", "sky", 0)
