"""Validation of trace files: strict JSON, the shipped schema, then semantic checks."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import fastjsonschema

from specviz.errors import BadTrace
from specviz.trace import metrics
from specviz.trace.meaning import check_end, check_follows, check_step
from specviz.trace.schema import MAX_STEPS, MAX_TEXT, SCHEMA_VERSION, End, Run, Step, Trace
from specviz.trace.wire import MAX_ENDS, MAX_LINE, Record, decoded

MAX_FILE = 32 << 20
"""Most bytes of a trace file."""
MAX_NESTING = 8
"""Levels of free JSON (a note, a run's metrics) below the line itself."""
MAX_VALUES = 16_384
"""Values, keys included, in one such piece of free JSON."""
MAX_DIGITS = 20

SCHEMA_FILE = Path(__file__).with_name("trace.schema.json")

MIGRATIONS: dict[int, Callable[[dict[str, Any]], dict[str, Any]]] = {}
"""Version -> what turns one of its lines into a line of the next version, so that old files stay readable."""


@cache
def schema() -> Mapping[str, Any]:
    """The shipped JSON Schema of one line."""
    line_schema: Mapping[str, Any] = json.loads(SCHEMA_FILE.read_text(encoding="utf-8"))
    return line_schema


@cache
def _checker(kind: str) -> Callable[[Any], Any]:
    """The schema's definition of a line or of a note, compiled.

    That of a step leaves open what a note of some type holds: asking each type in turn would cost more than all the rest, so
    :func:`_check_notes` goes to the one that it is.
    """
    line_schema = {name: part for name, part in schema().items() if name != "oneOf"}
    parts = line_schema["definitions"]
    note = {name: part for name, part in parts["note"].items() if name != "allOf"}
    part_schema = {**line_schema, "definitions": {**parts, "note": note}, "allOf": [{"$ref": f"#/definitions/{kind}"}]}
    checker: Callable[[Any], Any] = fastjsonschema.compile(part_schema, use_default=False)
    return checker


def _integer(text: str) -> int:
    if len(text) > MAX_DIGITS:
        raise BadTrace(f"a whole number has {len(text)} digits; {MAX_DIGITS} are the most there may be.")
    return int(text)


def _fraction(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise BadTrace(f"the number {text[:40]} is too large.")
    return number


def _constant(text: str) -> float:
    raise BadTrace(f"{text} is not JSON; write null for a number that is not known.")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        earlier: set[str] = set()
        repeated = next(name for name, _ in pairs if name in earlier or earlier.add(name))  # type: ignore[func-returns-value]
        raise BadTrace("this key occurs twice in one object.", field=repeated[:80])
    return fields


_DECODER = json.JSONDecoder(object_pairs_hook=_object, parse_int=_integer, parse_float=_fraction, parse_constant=_constant)


def strict_json(text: str) -> Any:
    """The value of a JSON text. Raises BadTrace on anything that is not strict, finite, shallow JSON."""
    try:
        value = _DECODER.decode(text)
        if "\\ud" in text or "\\uD" in text:
            json.dumps(value, ensure_ascii=False).encode("utf-8")
    except json.JSONDecodeError as fault:
        raise BadTrace(f"not JSON ({fault.msg}, at character {fault.pos + 1}).") from None
    except RecursionError:
        raise BadTrace("the JSON is nested too deeply.") from None
    except UnicodeEncodeError:
        raise BadTrace("a text holds half of a surrogate pair (\\ud800 to \\udfff), which is no character.") from None
    return value


def parsed(text: str) -> dict[str, Any]:
    """One line's JSON object. Raises BadTrace on anything else."""
    fields = strict_json(text)
    if not isinstance(fields, dict):
        raise BadTrace('a line is one JSON object, like {"v":1,"seq":0,"kind":"run",...}.')
    return fields


def migrated(fields: dict[str, Any]) -> dict[str, Any]:
    """The same line in today's version. Raises BadTrace on a version that is newer, or that never existed."""
    version = fields.get("v")
    if isinstance(version, bool) or not isinstance(version, int):
        raise BadTrace('there is no version; every line starts with {"v":1,', field="v")
    if version > SCHEMA_VERSION:
        message = f"this file is of version {version}, and this specviz reads up to {SCHEMA_VERSION}; update specviz."
        raise BadTrace(message, field="v")
    while version < SCHEMA_VERSION:
        if version not in MIGRATIONS:
            raise BadTrace(f"version {version} of the format never existed.", field="v")
        fields = {**MIGRATIONS[version](fields), "v": version + 1}
        version += 1
    return fields


def check_shape(fields: Mapping[str, Any]) -> None:
    """Raise BadTrace with the field where a line's object breaks the shipped schema."""
    kind = fields.get("kind")
    if kind not in ("run", "step", "end"):
        raise BadTrace("must be run, step or end.", field="kind")
    try:
        _checker(kind)(fields)
    except fastjsonschema.JsonSchemaValueException as fault:
        raise _complaint(fault) from None
    _check_notes(fields.get("notes", ()))


def _check_notes(notes: Iterable[Mapping[str, Any]]) -> None:
    """Raise BadTrace with the field and the note's type where a note lacks what notes of that type have.

    A type that is not in the schema is a newer version's: such a note stays the plain JSON that it is.
    """
    known = schema()["definitions"]
    for place, note in enumerate(notes):
        name = f"note_{note['type']}"
        if name not in known:
            continue
        try:
            _checker(name)(note)
        except fastjsonschema.JsonSchemaValueException as fault:
            raise _complaint(fault, f"notes[{place}]", f" in a note of type {note['type']}") from None


def shaped(fields: dict[str, Any], seq: int) -> Record:
    """A line's object as its record, once schema, sequence number and the free JSON in it are found good."""
    check_shape(fields)
    if fields["seq"] != seq:
        message = f"is {fields['seq']}, and {seq} lines come before this one; a line is missing or doubled."
        raise BadTrace(message, field="seq")
    for place, note in enumerate(fields.get("notes", ())):
        _check_free(note, f"notes[{place}]")
    _check_free(fields.get("metrics"), "metrics")
    return decoded(fields)


def _complaint(fault: fastjsonschema.JsonSchemaValueException, inside: str = "", of: str = "") -> BadTrace:
    """The schema's complaint, with the field as a path inside the line: ``nodes[3][4]``, ``sampling.top_p``.

    ``inside`` is the path to what was checked where that is no whole line, and ``of`` says what it was.
    """
    where = (inside + str(fault.name).removeprefix("data")).removeprefix(".")
    what = str(fault.message).removeprefix(str(fault.name)).strip()
    names: list[str] = []
    if fault.rule == "required":
        names, what = [name for name in fault.rule_definition if name not in fault.value], "is missing"
    elif fault.rule == "additionalProperties" and isinstance(fault.value, dict):
        known = (fault.definition or {}).get("properties", {})
        names, what = [name for name in fault.value if name not in known], "is no field of this format"
    if names:
        where = f"{where}.{names[0]}" if where else names[0]
    return BadTrace(f"{what[:200]}{of}.", field=where[:200] or None)


def _check_free(value: Any, field: str) -> None:
    """Bound JSON that the schema leaves open: nesting, number of values, length of texts and keys."""
    level: list[Any] = [value]
    count = 0
    for _ in range(MAX_NESTING + 1):
        below: list[Any] = []
        for entry in level:
            kind = type(entry)  # what JSON was read as is of no subclass
            if kind is str:
                if len(entry) > MAX_TEXT:
                    raise BadTrace(f"holds a text of more than {MAX_TEXT} characters.", field=field)
            elif kind is dict:
                below.extend(entry)
                below.extend(entry.values())
            elif kind is list:
                below.extend(entry)
        if not below:
            return
        count += len(below)
        if count > MAX_VALUES:
            raise BadTrace(f"holds more than {MAX_VALUES} values.", field=field)
        level = below
    raise BadTrace(f"is nested more than {MAX_NESTING} levels deep.", field=field)


class Intake:
    """Takes the lines of a trace in their order, refusing the first one that is wrong.

    It keeps counts and the step before, not the records: checking a file takes no more memory than one line of it.
    """

    def __init__(self) -> None:
        self._begun = False
        self._before: Step | None = None
        self._totals = metrics.Totals()
        self._ends = 0
        self._version: int | None = None
        self.count = 0

    def take(self, text: str) -> Record:
        """The next line's record. Raises BadTrace with the line's number and the field that is wrong."""
        try:
            if len(text) > MAX_LINE // 4 and len(text.encode("utf-8", "surrogatepass")) > MAX_LINE:
                raise BadTrace(f"is longer than {MAX_LINE} bytes.")
            fields = parsed(text)
            self._check_version(fields.get("v"))
            record = shaped(migrated(fields), self.count)
            self._place(record)
        except BadTrace as fault:
            raise BadTrace(str(fault), self.count + 1, fault.field) from None
        self.count += 1
        return record

    def _check_version(self, version: Any) -> None:
        if self.count and version != self._version:
            raise BadTrace("is not the version of the first line.", field="v")
        self._version = version

    def _place(self, record: Record) -> None:
        if isinstance(record, Run) == self._begun:
            raise BadTrace("the first line is the run line, and no other is.", field="kind")
        self._begun = True
        if isinstance(record, Step):
            self._take_step(record)
        elif isinstance(record, End):
            self._take_end(record)

    def _take_step(self, step: Step) -> None:
        if self._ends:
            raise BadTrace("a step cannot follow the end.", field="kind")
        if self._totals.steps >= MAX_STEPS:
            raise BadTrace(f"there are more than {MAX_STEPS} steps.", field="index")
        check_step(step)
        check_follows(step, self._before)
        self._before = step
        self._totals.add(step)

    def _take_end(self, end: End) -> None:
        if self._ends >= MAX_ENDS:
            raise BadTrace(f"there are more than {MAX_ENDS} end lines.", field="kind")
        check_end(end)
        self._totals.check(end)
        self._ends += 1


def alone(text: str) -> Record:
    """One line's record without the lines around it. Raises BadTrace with the field that is wrong."""
    fields = migrated(parsed(text))
    return shaped(fields, fields.get("seq", 0))


def records(lines: Iterable[str]) -> Iterator[Record]:
    """The record of each line, checked before it is handed out. Raises BadTrace with line and field."""
    intake = Intake()
    for text in lines:
        yield intake.take(text)
    if not intake.count:
        raise BadTrace("there is no run line; the file is empty.", 1)


def read_lines(lines: Iterable[str]) -> Trace:
    """The trace that these lines hold. Raises BadTrace with line and field."""
    return gathered(records(lines))


def gathered(trace_records: Iterable[Record]) -> Trace:
    """The trace of records that begin with a run's; of several ends the last one counts."""
    remaining = iter(trace_records)
    run, steps, end = next(remaining), [], None
    for record in remaining:
        if isinstance(record, Step):
            steps.append(record)
        elif isinstance(record, End):
            end = record
    assert isinstance(run, Run)
    return Trace(run, tuple(steps), end)


def check(trace: Trace) -> None:
    """The same checks of meaning on a trace in memory. Raises BadTrace naming the step."""
    before: Step | None = None
    for step in trace.steps:
        try:
            check_step(step)
            check_follows(step, before)
        except BadTrace as fault:
            raise BadTrace(f"step {step.index}, {fault.field}: {fault}", field=fault.field) from None
        before = step
    if trace.end is not None:
        check_end(trace.end)
    metrics.check_identities(trace)
