"""Registry of methods: one decorator, one dict, listed without importing torch."""

from __future__ import annotations

import importlib
import pkgutil
import threading
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cache
from typing import TYPE_CHECKING, Any

from specviz.errors import BadInput, shown
from specviz.methods.parameters import NoParameters
from specviz.methods.results import filled

if TYPE_CHECKING:
    from specviz.engine.interfaces import Composition


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


def chosen(choice: tuple[str, str]) -> str:
    """A parameter and one of its choices, the choice in quotation marks."""
    return "{} “{}”".format(*choice)


@dataclass(frozen=True)
class Paper:
    """Where a method comes from."""

    title: str
    authors: str
    year: int
    arxiv: str = ""
    venue: str = ""


@dataclass(frozen=True)
class Method:
    """A method as its card shows it.

    ``exactness`` is "exact" or "relaxed". ``token_exact`` promises the autoregressive run's output token for token, with the same
    seed, at any temperature. ``in_distribution`` is the one (parameter, choice) for which only the distribution is the target's.
    ``token_exact_with`` is the choice that makes any other method token exact.
    ``published`` are modalities in which it drafts only with heads that the user names, as none ship.
    ``look_at`` tells a class what to watch. ``weights`` are catalog names it needs. ``targets`` are the catalog's targets that it
    runs on, the one that ships first; empty for any target.
    ``needs`` says what it cannot run without, where that is more than a drafter or a draft model for the target.
    ``family`` is a key of FAMILIES. ``claim`` is the speed the paper reports, with the model it was measured on;
    ``differs`` says why a small model on a small machine sees something else. ``pair`` is its row in PAIRS.md: a published
    pair with the command that runs it, or what is missing. ``warm_up`` decodes text that the drafter learns from before a
    prepared run begins: (run, cancel, progress) to a warning, or "".
    """

    name: str
    title: str
    summary: str
    exactness: str
    paper: Paper | None
    look_at: str
    compose: Callable[[Any, Any], Composition]
    modality: tuple[str, ...] = ("text",)
    token_exact: bool = False
    parameters: type = NoParameters
    weights: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()
    needs_draft: bool = False
    needs: str = ""
    bound: str = ""
    family: str = "other"
    claim: str = ""
    differs: str = ""
    in_distribution: tuple[str, str] | None = None
    token_exact_with: tuple[str, str] | None = None
    published: tuple[str, ...] = ()
    pair: str = ""
    warm_up: Callable[[Any, threading.Event, Callable[[str, float | None], None]], str] | None = None

    def runs_on(self, modality: str) -> bool:
        """Whether it can run on such targets, if only with heads that the user names."""
        return modality in (*self.modality, *self.published)

    @property
    def takes_draft(self) -> bool:
        """Whether a user may name what drafts: what drafts from the text alone, with every setting, has no use for it."""
        drafts_from_text = self.family in ("none", "memory")
        return not drafts_from_text or any(own.name == "drafter" for own in fields(self.parameters))

    @property
    def exception(self) -> str:
        """With which choice a method is less exact, or more, than it is by itself, in words; empty where there is none."""
        if self.token_exact_with:
            return f"token for token with {chosen(self.token_exact_with)}"
        return f"in distribution with {chosen(self.in_distribution)}" if self.in_distribution else ""

    def card(self) -> dict[str, Any]:
        """What a program asks of a method first: what it is and how exact, as plain data."""
        lists = {
            name: list(getattr(self, name) or ()) for name in ("modality", "published", "in_distribution", "token_exact_with")
        }
        return {name: getattr(self, name) for name in ("name", "title", "summary", "exactness", "token_exact")} | lists


_METHODS: dict[str, Method] = {}


def method(**card: Any) -> Callable[[Callable[[Any, Any], Composition]], Callable[[Any, Any], Composition]]:
    """Register the decorated ``compose(parameters, parts)`` under the given card (the fields of :class:`Method`).

    A figure that was measured is a key of ``assets/results.json`` in braces in ``differs``, filled here.
    """

    def register(compose: Callable[[Any, Any], Composition]) -> Callable[[Any, Any], Composition]:
        new_method = Method(compose=compose, **card | {"differs": filled(card.get("differs", ""))})
        if new_method.name in _METHODS or new_method.family not in FAMILIES:
            raise ValueError(f"two methods are called {new_method.name}, or its family {new_method.family} has no title")
        _METHODS[new_method.name] = new_method
        return compose

    return register


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
