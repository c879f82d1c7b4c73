"""Import and launch of Gradio without two things it would do: write editor stubs, and go through the environment's proxies.

It writes a stub per component class on every start, half of its import time. Its own address, which it asks, no proxy leads to.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def without_gradio_stubs() -> Iterator[None]:
    """Inside, component classes are made as if they had no source file, which Gradio takes for a reason to write none."""
    original_getfile = inspect.getfile

    def getfile(of: Any) -> str:
        if type(of).__name__ == "ComponentMeta":
            raise OSError("no stub is wanted")
        return original_getfile(of)

    inspect.getfile = getfile  # type: ignore[assignment]
    try:
        yield
    finally:
        inspect.getfile = original_getfile


@contextmanager
def without_proxies() -> Iterator[None]:
    """Inside, HTTP clients that are made take no proxy from the environment, a SOCKS one that they cannot use included."""
    before = {variable: os.environ.get(variable) for variable in ("no_proxy", "NO_PROXY")}
    os.environ.update(dict.fromkeys(before, "*"))
    try:
        yield
    finally:
        for variable, value in before.items():
            if value is None:
                os.environ.pop(variable)
            else:
                os.environ[variable] = value
