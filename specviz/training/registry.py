"""Which weights this project can make again, and the one way to make them: ``recipes.toml`` is data, a family is code."""

from __future__ import annotations

import importlib
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from specviz.errors import BadInput
from specviz.paths import WEIGHTS as WEIGHTS


@dataclass(frozen=True)
class Recipe:
    """``family`` is a module of ``families`` that holds ``make(job)``; ``minutes`` is how long it runs by default.

    ``writes`` is the file of weights where its name is another. ``settings`` are those that its family has not;
    ``cuda`` is what a GPU changes; ``shape`` is the network's sizes where its family has none.
    """

    name: str
    title: str
    family: str
    minutes: float
    writes: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    cuda: Mapping[str, Any] = field(default_factory=dict)
    shape: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Job:
    """What the user asked for. ``data`` are the dialogue files, none for the usual one; ``reserved`` are prompts that must
    never be training data."""

    recipe: Recipe
    device: str
    minutes: float
    resume: bool
    data: tuple[str, ...] = ()
    reserved: tuple[str, ...] = ()


@cache
def recipes() -> Mapping[str, Recipe]:
    """Every recipe by name."""
    read = tomllib.loads(Path(__file__).with_name("recipes.toml").read_text("utf-8"))
    return MappingProxyType({name: Recipe(name, **entry) for name, entry in read.items()})


def train(
    name: str, device: str = "auto", minutes: float | None = None, resume: bool = False, data: tuple[str, ...] = (),
    reserved: tuple[str, ...] = (),
) -> None:  # fmt: skip
    """Make the weights called ``name`` and print how it goes.

    ``resume`` goes on from the last checkpoint; ``minutes`` counts from the very beginning. Raises BadInput on an
    unknown name or a time that is not positive, ModelUnavailable when the target cannot be had.
    """
    if name not in recipes():
        raise BadInput(f"There is no recipe {name!r}; there are: {', '.join(sorted(recipes()))}.")
    recipe = recipes()[name]
    spent = recipe.minutes if minutes is None else minutes
    if not 0 < spent < 60 * 24 * 30:
        raise BadInput(f"minutes is {spent}; choose a positive number, at most 30 days.")
    family = importlib.import_module(f"specviz.training.families.{recipe.family}")
    family.make(Job(recipe, device, spent, resume, data, reserved))
