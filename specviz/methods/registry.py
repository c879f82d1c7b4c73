"""One decorator, one dict: every method this app knows, listed without importing torch."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from specviz.errors import BadInput
from specviz.methods.parameters import NoParameters

if TYPE_CHECKING:
    from specviz.engine.interfaces import Composition


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
    run token for token at any temperature. ``look_at`` tells a class what to watch. ``weights`` are catalog names it needs.
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
    needs_draft: bool = False
    bound: str = ""


@dataclass
class _Registry:
    methods: dict[str, Method] = field(default_factory=dict)
    loaded: bool = False


_REGISTRY = _Registry()


def method(**card: Any) -> Callable[[Callable[[Any, Any], Composition]], Callable[[Any, Any], Composition]]:
    """Register the decorated ``compose(parameters, parts)`` under the given card (the fields of :class:`Method`)."""

    def register(compose: Callable[[Any, Any], Composition]) -> Callable[[Any, Any], Composition]:
        made = Method(compose=compose, **card)
        if made.name in _REGISTRY.methods:
            raise ValueError(f"two methods are called {made.name}")
        _REGISTRY.methods[made.name] = made
        return compose

    return register


def all_methods() -> dict[str, Method]:
    """Every method by name. The first call imports the files of this package, none of which imports torch at its top."""
    if not _REGISTRY.loaded:
        package = importlib.import_module("specviz.methods")
        for module in sorted(pkgutil.iter_modules(package.__path__), key=lambda found: found.name):
            importlib.import_module(f"specviz.methods.{module.name}")
        _REGISTRY.loaded = True
    return dict(_REGISTRY.methods)


def get(name: str) -> Method:
    """The method called ``name``. Raises BadInput listing the names there are."""
    known = all_methods()
    if name not in known:
        raise BadInput(f"There is no method {name!r}; there are: {', '.join(sorted(known))}.")
    return known[name]
