"""Source code of a method's steps: the functions of its components that draft, judge and commit, from the installed package."""

from __future__ import annotations

import ast
import importlib
import inspect
import sys
import textwrap
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import specviz
from specviz.errors import BadInput
from specviz.methods import registry

PHASES = {"draft": ("draft", "build"), "judge": ("judge",), "commit": ("observe",)}
"""Names of the methods in which a component does the work of a phase, by phase."""
DELEGATION = 2
"""Number of lines of a function that only calls another."""
LINES, FUNCTIONS = 120, 16
"""Maximum numbers of lines per function, and of functions."""


@cache
def of(method: str) -> tuple[dict[str, Any], ...]:
    """Return phase, name, file, first line and text of the functions; the loop's own come first.

    A run's parameters decide which of several components take part. Raises BadInput for an unknown method.
    """
    if method not in registry.all_methods():
        raise BadInput("This version has no method of the run's name, so there is no code to show.")
    from specviz.engine.loop import Decoding

    compose = registry.get(method).compose
    found: dict[Callable[..., Any], str] = {Decoding._round: "loop", Decoding.commit_round: "commit"}
    for component in _components(compose, 2, set()):
        for phase, names in PHASES.items():
            for name in names:
                function = getattr(component, name, None)
                if _ours(function) and inspect.isfunction(function) and len(inspect.getsourcelines(function)[0]) > DELEGATION:
                    found.setdefault(function, phase)
    order = ["loop", *PHASES]
    chosen = sorted(found.items(), key=lambda one: order.index(one[1]))[:FUNCTIONS]
    return tuple(_record(function, phase) for function, phase in chosen)


def _record(function: Callable[..., Any], phase: str) -> dict[str, Any]:
    lines, first = inspect.getsourcelines(function)
    file = Path(inspect.getfile(inspect.unwrap(function))).relative_to(Path(specviz.__path__[0]).parent).as_posix()
    text = textwrap.dedent("".join(lines[:LINES]))
    return {"phase": phase, "name": function.__qualname__, "file": file, "line": first, "text": text}


def _ours(value: object) -> bool:
    return str(getattr(value, "__module__", "")).startswith("specviz.")


def _components(function: Callable[..., Any], depth: int, seen: set[object]) -> Iterator[type]:
    """Yield the classes that a function names, and those named by the functions that it names."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    names = dict(vars(sys.modules[function.__module__]))
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            module = importlib.import_module(node.module)
            names |= {one.asname or one.name: getattr(module, one.name) for one in node.names}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            named = getattr(names.get(node.value.id), node.attr, None)
        else:
            named = names.get(node.id) if isinstance(node, ast.Name) else None
        if not _ours(named) or named in seen:
            continue
        seen.add(named)
        if inspect.isclass(named):
            yield named
        elif inspect.isfunction(named) and depth:
            yield from _components(named, depth - 1, seen)
