"""Registry of methods: one decorator, one dict, listed without importing torch."""

from __future__ import annotations

import importlib
import pkgutil
import threading
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from specviz.errors import BadInput, shown
from specviz.methods.parameters import describe
from specviz.methods.results import filled

if TYPE_CHECKING:
    from specviz.engine.interfaces import Composition


Parameters = TypeVar("Parameters")
Resources = TypeVar("Resources")

FAMILIES = {
    "none": "No draft",
    "model": "A second model drafts",
    "memory": "Drafts from what was said before",
    "features": "Drafts from the target's hidden states",
    "heads": "Several tokens a drafter pass",
    "judge": "Another way to judge",
    "other": "More",
}
"""What sets methods apart, as a picker groups them, in the order in which a class meets them."""


@dataclass(frozen=True)
class Paper:
    """Where a method comes from."""

    title: str
    authors: str
    year: int
    arxiv: str = ""
    venue: str = ""


@dataclass(frozen=True)
class Exactness:
    """What a method promises about its output, and the one (parameter, choice) with which it promises less, or more.

    Token exact: with the same seed the tokens of the autoregressive run, at any temperature; with the exception only its
    distribution. Exact in distribution or relaxed: token exact with the exception.
    """

    output: str = "exact"
    token_exact: bool = False
    exception: tuple[str, str] | None = None

    def except_with(self, parameter: str, choice: str) -> Exactness:
        """The same, but for one choice of a parameter."""
        return replace(self, exception=(parameter, choice))

    @property
    def label(self) -> str:
        """The promise in a few words."""
        if self.token_exact:
            return "exact, token for token"
        return "exact in distribution" if self.output == "exact" else self.output

    @property
    def exceptional(self) -> Exactness:
        """The promise with the exception's choice."""
        return IN_DISTRIBUTION if self.token_exact else TOKEN_EXACT

    def __str__(self) -> str:
        if self.exception is None:
            return self.label
        strength = "in distribution" if self.token_exact else "token for token"
        return "{}; {} with {} “{}”".format(self.label, strength, *self.exception)


TOKEN_EXACT, IN_DISTRIBUTION, RELAXED = Exactness(token_exact=True), Exactness(), Exactness("relaxed")


@dataclass(frozen=True)
class Card(Generic[Parameters]):
    """A method as its card shows it; as a decorator it registers ``compose(parameters, resources)`` under itself.

    ``published`` are modalities in which it drafts only with heads that the user names, as none ship.
    ``look_at`` tells a class what to watch. ``weights`` are catalog names it needs. ``targets`` are the catalog's targets that it
    runs on, the one that ships first; empty for any target.
    ``needs`` says what it cannot run without, where that is more than a drafter or a draft model for the target.
    ``family`` is a key of FAMILIES. ``claim`` is the speed the paper reports, with the model it was measured on. ``differs``
    says why a small model on a small machine sees something else; it quotes figures as keys of ``assets/results.json`` in
    braces. ``pair`` is its row in PAIRS.md: a published pair with the command that runs it, or what is missing.
    ``warm_up`` decodes text that the drafter learns from before a prepared run begins: (run, cancel, progress) to a warning,
    or "".
    """

    name: str
    title: str
    summary: str
    exactness: Exactness
    paper: Paper | None
    look_at: str
    parameters: type[Parameters]
    modality: tuple[str, ...] = ("text",)
    weights: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()
    needs_draft: bool = False
    needs: str = ""
    bound: str = ""
    family: str = "other"
    claim: str = ""
    differs: str = ""
    published: tuple[str, ...] = ()
    pair: str = ""
    warm_up: Callable[[Any, threading.Event, Callable[[str, float | None], None]], str] | None = None

    def __call__(self, compose: Callable[[Parameters, Resources], Composition]) -> Callable[[Parameters, Resources], Composition]:
        """Register ``compose``. Raises ValueError for a name that is taken or a family without a title."""
        if self.name in _METHODS or self.family not in FAMILIES:
            raise ValueError(f"two methods are called {self.name}, or its family {self.family} has no title")
        card = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        _METHODS[self.name] = Method(**card | {"differs": filled(self.differs)}, compose=compose)
        return compose

    def runs_on(self, modality: str) -> bool:
        """Whether it can run on such targets, if only with heads that the user names."""
        return modality in (*self.modality, *self.published)

    @property
    def takes_draft(self) -> bool:
        """Whether a user may name what drafts: what drafts from the text alone, with every setting, has no use for it."""
        drafts_from_text = self.family in ("none", "memory")
        return not drafts_from_text or any(own.name == "drafter" for own in describe(self.parameters))

    def plain(self) -> dict[str, Any]:
        """What a program asks of a method first: what it is and how exact, as plain data."""
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


@dataclass(frozen=True, kw_only=True)
class Method(Card[Any]):
    """A registered method: its card, and what composes it."""

    compose: Callable[[Any, Any], Composition]


_METHODS: dict[str, Method] = {}


def all_methods() -> dict[str, Method]:
    """Every method by name. The first call imports the files of this package, none of which imports torch at its top."""
    _load()
    return dict(_METHODS)


@cache
def _load() -> None:
    package = importlib.import_module("specviz.methods")
    for module in sorted(pkgutil.iter_modules(package.__path__), key=lambda entry: entry.name):
        importlib.import_module(f"specviz.methods.{module.name}{'.method' if module.ispkg else ''}")


def families(modality: str | None = None) -> dict[str, list[Method]]:
    """Title of every family that has methods of this modality, and those methods in the order of their papers."""
    entries = [entry for entry in all_methods().values() if modality is None or modality in entry.modality]
    entries.sort(key=_published)
    grouped = {title: [entry for entry in entries if entry.family == key] for key, title in FAMILIES.items()}
    return {title: methods for title, methods in grouped.items() if methods}


def _published(entry: Method) -> str:
    """Year and month, as arXiv writes them; the year's end where only the year is known."""
    return "" if entry.paper is None else entry.paper.arxiv or f"{entry.paper.year % 100:02d}12"


def get(name: str) -> Method:
    """The method called ``name``. Raises BadInput listing the names there are."""
    known = all_methods()
    if not isinstance(name, str) or name not in known:
        raise BadInput(f"There is no method {shown(name)}; there are: {', '.join(sorted(known))}.")
    return known[name]
