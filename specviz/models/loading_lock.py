"""Serialised loading: a context manager, since transformers sets process-wide defaults while it loads, that hides its
progress bars.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from transformers.utils import logging

# While it loads, transformers switches what belongs to the whole process: torch's default dtype, its own bars.
_LOADING = threading.Lock()


@contextmanager
def exclusive_loading() -> Iterator[None]:
    """Nobody else loads inside, and no bars are drawn but the one of unpacking a GGUF file, which cannot be told to."""
    with _LOADING:
        bars_enabled = logging.is_progress_bar_enabled()
        logging.disable_progress_bar()
        try:
            yield
        finally:
            if bars_enabled:
                logging.enable_progress_bar()
