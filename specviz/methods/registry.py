"""Registry of methods: cards, parameters with units and bounds, and one dict, listed without importing torch.

Every control and check is derived from the fields of a parameter dataclass.
"""

from __future__ import annotations

import importlib
import inspect
import math
import pkgutil
import threading
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from specviz.errors import BadInput, shown
from specviz.methods.results import filled

if TYPE_CHECKING:
    from specviz.methods import parts
else:

    class _Parts:
        """Names of :mod:`specviz.methods.parts`, imported (and torch with it) when the first method is composed."""

        def __getattr__(self, name: str) -> Any:
            return getattr(importlib.import_module("specviz.methods.parts"), name)

    parts = _Parts()

Parameters = TypeVar("Parameters")
Resources = TypeVar("Resources")

FAMILIES = {
    "none": "No draft",
    "model": "A second model drafts",
    "memory": "Drafts from earlier text",
    "features": "Drafts from the target's hidden states",
    "heads": "Several tokens per drafter pass",
    "judge": "Other verification rules",
    "other": "More",
}
"""Titles of the families by which a picker groups methods, in teaching order."""


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
            raise BadInput(f"{method} has no parameter {shown(name)}; its parameters are: {names}.")
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


@dataclass(frozen=True)
class Paper:
    """Publication of a method."""

    title: str
    authors: str
    year: int
    arxiv: str = ""
    venue: str = ""


@dataclass(frozen=True)
class Exactness:
    """A method's guarantee about its output, and the one (parameter, choice) that weakens or strengthens it, if any.

    If ``token_exact``, the output equals the autoregressive run's with the same seed at any temperature; the exception weakens
    this to equality in distribution. Otherwise (exact in distribution, or relaxed) the exception strengthens it to token-exact.
    """

    output: str = "exact"
    token_exact: bool = False
    exception: tuple[str, str] | None = None

    def except_with(self, parameter: str, choice: str) -> Exactness:
        """Return this guarantee with an exception for one choice of a parameter."""
        return replace(self, exception=(parameter, choice))

    @property
    def label(self) -> str:
        """Guarantee in a few words."""
        if self.token_exact:
            return "exact, token for token"
        return "exact in distribution" if self.output == "exact" else self.output

    @property
    def exceptional(self) -> Exactness:
        """The guarantee when the excepted choice is set."""
        return IN_DISTRIBUTION if self.token_exact else TOKEN_EXACT

    def __str__(self) -> str:
        if self.exception is None:
            return self.label
        strength = "in distribution" if self.token_exact else "token for token"
        return "{}; {} with {} “{}”".format(self.label, strength, *self.exception)


TOKEN_EXACT, IN_DISTRIBUTION, RELAXED = Exactness(token_exact=True), Exactness(), Exactness("relaxed")


@dataclass(frozen=True, kw_only=True)
class Texts:
    """Texts of a method's card: the table of the method's name in its folder's ``cards.toml``, or in the TOML file beside its
    module. Methods of one paper share the table ``paper`` there.

    ``look_at`` says what to watch for. ``needs`` states requirements beyond a drafter or a draft model for the target.
    ``claim`` is the paper's reported speed, with its model. ``differs`` explains why results with a small model on a small
    machine differ; it quotes figures as keys of ``assets/results.json`` in braces. ``pair`` is its row in PAIRS.md: a published
    target and drafter with the command to run them, or what is missing.
    """

    title: str
    summary: str
    look_at: str
    paper: Paper | None = None
    claim: str = ""
    differs: str = ""
    bound: str = ""
    needs: str = ""
    pair: str = ""


@dataclass(frozen=True, kw_only=True)
class Card(Generic[Parameters]):
    """Card of a method; as a decorator it registers ``compose(parameters, resources)`` under its name with its :class:`Texts`.

    ``published`` are modalities for which no heads ship, so that the user must name some. ``weights`` are the required weights'
    names in the catalog. ``targets`` are the catalog's targets that the method runs on, the shipped one first; empty for any
    target. ``family`` is a key of FAMILIES. ``warm_up`` decodes text from which the drafter learns before a prepared run begins.
    Called as ``warm_up(run, cancel, progress)``; returns a warning or "".
    """

    name: str
    exactness: Exactness
    parameters: type[Parameters]
    modality: tuple[str, ...] = ("text",)
    weights: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()
    needs_draft: bool = False
    family: str = "other"
    published: tuple[str, ...] = ()
    warm_up: Callable[[Any, threading.Event, Callable[[str, float | None], None]], str] | None = None

    def __call__(
        self, compose: Callable[[Parameters, Resources], parts.Composition]
    ) -> Callable[[Parameters, Resources], parts.Composition]:
        """Register ``compose``. Raises ValueError for a duplicate name or a family without a title."""
        if self.name in _METHODS or self.family not in FAMILIES:
            raise ValueError(f"two methods are called {self.name}, or its family {self.family} has no title")
        module = Path(inspect.getfile(compose))
        file = module.with_name("cards.toml") if module.stem == "__init__" else module.with_suffix(".toml")
        tables = tomllib.loads(file.read_text("utf-8"))
        texts = {"paper": tables.get("paper"), "differs": "", **tables[self.name]}
        texts |= {"paper": texts["paper"] and Paper(**texts["paper"]), "differs": filled(texts["differs"])}
        settings = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        _METHODS[self.name] = Method(**settings, **texts, compose=compose)
        return compose

    def runs_on(self, modality: str) -> bool:
        """Whether the method runs on targets of this ``modality``, possibly only with heads that the user names."""
        return modality in (*self.modality, *self.published)

    @property
    def takes_draft(self) -> bool:
        """Whether a user may name a draft model; methods that draft from the text alone, whatever their settings, use none."""
        drafts_from_text = self.family in ("none", "memory")
        return not drafts_from_text or any(own.name == "drafter" for own in describe(self.parameters))


@dataclass(frozen=True, kw_only=True)
class Method(Texts, Card[Any]):
    """A registered method: its card with its texts, and its ``compose`` function."""

    compose: Callable[[Any, Any], parts.Composition]

    def plain(self) -> dict[str, Any]:
        """Return the method's identity and exactness as plain data, for other programs."""
        promise = self.exactness
        exception = list(promise.exception or ())
        return {
            **{name: getattr(self, name) for name in ("name", "title", "summary")},
            **{name: list(getattr(self, name)) for name in ("modality", "published")},
            "exactness": promise.output,
            "token_exact": promise.token_exact,
            "in_distribution": exception if promise.token_exact else [],
            "token_exact_with": [] if promise.token_exact else exception,
        }


_METHODS: dict[str, Method] = {}


def all_methods() -> dict[str, Method]:
    """Return every method by name. The first call imports this package's modules except ``parts``, the only one that
    imports torch at the top."""
    _load()
    return dict(_METHODS)


@cache
def _load() -> None:
    package = importlib.import_module("specviz.methods")
    for name in sorted(module.name for module in pkgutil.iter_modules(package.__path__)):
        if name != "parts":
            importlib.import_module(f"specviz.methods.{name}")


def families(modality: str | None = None) -> dict[str, list[Method]]:
    """Return, by family title, the methods of this modality in the order of their papers; empty families are left out."""
    entries = [entry for entry in all_methods().values() if modality is None or modality in entry.modality]
    # By year and month in arXiv's format; December if only the year is known.
    entries.sort(key=lambda entry: (paper := entry.paper) and (paper.arxiv or f"{paper.year % 100:02d}12") or "")
    grouped = {title: [entry for entry in entries if entry.family == key] for key, title in FAMILIES.items()}
    return {title: methods for title, methods in grouped.items() if methods}


def get(name: str) -> Method:
    """Return the method called ``name``. Raises BadInput with the list of known names."""
    known = all_methods()
    if not isinstance(name, str) or name not in known:
        raise BadInput(f"There is no method {shown(name)}; choose one of: {', '.join(sorted(known))}.")
    return known[name]
