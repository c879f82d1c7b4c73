"""Recorded runs are found by their index; without one the page still opens."""

import pytest

from specviz.errors import BadInput, BadTrace
from specviz.trace import store
from specviz.trace.schema import Note
from specviz.trace.store import TraceStore
from specviz.ui.archive import MINE, Archive, Gallery, choices, title
from specviz.ui.settings import Settings
from tests.support.fakes.ui import gallery
from tests.support.traces.samples import lines, sample_trace


def test_the_index_names_the_runs_and_the_one_that_opens(tmp_path):
    found = Gallery(gallery(tmp_path, ("stand", "prompt_lookup")))
    assert list(found.by_family().values()) == [[("A run of prompt_lookup", "prompt_lookup"), ("A run of stand", "stand")]]
    assert found.default.name == "stand" and found.default.trace.run.method == "stand"
    other = found.of_method("prompt_lookup")
    assert other.name == "prompt_lookup" and found.of_method("autoregressive") is None


def test_runs_recorded_on_a_gpu_are_a_group_of_their_own(tmp_path):
    folder = gallery(tmp_path, ("stand", "prompt_lookup"))
    run = folder / "stand.spectrace.jsonl"
    run.write_text(run.read_text("utf-8").replace('"device":"cpu"', '"device":"cuda:0"', 1), encoding="utf-8")
    found = Gallery(folder).by_family()
    assert found["Recorded on a GPU"] == [("A run of stand", "stand")] and len(found) == 2


def test_the_page_opens_on_a_greedy_run_that_is_twice_as_fast_and_writes_a_program_that_ran():
    opening = Gallery(Settings().traces).default
    assert opening.run.sampling.temperature == 0 and "passed its check" in opening.note
    assert opening.end.baseline.equal
    assert opening.end.reason == "eos" and 2 <= opening.end.metrics["speedup"] <= 3 and opening.end.message == ""


def test_without_recordings_there_is_nothing_and_no_error(tmp_path):
    empty = Gallery(tmp_path)
    assert empty.default is None and empty.by_family() == {}
    with pytest.raises(BadInput, match="none here"):
        empty.get("stand")
    assert Archive(empty, TraceStore()).feed("") == ""


@pytest.mark.parametrize("text", ["", "[]", '{"note": "without a title"}'])
def test_a_file_that_describes_no_run_is_named(tmp_path, text):
    (tmp_path / "sky.json").write_text(text, encoding="utf-8")
    with pytest.raises(BadTrace, match="sky.json"):
        Gallery(tmp_path)


def test_a_recording_that_is_gone_is_named(tmp_path):
    found = Gallery(gallery(tmp_path, ("stand",)))
    (tmp_path / "stand.spectrace.jsonl").unlink()
    with pytest.raises(BadInput, match="stand"):
        found.get("stand").trace  # noqa: B018


def test_what_was_run_and_how_it_ended_are_known_without_the_steps(tmp_path):
    found = Gallery(gallery(tmp_path, ("stand",))).get("stand")
    file = tmp_path / "stand.spectrace.jsonl"
    whole = store.read(file)
    first, *steps, last = file.read_text("utf-8").splitlines()
    file.write_text("\n".join((first, *("x" for _ in steps), last)) + "\n", encoding="utf-8")
    assert (found.run, found.end) == (whole.run, whole.end)
    file.write_text("\n".join((first, *steps)) + "\n", encoding="utf-8")
    assert Gallery(tmp_path).get("stand").end is None
    file.write_text(steps[0] + "\n", encoding="utf-8")
    with pytest.raises(BadTrace, match="does not begin with a run record"):
        Gallery(tmp_path).get("stand").run  # noqa: B018


def test_a_file_of_version_1_is_given_to_the_stage_in_the_version_of_today(tmp_path):
    found, file = Gallery(gallery(tmp_path, ("stand",))).get("stand"), tmp_path / "stand.spectrace.jsonl"
    note = Note("beam_mass", {"mass": [-0.5], "tested": [1], "threshold": -1.0, "stopped": None, "limit": 4})
    trace = found.trace.replace(steps=tuple(step.replace(notes=(note,)) for step in found.trace.steps))
    text = store.text(trace)
    file.write_text(text.replace('{"v":2,', '{"v":1,').replace('"type":"beam_mass"', '"type":"mass"'), encoding="utf-8")
    old = Gallery(tmp_path).get("stand")
    assert old.text == text and old.trace == trace
    file.write_text(file.read_text("utf-8").replace('"seq":3', '"seq":9', 1), encoding="utf-8")
    with pytest.raises(BadTrace, match="line 4"):
        Gallery(tmp_path).get("stand").text  # noqa: B018


def test_kept_runs_come_first_under_names_that_no_link_carries(tmp_path):
    archive = Archive(Gallery(gallery(tmp_path, ("stand",))), TraceStore())
    trace = sample_trace(4, method="prompt_lookup")
    name = MINE + archive.store.new(lines(trace))
    assert archive.trace(name) == trace and '"mode":"recorded"' in archive.feed(name)
    assert choices(archive, [("old", "mine:1"), (title(trace.run), name)])[0] == (title(trace.run), name)
    with pytest.raises(BadInput, match="no longer on the server"):
        archive.text(MINE + "guess")


@pytest.mark.slow
def test_the_shipped_index_is_whole():
    for recording in Gallery(Settings().traces).recordings.values():
        assert recording.trace.end is not None and recording.trace.steps, recording.name
