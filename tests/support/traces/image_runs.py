"""Whole traces of tiny image runs, made by the engine itself: what the tests of views, viewer and tab look at."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from specviz.pipeline import image
from specviz.pipeline.runner import run
from specviz.trace.schema import Trace
from tests.support.tiny.images import tiny_image_drafter, tiny_pair, tiny_patches, tiny_samplers

PROMPT = "red apple"
GRID = 8


@contextmanager
def tiny_models(grid: int = GRID) -> Iterator[None]:
    """The models that ship, replaced by tiny random ones of the same class."""
    large, small = tiny_pair(0, grid, 60)
    known = {"emoji-64": replace(large, name="emoji-64"), "emoji-32": replace(small, name="emoji-32")}
    monkey = pytest.MonkeyPatch()
    monkey.setattr(image, "load_image_model", lambda name, *_: known[name])
    monkey.setattr(image, "image_drafter", tiny_image_drafter)
    monkey.setattr(image, "image_samplers", tiny_samplers)
    monkey.setattr(image, "code_patches", tiny_patches)
    try:
        yield
    finally:
        monkey.undo()


PARAMETERS: dict[str, dict[str, Any]] = {
    "lantern_pp": {"factor": 4.0, "tree": "25"},  # by default the tree depends on the machine
    "lantern": {"nodes": 12, "delta": 0.3},
    "mulo_sd": {"tau": 0.08, "pool": 6},
    "speculative_jacobi": {"window": 6},
}


@cache
def image_trace(method: str = "lantern_pp") -> Trace:
    """A run of 64 codes."""
    given = PARAMETERS.get(method, {})
    with tiny_models():
        return run(method=method, prompt=PROMPT, target="emoji-64", temperature=1.0, parameters=given)
