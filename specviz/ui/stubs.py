"""Import and launch of Gradio without editor stubs and without the environment's proxies.

Gradio writes a stub per component class at every start, half of its import time. It also requests its own address, which no
proxy reaches.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def without_gradio_stubs() -> Iterator[None]:
    """Hide the source files of component classes in this context, so that Gradio writes no stubs."""
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
    """Make HTTP clients created in this context ignore the environment's proxies, including SOCKS ones they cannot use."""
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
