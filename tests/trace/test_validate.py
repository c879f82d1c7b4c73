"""A stranger's trace file is taken as it is or refused, naming the line and the field that is wrong; nothing else."""

import json
import random
import re
import tomllib
from pathlib import Path

import jsonschema
import pytest
from msgspec import inspect

from specviz.errors import BadTrace
from specviz.trace import export, json_schema, schema, store, validate, wire
from specviz.trace.notes import NOTE_TYPES
from tests.support.traces.examples import example
from tests.support.traces.mutations import changed_value, mutated
from tests.support.traces.samples import METHODS, lines, sample_trace

PLAIN = lines(sample_trace(4, method="relaxed"))


def refused(content):
    """The error that this file meets."""
    with pytest.raises(BadTrace) as fault:
        store.read(content)
    return fault.value


def edited(place, change):
    """The sample file with one line's object changed."""
    found = json.loads(PLAIN[place])
    change(found)
    return "\n".join([*PLAIN[:place], json.dumps(found), *PLAIN[place + 1 :]])


def test_samples_are_valid_also_while_the_run_goes_on():
    for method in METHODS:
        for trace in (sample_trace(3, method=method), sample_trace(3, method=method, ended=False)):
            assert store.read(store.text(trace)) == trace
    assert store.read(PLAIN[0]).end is None


WRONG = tomllib.loads(Path(__file__).with_name("wrong.toml").read_text("utf-8")) | {
    name: {"line": 2, "at": [field], "to": value, "field": field}
    for name, field, value in (
        ("too many nodes", "nodes", json.loads(PLAIN[2])["nodes"] * 400),
        ("too many notes", "notes", [{"type": "x"}] * 17),
        ("a note of many values", "notes", [{"type": "x", "a": [0] * 20_000}]),
        ("a note with a long text", "notes", [{"type": "x", "a": "y" * 5000}]),
        ("a token text that is long", "pieces", ["y" * 5000]),
    )
}


@pytest.mark.parametrize("name", WRONG)
def test_the_wrong_line_and_field_are_named(name):
    case = WRONG[name]
    *path, last = case["at"]

    def change(part):
        for step in path:
            part = part[step]
        if "add" in case:
            part[last].append(case["add"])
        elif "to" in case:
            part[last] = case["to"]
        else:
            part.pop(last)

    place = case["line"] % len(PLAIN)
    fault = refused(edited(place, change))
    assert fault.line == place + 1
    assert fault.field.startswith(case["field"])
    assert str(fault).startswith(f"line {place + 1}, {case['field']}")


def test_a_second_run_and_a_baselines_picture_of_an_equal_run_are_refused():
    assert refused("\n".join([PLAIN[0], PLAIN[0].replace('"seq":0', '"seq":1')])).field == "kind"
    equal = edited(len(PLAIN) - 1, lambda o: o["baseline"].update(first_divergence=None, picture="AA"))
    assert refused(equal).field == "baseline.picture"


RAW = {
    "NaN": (b'{"v":2,"seq":0,"kind":"run","p":NaN}', "not JSON"),
    "infinity": (b'{"v":2,"p":-Infinity}', "not JSON"),
    "a number that overflows": (b'{"v":2,"p":1e999}', "too large"),
    "a whole number of many digits": (b'{"v":2,"p":' + b"7" * 100_000 + b"}", "out of range"),
    "deep lists": (b"[" * 500_000, "nested too deeply"),
    "deep objects": (b'{"a":' * 100_000, "nested too deeply"),
    "not UTF-8": (b'{"v":2,"target":"\xff\xfe"}', "not UTF-8"),
    "half of a surrogate pair": (b'{"v":2,"target":"\\ud800"}', "not JSON"),
    "a line that is a list": (b"[1,2]", "one JSON object"),
    "a line that is no JSON": (b"hello {", "not JSON"),
    "no version": (b'{"kind":"run"}', "line 1, v: the version is missing"),
    "version true": (b'{"v":true}', "the version is missing"),
    "version 0": (b'{"v":0}', "version 0, but this specviz reads versions 1 to"),
    "a newer version": (b'{"v":99}', "version 99.*update specviz"),
    "an empty file": (b"", "the file is empty"),
    "a blank line": (b"\n\n", "line 1.*not JSON"),
    "a kind that is a list": (b'{"v":2,"kind":["run"]}', "line 1, kind"),
    "a line of two megabytes": (b'{"v":2,"kind":"' + b"x" * (2 << 20) + b'"}', "longer than 1048576 bytes"),
    "a file of 33 megabytes": (b" " * (33 << 20), "larger than 32 MiB"),
}


@pytest.mark.parametrize("name", RAW)
def test_hostile_bytes_are_refused_in_a_sentence(name):
    content, told = RAW[name]
    assert re.search(told, str(refused(content)))


def test_a_step_after_a_cut_or_an_end_is_refused():
    trace = sample_trace(3, reason="budget")
    after = sample_trace(4, reason="cancelled").steps[3]
    assert "must be the last one" in str(refused("\n".join(lines(trace)[:-1] + [wire.line(after, 4)])))
    assert "cannot follow the end" in str(refused("\n".join(lines(trace) + [wire.line(after, 5)])))


def test_a_third_end_is_refused_before_anything_is_counted_again(monkeypatch):
    trace, checked = sample_trace(3), []
    ends = [wire.line(trace.end, place) for place in range(4, 4000)]
    assert store.read("\n".join([*lines(trace)[:-1], *ends[:2]])) == trace
    whole = validate._check_baseline
    monkeypatch.setattr(validate, "_check_baseline", lambda end, baseline: (checked.append(end), whole(end, baseline)))
    fault = refused("\n".join([*lines(trace)[:-1], *ends]))
    assert fault.line == 7 and "more than 2 end lines" in str(fault) and len(checked) == 2


def test_a_script_in_a_token_is_only_text():
    shout = "<script>alert(1)</script><img src=x onerror=alert(1)>"
    trace = store.read(edited(1, lambda o: o["nodes"][1].__setitem__(2, shout)))
    assert trace.steps[0].nodes[1].text == shout


def test_a_file_from_windows_is_read():
    assert store.read("\r\n".join(PLAIN).encode()) == store.read("\n".join(PLAIN))


def test_a_file_of_version_1_is_read_with_the_notes_names_of_today():
    assert set(validate.RENAMED_NOTES.values()) <= set(NOTE_TYPES) and not set(validate.RENAMED_NOTES) & set(NOTE_TYPES)
    whole = [example(inspect.type_info(kind), True).to_note() for kind in NOTE_TYPES.values()]
    trace = sample_trace(len(whole))
    trace = trace.replace(steps=tuple(step.replace(notes=(note,)) for step, note in zip(trace.steps, whole, strict=True)))
    text = store.text(trace).replace('{"v":2,', '{"v":1,')
    for before, now in validate.RENAMED_NOTES.items():
        assert f'"type":"{now}"' in text
        text = text.replace(f'"type":"{now}"', f'"type":"{before}"')
    assert '"with_probe":' in text
    text = text.replace('"with_probe":', '"probed":')
    assert store.read(text) == trace
    mixed = text.replace('{"v":1,', '{"v":2,', 1)
    assert refused(mixed).field == "v" and refused(mixed).line == 2


@pytest.mark.parametrize("files", [400, pytest.param(4_000, marks=pytest.mark.slow)])
def test_thousands_of_mutated_files_are_read_or_refused_and_never_crash(files):
    generator = random.Random(20_260)
    bases = [lines(sample_trace(2, seed=2, method=method, nodes=8)) for method in ("relaxed", "prompt_lookup")]
    taken = 0
    for number in range(files):
        content = mutated(bases[number % 2], generator)
        try:
            trace = store.read(content)
        except BadTrace:
            continue
        taken += 1
        for kind in ("summary", "perfetto", "graphml", "nodelink") if trace.steps else ("summary", "perfetto"):
            export.content(trace, kind, 0)
        assert store.read(store.text(trace)) == trace, "what was read is written and read again as it was"
    assert files // 100 < taken < files * 9 // 10  # the changes are neither all harmless nor all fatal


def test_our_checks_and_the_shipped_schema_agree_on_mutated_lines():
    checker = jsonschema.Draft202012Validator(json_schema.schema())
    generator = random.Random(7)
    seen = {True: 0, False: 0}
    for number in range(300):
        found = changed_value(json.loads(PLAIN[number % len(PLAIN)]), generator)
        if not isinstance(found, dict) or (fits := _fits(found)) is None:
            continue
        good = checker.is_valid(found)
        assert fits == good, found
        seen[good] += 1
    assert min(seen.values()) > 25


def _fits(found):
    """Whether the line is taken; None for what a schema cannot say: some refusals, and lines of an older version."""
    if found.get("v") == 1:
        return None
    try:
        validate.alone(json.dumps(found))
    except BadTrace as fault:
        return None if re.search("^(holds a |is nested)", str(fault)) else False
    return True


def test_the_schema_is_one_and_knows_every_word_of_the_format():
    found = json_schema.schema()
    jsonschema.Draft202012Validator.check_schema(found)
    parts = found["$defs"]
    assert "|".join(schema.STATUSES) in parts["Node"]["prefixItems"][5]["pattern"]
    assert "|".join(schema.RULES) in parts["Step"]["properties"]["rule"]["pattern"]
    assert parts["Run"]["properties"]["v"]["const"] == schema.SCHEMA_VERSION
    assert parts["Step"]["properties"]["index"]["maximum"] == schema.MAX_STEPS - 1
    for record in (schema.Run, schema.Step, schema.End):
        assert set(parts[record.__name__]["properties"]) - {"v", "seq", "kind"} == set(record.__struct_fields__)
    assert parts["GrowthNote"]["properties"]["kept"]["description"].startswith("Number of nodes sent to the target")
