"""JSON Schema of a trace line, generated from the dataclasses of the records and of the typed notes.

``trace.schema.json`` is this schema, so that a reader in any language, and ``trace.validate``, need no Python to know it. After a
change of a record or of a note write it anew: ``python -c "from specviz.trace import json_schema; json_schema.write()"``.
"""

from __future__ import annotations

import ast
import inspect
import json
import textwrap
import types
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Union, get_args, get_origin, is_typeddict

from specviz.trace.notes import NOTE_TYPES
from specviz.trace.notes.base import hints, wire_name
from specviz.trace.schema import (
    MAX_STEPS,
    SCHEMA_VERSION,
    Bonus,
    Candidate,
    End,
    Limit,
    Nanoseconds,
    Node,
    Note,
    Run,
    Sampling,
    Step,
    TargetRow,
)

FILE = Path(__file__).with_name("trace.schema.json")
WIDTH = 120
DRAFT = "http://json-schema.org/draft-07/schema#"

ARRAYS: dict[Any, int] = {Node: 6, Bonus: 5, Candidate: 3, TargetRow: 2, Nanoseconds: 5}
"""Records that are short arrays in a line, and how many entries are always there: null or 0 behind them may be cut."""
MAY_LACK = {(Step, "bonus")}
"""Fields without a default that a line may leave out all the same."""
MUST_HAVE = {(Sampling, name) for name in ("temperature", "top_k", "top_p", "seed")}
"""Fields with a default that a line states all the same."""
PLAIN = {int: "integer", float: "number", str: "string", bool: "boolean", type(None): "null"}
BOUNDS = {
    "integer": ("minimum", "maximum"), "number": ("minimum", "maximum"), "string": ("minLength", "maxLength"),
    "array": ("minItems", "maxItems"), "object": ("minProperties", "maxProperties"),
}  # fmt: skip
ABOUT = (
    "A file is UTF-8, at most 32 MiB: a run line, then step lines, then an end line (missing while a run goes on; a second one "
    "may follow once its baseline is timed). Lines are at most 1 MiB. What a schema cannot say (parents before children, a "
    "connected path, tokens that add up) is checked by `python -m specviz validate`."
)
ABOUT_NOTES = (
    "A method's own account of a step. Notes of a type that is listed here have its fields, and may have more; those of any "
    "other type are plain JSON. None is deeper than 8 levels or holds more than 16384 values."
)


def schema() -> dict[str, Any]:
    """The schema of one line of a trace file."""
    lines = {"run": Run, "step": Step, "end": End}
    notes = {f"note_{name}": _note(name, kind) for name, kind in sorted(NOTE_TYPES.items())}
    return {
        "$schema": DRAFT,
        "$id": f"urn:specviz:trace:{SCHEMA_VERSION}",
        "title": "One line of a .spectrace.jsonl file",
        "description": ABOUT,
        "oneOf": [_ref(name) for name in lines],
        "definitions": {
            **{name: _line(name, record) for name, record in lines.items()},
            "node": _array(Node),
            "note": _any_note(),
            **notes,
        },
    }


def text() -> str:
    """The schema as the file that is shipped."""
    return _written(schema(), 0) + "\n"


def write() -> None:
    """Write the file anew."""
    FILE.write_text(text(), encoding="utf-8")


def _ref(name: str) -> dict[str, Any]:
    return {"$ref": f"#/definitions/{name}"}


def _line(kind: str, record: Any) -> dict[str, Any]:
    """A record as a line of its own: version, number and kind stand before its fields."""
    head = {
        "v": {"type": "integer", "const": SCHEMA_VERSION, "description": "Version of this format."},
        "seq": {"type": "integer", "minimum": 0, "maximum": MAX_STEPS + 100, "description": "Lines before this one."},
        "kind": {"const": kind},
    }
    line_schema = _record(record)
    line_schema["properties"].pop("version", None)
    line_schema["properties"] = head | line_schema["properties"]
    line_schema["required"] = [*head, *line_schema["required"]]
    return line_schema


def _note(name: str, kind: Any) -> dict[str, Any]:
    note_schema = _record(kind, closed=False)
    note_schema["properties"] = {"type": {"const": name}, **note_schema["properties"]}
    note_schema["required"] = ["type", *note_schema["required"]]
    return note_schema


def _any_note() -> dict[str, Any]:
    known = [
        {"if": {"properties": {"type": {"const": name}}, "required": ["type"]}, "then": _ref(f"note_{name}")}
        for name in sorted(NOTE_TYPES)
    ]
    kind = _value(hints(Note)["type"])
    return {"type": "object", "description": ABOUT_NOTES, "properties": {"type": kind}, "required": ["type"], "allOf": known}


def _record(record: Any, closed: bool = True) -> dict[str, Any]:
    """A dataclass as an object. ``closed`` says that it has no other fields."""
    about, known = _described(record), hints(record)
    needed = [
        wire_name(field.name)
        for field in fields(record)
        if (record, field.name) not in MAY_LACK
        and ((field.default is MISSING and field.default_factory is MISSING) or (record, field.name) in MUST_HAVE)
    ]
    record_schema: dict[str, Any] = {
        "type": "object",
        "description": _first(record),
        "properties": {wire_name(field.name): _field(known[field.name], about.get(field.name)) for field in fields(record)},
        "required": needed,
    }
    return record_schema | ({"additionalProperties": False} if closed else {})


def _array(record: Any) -> dict[str, Any]:
    """A dataclass as an array of its fields' values."""
    about, known = _described(record), hints(record)
    names = [field.name for field in fields(record)]
    return {
        "type": "array",
        "description": f"[{', '.join(names)}]. {_first(record)}",
        "items": [_field(known[name], about.get(name)) for name in names],
        "additionalItems": False,
        "minItems": ARRAYS[record],
        "maxItems": len(names),
    }


def _field(kind: Any, about: str | None) -> dict[str, Any]:
    return _value(kind) | ({"description": about} if about else {})


def _value(kind: Any) -> dict[str, Any]:
    """What may stand where a field of type ``kind`` is written."""
    origin, inner = get_origin(kind), get_args(kind)
    if kind is Any:
        return {}
    if kind in PLAIN:
        return {"type": PLAIN[kind]}
    if origin is Annotated:
        return _bounded(inner[0], inner[1:])
    if origin in (Union, types.UnionType):
        return _either([_value(part) for part in inner])
    if is_typeddict(kind):
        return {"type": "object", "description": _first(kind), "properties": {n: _value(k) for n, k in hints(kind).items()}}
    if is_dataclass(kind):
        return _instance(kind)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return {"type": "object", "additionalProperties": _value(inner[1])}
    if origin is tuple and inner[-1] is not Ellipsis:
        size = len(inner)
        items = [_value(part) for part in inner]
        return {"type": "array", "items": items, "additionalItems": False, "minItems": size, "maxItems": size}
    return {"type": "array", "items": _value(inner[0])}


def _instance(record: Any) -> dict[str, Any]:
    if record in (Node, Note):
        return _ref(record.__name__.lower())
    return _array(record) if record in ARRAYS else _record(record, closed=not record.__module__.startswith("specviz.trace.notes"))


def _bounded(kind: Any, bounds: tuple[Any, ...]) -> dict[str, Any]:
    value_schema = _value(kind)
    for annotation in bounds:
        if not isinstance(annotation, Limit):
            value_schema = _value(annotation)
            continue
        if annotation.words:
            value_schema = {"enum": list(annotation.words)}
        for key, bound in zip(BOUNDS.get(value_schema.get("type", ""), ()), (annotation.least, annotation.most), strict=False):
            if bound is not None:
                value_schema[key] = bound
        if annotation.about:
            value_schema["description"] = annotation.about
    return value_schema


def _either(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """One schema for several types: no two of them bound the same kind of value."""
    joint_schema = {key: value for part in parts for key, value in part.items() if key not in ("type", "enum")}
    words = [word for part in parts for word in part.get("enum", ())]
    if words:
        return {**joint_schema, "enum": [None, *words]}
    return {"type": [part["type"] for part in parts], **joint_schema}


def _first(record: Any) -> str:
    """The first paragraph of a record's docstring."""
    return _prose((inspect.getdoc(record) or "").split("\n\n")[0])


def _prose(text: str) -> str:
    return " ".join(text.split()).replace("``", "")


@cache
def _described(record: Any) -> dict[str, str]:
    """Field -> the text that stands below it in the source."""
    body = ast.parse(textwrap.dedent(inspect.getsource(record))).body[0]
    assert isinstance(body, ast.ClassDef)
    descriptions: dict[str, str] = {}
    for field, below in zip(body.body, body.body[1:], strict=False):
        match field, below:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(about))):
                descriptions[name] = _prose(about)
    return descriptions


def _written(value: Any, depth: int) -> str:
    """JSON with what fits on one line on one line."""
    short = json.dumps(value, ensure_ascii=False)
    if len(short) + 2 * depth <= WIDTH or not isinstance(value, dict | list) or not value:
        return short
    pad, end = "  " * (depth + 1), "  " * depth
    if isinstance(value, list):
        return "[\n" + ",\n".join(pad + _written(entry, depth + 1) for entry in value) + f"\n{end}]"
    parts = [f"{pad}{json.dumps(key)}: {_written(entry, depth + 1)}" for key, entry in value.items()]
    return "{\n" + ",\n".join(parts) + f"\n{end}}}"
