"""The text a stage reads only grows, until a new segment of the same run begins."""

from __future__ import annotations

import json

from specviz.ui.stream.feed import Feed, recorded


def read(text: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in text.splitlines()]


def test_a_live_run_grows_at_its_end() -> None:
    feed = Feed("key")
    states = [feed.text]
    feed.say("Loading")
    states.append(feed.text)
    feed.add(['{"seq":0}', '{"seq":1}'])
    states.append(feed.text)
    assert all(after.startswith(before) for before, after in zip(states, states[1:], strict=False))
    first, said, *lines = read(feed.text)
    assert (first["mode"], first["run"], said["message"]) == ("live", "key", "Loading")
    assert lines == [{"seq": 0}, {"seq": 1}]


def test_a_long_run_goes_on_in_segments_that_name_it() -> None:
    feed = Feed("key", segment=200)
    seen: dict[int, bool] = {}
    for number in range(100):
        feed.add([json.dumps({"seq": number})])
        control, *lines = read(feed.text)
        assert control["run"] == "key" and len(feed.text) < 300
        assert lines[0]["seq"] == control.get("first", 0)
        seen |= {int(str(line["seq"])): True for line in lines}
    assert sorted(seen) == list(range(100))


def test_hostile_names_and_messages_stay_inside_the_control_line() -> None:
    feed = Feed('a"\n{"kind":"run"}')
    feed.fail('broke\n{"kind":"end"}')
    assert [one["kind"] for one in read(feed.text)] == ["stage", "stage"]


def test_a_recorded_run_is_marked_as_such() -> None:
    control, line = read(recorded("sky", '{"seq":0}\n'))
    assert (control["mode"], control["run"], line["seq"]) == ("recorded", "sky", 0)
