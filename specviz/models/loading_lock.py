"""Serialised loading, since transformers sets process-wide defaults while it loads.

The context manager also hides progress bars and checks for a stop between two of torch's operations.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch.overrides import TorchFunctionMode
from transformers.utils import logging

from specviz.engine.stop import heed, locked

# While it loads, transformers changes process-wide state: torch's default dtype and its own progress bars.
_LOADING = threading.Lock()


class _Heeding(TorchFunctionMode):
    """Check for a stop before each torch operation of this thread: loaders in libraries have no such hook."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        heed()
        return function(*args, **(kwargs or {}))


@contextmanager
def exclusive_loading() -> Iterator[None]:
    """Exclude concurrent loading, and hide all progress bars except for unpacking a GGUF file, which cannot be disabled."""
    with locked(_LOADING), _Heeding():
        bars_enabled = logging.is_progress_bar_enabled()
        logging.disable_progress_bar()
        try:
            yield
        finally:
            if bars_enabled:
                logging.enable_progress_bar()
