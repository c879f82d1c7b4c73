"""Values of any typed record, for tests over every type of note."""

from __future__ import annotations

from typing import Any

from msgspec import inspect


def example(kind: Any, whole: bool) -> Any:
    """A value of this type: every optional field of a record when ``whole``, else none of them."""
    match kind:
        case inspect.StructType(cls=record, fields=fields):
            return record(**{field.name: example(field.type, whole) for field in fields if whole or field.required})
        case inspect.UnionType(types=types):
            return example(types[0], whole) if whole or not any(isinstance(one, inspect.NoneType) for one in types) else None
        case inspect.ListType(item_type=entry):
            return [example(entry, whole)] * (kind.min_length or 1)
        case inspect.TupleType(item_types=entries):
            return tuple(example(entry, whole) for entry in entries)
        case inspect.DictType(value_type=entry):
            return {"key": example(entry, whole)}
        case inspect.StrType(pattern=str(words)):
            return words.removeprefix("^(?:").split("|")[0]
    return {inspect.IntType: 3, inspect.FloatType: 0.5, inspect.StrType: "word", inspect.BoolType: True}[type(kind)]
