"""Registry of the recipes for all weights, and their entry point. A recipe is data in ``recipes.toml``, a family is code."""

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
    """A recipe for one file of weights: ``family`` is a module of ``families`` with ``make(job)``, ``minutes`` its default time.

    ``writes`` names the file of weights, by default the recipe's name. ``settings`` override the schedule's defaults, ``cuda``
    also the settings on a GPU; ``shape`` gives the network's sizes if the family does not.
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
    """The user's request. ``data`` are the dialogue files, empty for the default one; ``reserved`` are prompts that must never
    be training data."""

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
    """Train the weights called ``name`` and print the progress.

    ``resume`` continues from the last checkpoint; ``minutes`` includes the time before it. Raises BadInput for an unknown
    name or an invalid time, ModelUnavailable if the target cannot be loaded.
    """
    if name not in recipes():
        raise BadInput(f"There is no recipe {name!r}; choose one of {', '.join(sorted(recipes()))}.")
    recipe = recipes()[name]
    spent = recipe.minutes if minutes is None else minutes
    if not 0 < spent < 60 * 24 * 30:
        raise BadInput(f"minutes is {spent}; choose a positive number, at most 30 days.")
    family = importlib.import_module(f"specviz.training.families.{recipe.family}")
    family.make(Job(recipe, device, spent, resume, data, reserved))
