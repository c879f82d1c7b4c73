"""JSON Schema of a trace line, generated from the record and note types.

``trace.schema.json`` is the schema, and ``trace.d.ts`` the same types for the viewer's JavaScript. After changing a record or a
note, regenerate both: ``python -c "from specviz.trace import json_schema; json_schema.write()"``.
"""

from __future__ import annotations

import inspect
import json
import re
from pathlib import Path
from typing import Any

import msgspec

from specviz.trace.notes import NOTE_TYPES
from specviz.trace.notes.base import Part, TypedNote
from specviz.trace.schema import PHASES, SCHEMA_VERSION, Array, Metrics, Object
from specviz.trace.wire import MAX_NESTING, MAX_VALUES, LineNumber, Record

FILE = Path(__file__).with_name("trace.schema.json")
TYPES = FILE.parents[1] / "viewer" / "js" / "trace.d.ts"
ABOUT = (
    "A UTF-8 file of at most 32 MiB, in lines of at most 1 MiB: a run line, step lines and an end line. A run in progress has no "
    "end line; a run with a baseline may have two. `python -m specviz validate` also checks what a schema cannot express: "
    "parents before children, a connected path, consistent token counts."
)
ABOUT_NOTES = (
    "Method-specific data on a step. A note of a listed type has the fields of that type and may have more; any other note is "
    f"plain JSON. A note has at most {MAX_NESTING} levels of nesting and {MAX_VALUES} values."
)


def schema() -> dict[str, Any]:
    """Return the schema of one line of a trace file."""
    (lines, *_), parts = msgspec.json.schema_components((Record, Metrics, *NOTE_TYPES.values()))
    _describe(parts)
    head = {
        "v": {"const": SCHEMA_VERSION, "description": "Version of this format."},
        "seq": msgspec.json.schema(LineNumber),
    }
    for name in ("Run", "Step", "End"):
        parts[name]["properties"] = {**head, **parts[name]["properties"]}
        parts[name]["required"] = [*head, *parts[name]["required"]]
    parts["Step"]["required"].remove("bonus")
    parts["Nanoseconds"]["minItems"] = len(PHASES)
    parts["End"]["properties"]["metrics"] = {"$ref": "#/$defs/Metrics"}
    parts["Note"] = {
        "type": "object",
        "description": ABOUT_NOTES,
        "properties": {"type": parts["Note"]["properties"]["type"]},
        "required": ["type"],
        "allOf": [
            {"if": {"properties": {"type": {"const": name}}}, "then": {"$ref": f"#/$defs/{kind.__name__}"}}
            for name, kind in NOTE_TYPES.items()
        ],
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:specviz:trace:{SCHEMA_VERSION}",
        "title": "One line of a .spectrace.jsonl file",
        "description": ABOUT,
        **lines,
        "$defs": parts,
    }


def _describe(parts: dict[str, dict[str, Any]]) -> None:
    """Describe each record by the first paragraph of the class docstring, and each field by the string below the field."""
    for kind in (kind for base in (Object, Array, Part, TypedNote) for kind in base.__subclasses__()):
        part = parts.get(kind.__name__, {})
        part["description"] = _prose(inspect.getdoc(kind) or "")
        below = dict(re.findall(r'^    (\w+): [^\n]*\n    """(.*?)"""', inspect.getsource(kind), re.MULTILINE | re.DOTALL))
        for place, field in enumerate(msgspec.structs.fields(kind)):
            if field.name in below:
                described = part["prefixItems"][place] if "prefixItems" in part else part["properties"][field.encode_name]
                described["description"] = _prose(below[field.name])


def _prose(text: str) -> str:
    return " ".join(text.split("\n\n")[0].split()).replace("``", "")


def text() -> str:
    """Return the schema as the text of the shipped file."""
    return json.dumps(schema(), ensure_ascii=False, indent=1) + "\n"


def declarations() -> str:
    """Return TypeScript types of the records and notes. No field is optional, because the viewer fills in defaults."""
    lines = ["// Written by specviz/trace/json_schema.py.", "declare namespace Trace {", "  type integer = number;"]
    for name, part in schema()["$defs"].items():
        lines.append(f"  /** {part['description']} */")
        if "properties" in part:
            fields = [
                f"    /** {kind.get('description', '')} */ {field}: {_type(kind)};" for field, kind in part["properties"].items()
            ]
            lines += [f"  interface {name} {{", *fields, "  }"]
        else:
            lines.append(f"  type {name} = {_type(part)};")
    notes = [f"    {name}: {kind.__name__};" for name, kind in NOTE_TYPES.items()]
    return "\n".join([*lines, "  interface Notes {", *notes, "  }", "}\n"]).replace("/**  */ ", "")


def _type(kind: dict[str, Any]) -> str:
    """Return the TypeScript type for a type of the schema."""
    if "$ref" in kind:
        return str(kind["$ref"].rpartition("/")[2])
    if "anyOf" in kind:
        return " | ".join(map(_type, kind["anyOf"]))
    if words := kind.get("enum") or ("pattern" in kind and kind["pattern"][4:-8].split("|")):
        return " | ".join(f'"{word}"' for word in words)
    if "prefixItems" in kind:
        return f"[{', '.join(map(_type, kind['prefixItems']))}]"
    if "items" in kind:
        entry, least = _type(kind["items"]), kind.get("minItems")
        if least and least == kind.get("maxItems"):
            return f"[{', '.join([entry] * least)}]"
        return f"({entry})[]" if " | " in entry else f"{entry}[]"
    if "additionalProperties" in kind:
        return f"Record<string, {_type(kind['additionalProperties'])}>"
    return str(kind.get("type", "number"))


def write() -> None:
    """Write ``trace.schema.json`` and ``trace.d.ts``."""
    FILE.write_text(text(), encoding="utf-8")
    TYPES.write_text(declarations(), encoding="utf-8")
