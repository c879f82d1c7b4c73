"""Every type of note is read as it was written, refused where a field is missing or mistyped, and drawn by a panel."""

from pathlib import Path

import pytest
from msgspec import inspect, structs
from msgspec.structs import replace

from specviz.errors import BadTrace
from specviz.trace import json_schema, store, validate, wire
from specviz.trace.notes import NOTE_TYPES
from specviz.trace.schema import Note
from tests.support.traces.examples import example
from tests.support.traces.samples import sample_trace

ROOT = Path(__file__).parents[2]
TRACES = sorted((ROOT / "assets" / "traces").glob("*.spectrace.jsonl.gz"))
SHIPPED = json_schema.schema()["$defs"]


def made(name, whole=True):
    """A note of this type."""
    return example(inspect.type_info(NOTE_TYPES[name]), whole)


def needed(name):
    """The fields that a note of this type must have."""
    return [field.encode_name for field in structs.fields(NOTE_TYPES[name]) if field.required]


def line(note):
    """The line of a step with this note and no other."""
    return wire.line(replace(sample_trace(1).steps[0], notes=(note,)), 1)


def back(note):
    """The note once it was written to a line and read again."""
    return validate.alone(line(note)).notes[0]


def refused(note):
    with pytest.raises(BadTrace) as fault:
        validate.alone(line(note))
    return fault.value


@pytest.mark.spread(16)
@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("name", NOTE_TYPES)
def test_a_note_of_every_type_comes_back_as_it_was(name, whole):
    note = made(name, whole)
    found = back(note.to_note())
    assert found.type == name and NOTE_TYPES[name].of(found) == note
    names = [field.encode_name for field in structs.fields(note)] if whole else needed(name)
    assert set(found.data) == set(names)


@pytest.mark.parametrize("name", NOTE_TYPES)
def test_a_missing_field_is_refused_by_name(name):
    whole = made(name).to_note()
    assert needed(name)
    for key in needed(name):
        fault = refused(Note(name, {one: value for one, value in whole.data.items() if one != key}))
        assert fault.field == f"notes[0].{key}" and str(fault) == f"is missing in a note of type {name}."


@pytest.mark.spread(8)
@pytest.mark.parametrize("name", NOTE_TYPES)
def test_a_mistyped_field_is_refused_by_name(name):
    whole = made(name).to_note()
    for key in whole.data:
        for wrong in ([[{"not": "this"}]], True if whole.data[key] is not True else "yes"):
            fault = refused(Note(name, {**whole.data, key: wrong}))
            assert fault.field.startswith(f"notes[0].{key}")
            assert f"in a note of type {name}." in str(fault)


def test_a_wrong_value_deep_inside_is_found():
    data = {"beams": [[0], [1, "2"]], "value": [0.0, -1.0], "kept": 2, "considered": 1}
    fault = refused(Note("growth", data))
    assert fault.field == "notes[0].beams[1][1]" and str(fault) == "expected `int`, got `str` in a note of type growth."


def test_notes_of_a_newer_version_stay_plain_json():
    strange = Note("from_the_future", {"beams": "none", "deep": [{"a": [1, None]}]})
    assert back(strange) == strange
    more = Note("coarse_codes", {"codes": [1], "fine": [1, 2], "shading": "blue"})
    assert back(more) == more and NOTE_TYPES["coarse_codes"].of(back(more)) == NOTE_TYPES["coarse_codes"](codes=[1], fine=[1, 2])


def test_neighbours_of_an_older_trace_are_a_list():
    judged = {
        "node": 1,
        "p": 0.1,
        "q": 1.0,
        "limit": 0.1,
        "count": 1,
        "moved": 0.05,
        "near": [4, 7],
        "mass": [0.05],
        "sums": [[1, 0.05]],
    }
    note = Note("relaxed", {"k": 10, "form": "exact", "delta": 0.1, "nodes": [judged]})
    assert back(note) == note


@pytest.mark.parametrize("file", TRACES, ids=lambda file: file.name.split(".")[0])
def test_recorded_traces_are_valid_and_hold_no_field_that_is_not_described(file):
    told = [note for step in store.read(file).steps for note in step.notes]
    unknown = {
        f"{note.type}.{path}"
        for note in told
        for path in _strange({"$ref": f"#/$defs/{NOTE_TYPES[note.type].__name__}"}, dict(note.data), "")
    }
    assert not unknown


def _strange(known, value, path):
    """Keys in ``value`` that its schema does not have."""
    for part in known.get("anyOf", ()):
        known = part if "$ref" in part or "items" in part else known
    if "$ref" in known:
        known = SHIPPED[known["$ref"].removeprefix("#/$defs/")]
    if isinstance(value, list) and isinstance(known.get("items"), dict):
        return {one for entry in value for one in _strange(known["items"], entry, path)}
    if not isinstance(value, dict) or "properties" not in known:
        return set()
    found = {f"{path}{key}" for key in value if key not in known["properties"]}
    inside = (
        _strange(known["properties"][key], one, f"{path}{key}.") for key, one in value.items() if key in known["properties"]
    )
    return found.union(*inside)


def test_the_shipped_schema_is_the_one_that_the_types_give():
    remake = 'run: python -c "from specviz.trace import json_schema; json_schema.write()"'
    assert json_schema.FILE.read_text(encoding="utf-8") == json_schema.text(), remake
    assert json_schema.TYPES.read_text(encoding="utf-8") == json_schema.declarations(), remake


def test_every_note_type_has_a_panel_of_its_name():
    panels = {file.stem for file in (ROOT / "specviz" / "viewer" / "js" / "notes").glob("*.js")}
    assert panels == set(NOTE_TYPES)
