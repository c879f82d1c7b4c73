"""Contexts that import and launch Gradio without editor stubs and without the environment's proxies.

Gradio writes a stub per component class at every start, which takes half of its import time. It also requests its own
address, which no proxy reaches.
"""

from __future__ import annotations

import inspect
import os
from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch


def without_gradio_stubs() -> AbstractContextManager[Any]:
    """Hide the source files of component classes in this context, so that Gradio writes no stubs."""
    original_getfile = inspect.getfile

    def getfile(of: Any) -> str:
        if type(of).__name__ == "ComponentMeta":
            raise OSError("no stub is wanted")
        return original_getfile(of)

    return patch.object(inspect, "getfile", getfile)


def without_proxies() -> AbstractContextManager[Any]:
    """Make HTTP clients created in this context ignore the environment's proxies, including SOCKS ones they cannot use."""
    return patch.dict(os.environ, no_proxy="*", NO_PROXY="*")
