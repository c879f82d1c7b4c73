"""Wire format: encoding of records as lines of a trace file, with compact arrays and five significant digits, and decoding."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import msgspec

from specviz.errors import BadTrace
from specviz.trace.notes import NOTE_TYPES
from specviz.trace.schema import (
    MAX_STEPS,
    MAX_TEXT,
    PHASES,
    SCHEMA_VERSION,
    End,
    Metrics,
    Note,
    NoteType,
    Run,
    Step,
    rounded,
    whole,
)

Record = Run | Step | End
LineNumber = Annotated[int, msgspec.Meta(ge=0, le=MAX_STEPS + 100, description="Index of this line, from 0.")]

MAX_LINE = 1 << 20
"""Maximum size of one line in bytes, without the line end."""
MAX_ENDS = 2
"""Maximum number of end lines in a file: one at the end of the run, and one that adds the baseline."""
MAX_NESTING = 8
"""Maximum nesting depth of free-form JSON: a note, or the metrics of a run."""
MAX_VALUES = 16_384
"""Maximum number of values and keys in free-form JSON."""
_PACKED = 2048
"""Size in bytes from which a note read from a file stays JSON text in memory."""


def line(record: Record, seq: int) -> str:
    """Encode ``record`` as line ``seq`` (from 0) of a file, without line end.

    Raises BadTrace for values that JSON cannot represent and for a line longer than ``MAX_LINE``.
    """
    name = f"Step {record.index}" if isinstance(record, Step) else f"The {record.__struct_config__.tag} record"
    notes = record.notes if isinstance(record, Step) else ()
    try:
        body = rounded(msgspec.to_builtins(record.replace(notes=()) if notes else record, enc_hook=rounded))
        if isinstance(record, Step):
            for entry in (*body["nodes"], body["bonus"] or [0]):
                while entry[-1] is None:
                    entry.pop()
            if not record.time.aside:
                body["time"].pop()
        if notes:
            body["notes"] = [{"type": note.type, **rounded(note.data)} for note in notes]
        fields = {"v": SCHEMA_VERSION, "seq": seq, **body}
        try:
            data = msgspec.json.encode(fields)
        except UnicodeEncodeError:  # lone surrogates, which UTF-8 cannot hold, become U+FFFD
            data = json.dumps(fields, ensure_ascii=False).encode("utf-8", "surrogatepass").decode("utf-8", "replace").encode()
    except (ValueError, TypeError, RecursionError, OverflowError) as fault:
        raise BadTrace(f"{name} cannot be written: {str(fault) or type(fault).__name__}.") from fault
    if len(data) > MAX_LINE:
        raise BadTrace(f"{name} takes {len(data)} bytes; the maximum length of a line is {MAX_LINE}.")
    return data.decode()


class TraceWriter:
    """Encoder of consecutive records, which counts the lines."""

    def __init__(self) -> None:
        self.count = 0

    def add(self, record: Record) -> str:
        """Return the record encoded as the next line, without line end."""
        text = line(record, self.count)
        self.count += 1
        return text


def _fraction(text: str) -> float:
    if math.isinf(number := float(text)):
        raise BadTrace(f"the number {text[:40]} is too large.")
    return whole(number)


_DECODER = msgspec.json.Decoder(float_hook=_fraction)


def strict_json(text: str) -> Any:
    """Parse a JSON text. Raises BadTrace for invalid JSON, numbers too large for a float, and deep nesting."""
    try:
        return _DECODER.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError) as fault:
        raise BadTrace(f"not JSON ({fault}).") from None
    except RecursionError:
        raise BadTrace("the JSON is nested too deeply.") from None


def typed(kind: Any, value: Any, inside: str = "", of: str = "") -> Any:
    """Convert a JSON ``value`` to the type ``kind``. ``inside``: path of ``value`` in the line; ``of``: suffix of error messages.

    Raises BadTrace with the path of the invalid field, such as ``nodes[3][4]`` or ``sampling.top_p``.
    """
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as fault:
        what, _, path = str(fault).partition(" - at `$")
        where = (inside + path.rstrip("`")).removeprefix(".")
        name = re.fullmatch(r"Object (missing required|contains unknown) field `(.*)`", what, re.DOTALL)
        if name:
            where = f"{where}.{name[2]}".removeprefix(".")
            what = "is missing" if name[1] == "missing required" else "is not a field of this format"
        raise BadTrace(f"{what[:1].lower()}{what[1:200]}{of}.", field=where[:200] or None) from None


def decoded(fields: dict[str, Any]) -> Record:
    """Convert a line's JSON object, in the current format, to a record. Raises BadTrace with the invalid field."""
    body = {name: value for name, value in fields.items() if name not in ("v", "seq")}
    if isinstance(body.get("notes"), list):
        body["notes"] = [_note(note, f"notes[{place}]") for place, note in enumerate(body["notes"])]
    if body.get("kind") == "step":
        body.setdefault("bonus", None)
        if isinstance(time := body.get("time"), list) and len(time) < len(PHASES):
            raise BadTrace(f"has {len(time)} phases; at least {len(PHASES)} are required.", field="time")
    if "metrics" in body:
        _check_free(body["metrics"], "metrics")
        typed(Metrics, body["metrics"], "metrics")
    record: Record = typed(Record, body)
    typed(LineNumber, fields.get("seq"), "seq")
    return record


def _note(fields: Any, where: str) -> Note:
    """Convert a note. Known types are checked, extra fields are kept, and unknown types may hold any JSON."""
    if not isinstance(fields, dict):
        raise BadTrace("is not an object.", field=where)
    name = typed(NoteType, fields.get("type"), f"{where}.type")
    if name in NOTE_TYPES:
        typed(NOTE_TYPES[name], fields, where, f" in a note of type {name}")
    _check_free(fields, where)
    data = {key: value for key, value in fields.items() if key != "type"}
    text = msgspec.json.encode(data)
    return Note(name, data if len(text) < _PACKED else _PackedNote(text))


def _check_free(value: Any, field: str) -> None:
    """Raise BadTrace if free-form JSON exceeds the limits on nesting, number of values, or length of strings."""
    level, count = [value], 0
    for _ in range(MAX_NESTING + 1):
        below: list[Any] = []
        for entry in level:
            kind = type(entry)  # the JSON decoder returns no subclasses
            if kind is str:
                if len(entry) > MAX_TEXT:
                    raise BadTrace(f"holds a text of more than {MAX_TEXT} characters.", field=field)
            elif kind is int:
                if not -(2**63) <= entry < 2**64:
                    raise BadTrace("holds an integer of more than 64 bits.", field=field)
            elif kind is dict:
                below += [*entry, *entry.values()]
            elif kind is list:
                below += entry
        if not below:
            return
        count += len(below)
        if count > MAX_VALUES:
            raise BadTrace(f"holds more than {MAX_VALUES} values.", field=field)
        level = below
    raise BadTrace(f"is nested more than {MAX_NESTING} levels deep.", field=field)


class _PackedNote(Mapping[str, Any]):
    """Data of a note as JSON text, decoded on each access. Python objects would take twenty times the memory."""

    __slots__ = ("_json",)

    def __init__(self, text: bytes) -> None:
        self._json = text

    def _read(self) -> dict[str, Any]:
        return msgspec.json.decode(self._json, type=dict[str, Any])

    def __getitem__(self, name: str) -> Any:
        return self._read()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._read())

    def __len__(self) -> int:
        return len(self._read())

    def items(self) -> Any:
        return self._read().items()
