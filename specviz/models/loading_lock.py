"""Serialised loading: a context manager, since transformers sets process-wide defaults while it loads, that hides its
progress bars; inside, a stop is seen between two of torch's operations.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch.overrides import TorchFunctionMode
from transformers.utils import logging

from specviz.engine.stop import heed, locked

# While it loads, transformers switches what belongs to the whole process: torch's default dtype, its own bars.
_LOADING = threading.Lock()


class _Heeding(TorchFunctionMode):
    """Before each operation of this thread, asks whether its run is still wanted: libraries that load have no such hook."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        heed()
        return function(*args, **(kwargs or {}))


@contextmanager
def exclusive_loading() -> Iterator[None]:
    """Nobody else loads inside, and no bars are drawn but the one of unpacking a GGUF file, which has no switch."""
    with locked(_LOADING), _Heeding():
        bars_enabled = logging.is_progress_bar_enabled()
        logging.disable_progress_bar()
        try:
            yield
        finally:
            if bars_enabled:
                logging.enable_progress_bar()
