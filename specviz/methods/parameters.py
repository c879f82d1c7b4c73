"""Method parameters: frozen dataclasses whose fields have units, bounds and help, from which every control is made."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any

from specviz.errors import BadInput, shown


@dataclass(frozen=True)
class Bounds:
    """Help, unit and bounds of one field. A field has either ``choices`` or ``low`` and ``high``."""

    help: str
    unit: str = ""
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()
    step: float | None = None


@dataclass(frozen=True)
class Parameter:
    """One field, as used by the screen, the command line and ``methods --json``."""

    name: str
    kind: str
    default: Any
    bounds: Bounds


def number(default: float, low: float, high: float, help: str, unit: str = "", step: float | None = None) -> Any:
    """Return a dataclass field for an int or a float (as annotated) from ``low`` to ``high`` inclusive."""
    return field(default=default, metadata={"bounds": Bounds(help, unit, low, high, step=step)})


def choice(default: str, choices: tuple[str, ...], help: str) -> Any:
    """Return a dataclass field for one of ``choices``."""
    return field(default=default, metadata={"bounds": Bounds(help, choices=choices)})


def switch(default: bool, help: str) -> Any:
    """Return a dataclass field for True or False."""
    return field(default=default, metadata={"bounds": Bounds(help)})


@dataclass(frozen=True)
class NoParameters:
    """Parameters of a method that has none."""


def describe(parameters: type) -> tuple[Parameter, ...]:
    """Return the fields of a parameter dataclass, in order. ``kind`` is "int", "float", "bool" or "str"."""
    described = []
    for definition in fields(parameters):
        kind = definition.type if isinstance(definition.type, str) else definition.type.__name__
        if kind not in {"int", "float", "bool", "str"} or definition.default is MISSING:
            raise TypeError(f"parameter {definition.name} needs a default and one of the types int, float, bool, str")
        described.append(Parameter(definition.name, kind, definition.default, definition.metadata["bounds"]))
    return tuple(described)


def build(parameters: type, values: Mapping[str, Any], method: str) -> Any:
    """Build the dataclass from text or numbers. Raises BadInput with the field, its bounds and the invalid value."""
    known = {parameter.name: parameter for parameter in describe(parameters)}
    for name in values:
        if name not in known:
            names = ", ".join(known) or "none"
            raise BadInput(f"{method} has no parameter {shown(name)}; it has: {names}.")
    return parameters(**{name: _value(known[name], value, method) for name, value in values.items()})


def _value(parameter: Parameter, value: Any, method: str) -> Any:
    what = f"{method}'s parameter {parameter.name}"
    if parameter.kind == "bool":
        word = _written(value).lower()
        if word not in "true 1 yes on false 0 no off".split():
            raise BadInput.of_field(what, parameter.name, f"is {shown(value)}; give true or false.")
        return word in "true 1 yes on".split()
    if parameter.bounds.choices or parameter.kind == "str":
        if _written(value) not in parameter.bounds.choices:
            raise BadInput.of_field(
                what, parameter.name, f"is {shown(value)}; choose one of {', '.join(parameter.bounds.choices)}."
            )
        return _written(value)
    low, high = parameter.bounds.low, parameter.bounds.high
    assert low is not None and high is not None, "a number has bounds"
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number) or not low <= number <= high or (parameter.kind == "int" and number != int(number)):
        kind = "a whole number" if parameter.kind == "int" else "a number"
        text = f"{number:.12g}" if math.isfinite(number) else shown(value)
        raise BadInput.of_field(what, parameter.name, f"is {text}; give {kind} from {low} to {high}.")
    return int(number) if parameter.kind == "int" else number


def _written(value: Any) -> str:
    try:
        return str(value)
    except ValueError:  # an integer of thousands of digits has no decimal text in Python
        return ""
