"""Registry of training recipes. A recipe is an entry of ``recipes.toml``; the code is in the module of the recipe's family."""

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
    """Recipe for one weights file.

    ``family``: module of ``families`` with a function ``make(job)``. ``minutes``: default training time. ``writes``: name of the
    weights file; empty: the recipe's name. ``settings``: fields of Schedule. ``cuda``: further fields of Schedule on a GPU.
    ``shape``: sizes of the network.
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
    """Request to train. ``data``: dialogue files; empty: the default. ``reserved``: prompts that must not be training data."""

    recipe: Recipe
    device: str
    minutes: float
    resume: bool
    data: tuple[str, ...] = ()
    reserved: tuple[str, ...] = ()


@cache
def recipes() -> Mapping[str, Recipe]:
    """Return all recipes by name."""
    read = tomllib.loads(Path(__file__).with_name("recipes.toml").read_text("utf-8"))
    return MappingProxyType({name: Recipe(name, **entry) for name, entry in read.items()})


def train(
    name: str, device: str = "auto", minutes: float | None = None, resume: bool = False, data: tuple[str, ...] = (),
    reserved: tuple[str, ...] = (),
) -> None:  # fmt: skip
    """Run the recipe ``name`` and print the progress.

    ``minutes``: training time, including the time before a checkpoint; None: the recipe's. ``resume``: continue from the last
    checkpoint. ``data`` and ``reserved``: as in :class:`Job`. Raises BadInput for an unknown name or an invalid time, and
    ModelUnavailable if the target cannot be loaded.
    """
    if name not in recipes():
        raise BadInput(f"There is no recipe {name!r}; choose one of {', '.join(sorted(recipes()))}.")
    recipe = recipes()[name]
    spent = recipe.minutes if minutes is None else minutes
    if not 0 < spent < 60 * 24 * 30:
        raise BadInput(f"minutes is {spent}; choose a positive number of minutes, at most 30 days.")
    family = importlib.import_module(f"specviz.training.families.{recipe.family}")
    family.make(Job(recipe, device, spent, resume, data, reserved))
