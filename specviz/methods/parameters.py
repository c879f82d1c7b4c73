"""Method parameters: frozen dataclasses whose fields carry units, bounds and help, from which every control is made."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from typing import Any

from specviz.errors import BadInput, shown


@dataclass(frozen=True)
class Bounds:
    """What a control needs to know about one field. ``choices`` excludes ``low`` and ``high``."""

    help: str
    unit: str = ""
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()
    step: float | None = None


@dataclass(frozen=True)
class Parameter:
    """One field as the screen, the command line and ``methods --json`` see it."""

    name: str
    kind: str
    default: Any
    bounds: Bounds


def number(default: float, low: float, high: float, help: str, unit: str = "", step: float | None = None) -> Any:
    """A dataclass field holding an int or a float (the annotation says which) between ``low`` and ``high`` inclusive."""
    return field(default=default, metadata={"bounds": Bounds(help, unit, low, high, step=step)})


def choice(default: str, choices: tuple[str, ...], help: str) -> Any:
    """A dataclass field holding one of ``choices``."""
    return field(default=default, metadata={"bounds": Bounds(help, choices=choices)})


def switch(default: bool, help: str) -> Any:
    """A dataclass field holding True or False."""
    return field(default=default, metadata={"bounds": Bounds(help)})


@dataclass(frozen=True)
class NoParameters:
    """For a method that has none."""


def describe(parameters: type) -> tuple[Parameter, ...]:
    """The fields of a parameter dataclass, in order. ``kind`` is "int", "float", "bool" or "str"."""
    return tuple(_describe(one) for one in fields(parameters))


def _describe(one: Field[Any]) -> Parameter:
    kind = one.type if isinstance(one.type, str) else one.type.__name__
    if kind not in {"int", "float", "bool", "str"} or one.default is MISSING:
        raise TypeError(f"parameter {one.name} needs a default and one of the types int, float, bool, str")
    return Parameter(one.name, kind, one.default, one.metadata["bounds"])


def build(parameters: type, values: Mapping[str, Any], method: str) -> Any:
    """Make the dataclass from text or numbers. Raises BadInput naming the field, its bounds and what was given."""
    known = {one.name: one for one in describe(parameters)}
    for name in values:
        if name not in known:
            listed = ", ".join(known) or "none"
            raise BadInput(f"{method} has no parameter {shown(name)}; it has: {listed}.")
    return parameters(**{name: _value(known[name], value, method) for name, value in values.items()})


def _value(one: Parameter, value: Any, method: str) -> Any:
    what = f"{method}'s parameter {one.name}"
    if one.kind == "bool":
        words = {
            "true": True,
            "1": True,
            "yes": True,
            "on": True,
            "false": False,
            "0": False,
            "no": False,
            "off": False,
        }
        word = _written(value).lower()
        if word not in words:
            raise BadInput.of_field(what, one.name, f"is {shown(value)}; give true or false.")
        return words[word]
    if one.bounds.choices or one.kind == "str":
        if _written(value) not in one.bounds.choices:
            raise BadInput.of_field(what, one.name, f"is {shown(value)}; choose one of {', '.join(one.bounds.choices)}.")
        return _written(value)
    low, high = one.bounds.low, one.bounds.high
    assert low is not None and high is not None, "a number has bounds"
    try:
        given = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        given = math.nan
    if not math.isfinite(given) or not low <= given <= high or (one.kind == "int" and given != int(given)):
        kind = "a whole number" if one.kind == "int" else "a number"
        said = f"{given:.12g}" if math.isfinite(given) else shown(value)
        raise BadInput.of_field(what, one.name, f"is {said}; give {kind} from {low} to {high}.")
    return int(given) if one.kind == "int" else given


def _written(value: Any) -> str:
    try:
        return str(value)
    except ValueError:  # an integer of thousands of digits has no decimal text in Python
        return ""
