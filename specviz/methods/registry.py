"""Registry of methods: cards, and parameters with units and bounds. Listing methods does not import torch.

Controls, command-line options and validation are derived from the fields of a method's parameter dataclass.
"""

from __future__ import annotations

import importlib
import inspect
import math
import pkgutil
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
        """Proxy of :mod:`specviz.methods.parts` that imports the module, and torch, on first use."""

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
"""Title by family, in the order of the method picker."""


@dataclass(frozen=True)
class Bounds:
    """Help text, unit and bounds of a parameter: either ``choices``, or ``low`` and ``high``, or neither for a switch."""

    help: str
    unit: str = ""
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()
    step: float | None = None


@dataclass(frozen=True)
class Parameter:
    """Description of a parameter for user interfaces. ``kind``: "int", "float", "bool" or "str"."""

    name: str
    kind: str
    default: Any
    bounds: Bounds


def number(default: float, low: float, high: float, help: str, unit: str = "", step: float | None = None) -> Any:
    """Return a dataclass field for a number from ``low`` to ``high``, both included. The annotation is int or float."""
    return field(default=default, metadata={"bounds": Bounds(help, unit, low, high, step=step)})


def choice(default: str, choices: tuple[str, ...], help: str) -> Any:
    """Return a dataclass field for one of ``choices``."""
    return field(default=default, metadata={"bounds": Bounds(help, choices=choices)})


def switch(default: bool, help: str) -> Any:
    """Return a dataclass field for True or False."""
    return field(default=default, metadata={"bounds": Bounds(help)})


@dataclass(frozen=True)
class NoParameters:
    """Parameters of a method without parameters."""


def describe(parameters: type) -> tuple[Parameter, ...]:
    """Return the parameters of a parameter dataclass, in order."""
    described = []
    for definition in fields(parameters):
        kind = definition.type if isinstance(definition.type, str) else definition.type.__name__
        if kind not in {"int", "float", "bool", "str"} or definition.default is MISSING:
            raise TypeError(f"parameter {definition.name} needs a default and one of the types int, float, bool, str")
        described.append(Parameter(definition.name, kind, definition.default, definition.metadata["bounds"]))
    return tuple(described)


def build(parameters: type, values: Mapping[str, Any], method: str) -> Any:
    """Build the dataclass ``parameters`` from ``values`` by name, as text or numbers.

    Raises BadInput for an unknown name or an invalid value.
    """
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
    except ValueError:  # Python refuses to print integers of thousands of digits
        return ""


@dataclass(frozen=True)
class Paper:
    """Publication that introduced a method."""

    title: str
    authors: str
    year: int
    arxiv: str = ""
    venue: str = ""


@dataclass(frozen=True)
class Exactness:
    """Guarantee of a method about the output.

    ``output``: "exact" (same distribution as the target's) or "relaxed". ``token_exact``: the output equals that of the
    autoregressive run with the same seed, at any temperature. ``exception``: (parameter, choice) with another guarantee: exact in
    distribution for a token-exact method, token-exact for any other.
    """

    output: str = "exact"
    token_exact: bool = False
    exception: tuple[str, str] | None = None

    def except_with(self, parameter: str, choice: str) -> Exactness:
        """Return this guarantee with an exception."""
        return replace(self, exception=(parameter, choice))

    @property
    def label(self) -> str:
        """Guarantee in a few words, without the exception."""
        if self.token_exact:
            return "exact, token for token"
        return "exact in distribution" if self.output == "exact" else self.output

    @property
    def exceptional(self) -> Exactness:
        """Guarantee with the choice of ``exception``."""
        return IN_DISTRIBUTION if self.token_exact else TOKEN_EXACT

    def __str__(self) -> str:
        if self.exception is None:
            return self.label
        strength = "in distribution" if self.token_exact else "token for token"
        return "{}; {} with {} “{}”".format(self.label, strength, *self.exception)


TOKEN_EXACT, IN_DISTRIBUTION, RELAXED = Exactness(token_exact=True), Exactness(), Exactness("relaxed")


@dataclass(frozen=True, kw_only=True)
class Texts:
    """Texts of a method's card, from the table with the method's name in a TOML file.

    The file is ``cards.toml`` in the folder of a package, or a file beside a module; methods of one paper share the table
    ``paper``. ``look_at``: what to watch in a run. ``claim``: speed reported in the paper, with the model. ``differs``: why small
    models on a small machine give other results, with keys of ``assets/results.json`` in braces. ``bound``: bound of a relaxed
    method. ``needs``: requirements besides a drafter or a draft model. ``pair``: row in PAIRS.md, with a published target and
    drafter.
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
    """Card of a method. As a decorator of ``compose(parameters, resources)``, a card registers the method.

    ``weights``: required weights, by name in the catalog. ``targets``: targets in the catalog that the method supports, the
    shipped target first; empty: all. ``needs_draft``: whether the app lets a user name a draft model. ``family``: key of
    ``FAMILIES``. ``published``: modalities without shipped heads, for which the user must name heads.
    ``warm_up(run, cancel, progress)``: function that prepares the drafter before a run; returns a warning or "".
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
    warm_up: Callable[[Any, Any, Callable[[str, float | None], None]], str] | None = None

    def __call__(
        self, compose: Callable[[Parameters, Resources], parts.Composition]
    ) -> Callable[[Parameters, Resources], parts.Composition]:
        """Register ``compose``. Raises ValueError for a duplicate name or an unknown family."""
        if self.name in _METHODS or self.family not in FAMILIES:
            raise ValueError(f"the method name {self.name} is taken, or the family {self.family} is unknown")
        module = Path(inspect.getfile(compose))
        file = module.with_name("cards.toml") if module.stem == "__init__" else module.with_suffix(".toml")
        tables = tomllib.loads(file.read_text("utf-8"))
        texts = {"paper": tables.get("paper"), "differs": "", **tables[self.name]}
        texts |= {"paper": texts["paper"] and Paper(**texts["paper"]), "differs": filled(texts["differs"])}
        settings = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        _METHODS[self.name] = Method(**settings, **texts, compose=compose)
        return compose

    def runs_on(self, modality: str) -> bool:
        """Whether the method supports targets of this ``modality``, with shipped heads or heads that the user names."""
        return modality in (*self.modality, *self.published)

    @property
    def takes_draft(self) -> bool:
        """Whether a user may name a draft model or heads."""
        drafts_from_text = self.family in ("none", "memory")
        return not drafts_from_text or any(own.name == "drafter" for own in describe(self.parameters))


@dataclass(frozen=True, kw_only=True)
class Method(Texts, Card[Any]):
    """A registered method: card, texts and the ``compose`` function."""

    compose: Callable[[Any, Any], parts.Composition]

    def plain(self) -> dict[str, Any]:
        """Return name, title, summary, modalities and exactness as plain data, for JSON."""
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
    """Return every method by name. The first call imports the modules of this package, except ``parts``, which imports torch."""
    _load()
    return dict(_METHODS)


@cache
def _load() -> None:
    package = importlib.import_module("specviz.methods")
    for name in sorted(module.name for module in pkgutil.iter_modules(package.__path__)):
        if name != "parts":
            importlib.import_module(f"specviz.methods.{name}")


def families() -> dict[str, list[Method]]:
    """Return the methods by family title, in order of publication; empty families are left out."""
    entries = list(all_methods().values())
    # By arXiv number, which starts with year and month; without a number, December of the year.
    entries.sort(key=lambda entry: (paper := entry.paper) and (paper.arxiv or f"{paper.year % 100:02d}12") or "")
    grouped = {title: [entry for entry in entries if entry.family == key] for key, title in FAMILIES.items()}
    return {title: methods for title, methods in grouped.items() if methods}


def get(name: str) -> Method:
    """Return the method called ``name``. Raises BadInput for an unknown name."""
    known = all_methods()
    if not isinstance(name, str) or name not in known:
        raise BadInput(f"There is no method {shown(name)}; choose one of: {', '.join(sorted(known))}.")
    return known[name]
