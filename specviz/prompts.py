"""Prompts for all reported numbers, from ``assets/prompts/held_out.toml``. None of them is ever training data."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from typing import Any

from specviz.paths import ASSETS

FILE = ASSETS / "prompts" / "held_out.toml"
PICTURE_STYLES = ("noto", "twemoji", "fluent")


@cache
def _read() -> Mapping[str, Any]:
    return tomllib.loads(FILE.read_text(encoding="utf-8"))


def prompts(name: str) -> tuple[str, ...]:
    """Return one set: ``grounded``, ``stories``, ``copying``, ``questions``, ``copies``, ``calibration``, or one of
    :func:`kinds`."""
    held_out = _read()
    return tuple(held_out["kinds"][name] if name in held_out["kinds"] else held_out[name])


def kinds() -> dict[str, tuple[str, ...]]:
    """Return ten prompts of each of six kinds, on which every text drafter is measured."""
    return {name: tuple(several) for name, several in _read()["kinds"].items()}


def pictures(count: int = 64) -> list[str]:
    """Return prompts for pictures of concepts that our models never saw: every concept once, then again in the next style."""
    concepts, styles = _read()["pictures"], PICTURE_STYLES
    turns = [
        f"{concept}, {styles[(at + turn) % len(styles)]} style"
        for turn in range(len(styles))
        for at, concept in enumerate(concepts)
    ]
    return turns[:count]


def table(name: str) -> Mapping[str, Any]:
    """Return a set with an entry per prompt, such as ``sprites``: descriptions in other words, each with its concept's name."""
    return _read()[name]  # type: ignore[no-any-return]


def reserved() -> tuple[str, ...]:
    """Return all prompts that training must not read."""
    sets = ("grounded", "calibration", "stories", "copying", "questions")
    return tuple(prompt for several in (*kinds().values(), *map(prompts, sets)) for prompt in several)
