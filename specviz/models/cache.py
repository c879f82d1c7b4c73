"""LRU cache of loaded models, limited by device memory, and the lock that serialises loading.

The lock is needed because transformers changes process-wide settings while it loads: torch's default dtype and its progress bars.
"""

from __future__ import annotations

import gc
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

import torch
from torch.overrides import TorchFunctionMode
from transformers.utils import logging

from specviz.engine.stop import heed, locked
from specviz.errors import OutOfMemory
from specviz.models import room
from specviz.models.device import dtype_name, format_of
from specviz.models.hub.catalog import resolve
from specviz.models.packing import check_int8

Thing = TypeVar("Thing")
_LOADING = threading.Lock()
Key = tuple[str, ...]


class ModelCache(Generic[Thing]):
    """LRU cache of models. It evicts a device's models before building one for which there is no room.

    ``limit``: function that returns the bytes available for models on a device. An evicted model still counts while a run uses
    it.
    """

    def __init__(self, limit: Callable[[str], int] = room.limit) -> None:
        self._limit = limit
        self._things: OrderedDict[Key, tuple[Thing, str, int]] = OrderedDict()
        self._leaving: list[tuple[weakref.ref[Any], str, int]] = []
        self._making: dict[Key, threading.Lock] = {}
        self._lock = threading.Lock()

    def get(self, key: Key, make: Callable[[], Thing], size: Callable[[], int] = lambda: 0, device: str = "cpu") -> Thing:
        """Return the entry for ``key``; if it is absent, build it with ``make``.

        ``size``: function that returns the entry's bytes on ``device``. Concurrent calls with the same key build one
        entry. Raises OutOfMemory before building if the entry does not fit.
        """
        with self._lock:
            making = self._making.setdefault(key, threading.Lock())
        with locked(making):
            with self._lock:
                if key in self._things:
                    self._things.move_to_end(key)
                    return self._things[key][0]
            needed = size()
            self._make_room(key[0], needed, device)
            gc.collect()
            model = make()
            with self._lock:
                self._things[key] = model, device, needed
            return model

    def _make_room(self, name: str, needed: int, device: str) -> None:
        limit = self._limit(device) if needed else 0
        with self._lock:
            for key in list(self._things):
                taken = sum(size for _, where, size in self._things.values() if where == device)
                if not needed or taken + needed <= limit:
                    return
                if self._things[key][1] == device:
                    self._let_go(key)
        gc.collect()
        with self._lock:
            self._leaving = [one for one in self._leaving if one[0]() is not None]
            held = sum(size for _, where, size in self._leaving if where == device)
        if needed and held + needed > limit:
            others = f" of which runs still hold {held / 1e9:.1f} GB" if held else ""
            raise OutOfMemory(
                f"{name} needs about {needed / 1e9:.1f} GB of memory, but models on "
                f"{device} may use {max(0, limit) / 1e9:.1f} GB{others}. Choose a smaller model or number format."
            )

    def _let_go(self, key: Key) -> None:
        thing, where, size = self._things.pop(key)
        if size:
            self._leaving.append((weakref.ref(thing), where, size))

    def release(self, first: str | None = None) -> None:
        """Drop the entries whose key starts with ``first`` (None: all entries)."""
        with self._lock:
            for key in list(self._things):
                if first is None or key[0] == first:
                    self._let_go(key)
        gc.collect()


MODELS: ModelCache[Any] = ModelCache()
"""Cache shared by the loaders, so that one memory limit covers all models."""


def load_once(name: str, dtype: str, devices: Sequence[torch.device], make: Callable[[torch.dtype], Thing], *more: Any) -> Thing:
    """Return the model called ``name``, from the cache or built by ``make``.

    ``dtype``: "auto" or the name of a dtype. ``devices``: the devices that share the model. ``more``: further parts of the cache
    key. Raises OutOfMemory or ModelUnavailable.
    """
    place, how = resolve(name), format_of(name, dtype, devices[-1])
    if how == torch.int8:
        check_int8(devices[-1])
    key = (str(place.path or place.name), dtype_name(how), *map(str, (*devices, *more)))
    model: Thing = MODELS.get(
        key, lambda: make(how), lambda: room.memory_of(name, dtype_name(how)) // len(devices), str(devices[-1])
    )
    return model


class _Heeding(TorchFunctionMode):
    """Check for a stop before each torch operation, because the loaders of libraries have no callback for it."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        heed()
        return function(*args, **(kwargs or {}))


@contextmanager
def exclusive_loading() -> Iterator[None]:
    """Serialise loading, check for stops, and hide transformers' progress bars (unpacking a GGUF file still shows one)."""
    with locked(_LOADING), _Heeding():
        bars_enabled = logging.is_progress_bar_enabled()
        logging.disable_progress_bar()
        try:
            yield
        finally:
            if bars_enabled:
                logging.enable_progress_bar()
