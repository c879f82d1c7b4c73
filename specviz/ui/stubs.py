"""Import of Gradio without its editor stubs: on every start it writes one per component class, half of its import time."""

from __future__ import annotations

import inspect
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

    inspect.getfile = getfile
    try:
        yield
    finally:
        inspect.getfile = original_getfile
