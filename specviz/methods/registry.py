"""Registry of methods: one decorator, one dict, listed without importing torch."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from specviz.errors import BadInput, shown
from specviz.methods.parameters import NoParameters

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

    ``exactness`` is "exact" or "relaxed"; ``token_exact`` says that with the same seed the output equals the autoregressive
    run token for token at any temperature, but for the one (parameter, choice) in ``in_distribution``, with which only the
    distribution is the target's. ``token_exact_with`` is the one with which a method that is not token exact by itself is.
    ``published`` are modalities in which it drafts with heads that the user names alone, as none ship.
    ``look_at`` tells a class what to watch. ``weights`` are catalog names it needs, ``targets`` are the
    catalog's targets that it runs on, the one that ships first; empty where it is not so choosy.
    ``needs`` says what it cannot run without, where that is more than a drafter or a draft model for the target.
    ``family`` is a key of FAMILIES. ``claim`` is the speed the paper reports, with the model it was measured on;
    ``differs`` says why a small model on a small machine sees something else.
    """

    name: str
    title: str
    summary: str
    modality: tuple[str, ...]
    exactness: str
    token_exact: bool
    paper: Paper | None
    look_at: str
    compose: Callable[[Any, Any], Composition]
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
        return {
            "name": self.name,
            "title": self.title,
            "summary": self.summary,
            "modality": list(self.modality),
            "published": list(self.published),
            "exactness": self.exactness,
            "token_exact": self.token_exact,
            "in_distribution": list(self.in_distribution or ()),
            "token_exact_with": list(self.token_exact_with or ()),
        }


@dataclass
class _Registry:
    methods: dict[str, Method] = field(default_factory=dict)
    loaded: bool = False


_REGISTRY = _Registry()


def method(**card: Any) -> Callable[[Callable[[Any, Any], Composition]], Callable[[Any, Any], Composition]]:
    """Register the decorated ``compose(parameters, parts)`` under the given card (the fields of :class:`Method`)."""

    def register(compose: Callable[[Any, Any], Composition]) -> Callable[[Any, Any], Composition]:
        new_method = Method(compose=compose, **card)
        if new_method.name in _REGISTRY.methods or new_method.family not in FAMILIES:
            raise ValueError(f"two methods are called {new_method.name}, or its family {new_method.family} has no title")
        _REGISTRY.methods[new_method.name] = new_method
        return compose

    return register


def all_methods() -> dict[str, Method]:
    """Every method by name. The first call imports the files of this package, none of which imports torch at its top."""
    if not _REGISTRY.loaded:
        package = importlib.import_module("specviz.methods")
        for module in sorted(pkgutil.iter_modules(package.__path__), key=lambda entry: entry.name):
            importlib.import_module(f"specviz.methods.{module.name}{'.method' if module.ispkg else ''}")
        _REGISTRY.loaded = True
    return dict(_REGISTRY.methods)


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
