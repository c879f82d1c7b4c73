"""LRU cache of loaded models, each built once however many threads ask for it."""

from __future__ import annotations

import gc
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

Thing = TypeVar("Thing")
Key = tuple[str, ...]


class ModelCache(Generic[Thing]):
    """At most ``room`` things; the one used longest ago makes way before a new one is made, so that memory is free."""

    def __init__(self, room: int) -> None:
        self._room = room
        self._things: OrderedDict[Key, Thing] = OrderedDict()
        self._making: dict[Key, threading.Lock] = {}
        self._lock = threading.Lock()

    def get(self, key: Key, make: Callable[[], Thing]) -> Thing:
        """The thing of ``key``, made now if it is not there. Others wait only when they want the same one."""
        with self._lock:
            making = self._making.setdefault(key, threading.Lock())
        with making:
            with self._lock:
                if key in self._things:
                    self._things.move_to_end(key)
                    return self._things[key]
                while len(self._things) >= self._room:
                    self._things.popitem(last=False)
            gc.collect()
            model = make()
            with self._lock:
                self._things[key] = model
            return model

    def release(self, first: str | None = None) -> None:
        """Drop everything, or all whose key starts with ``first``."""
        with self._lock:
            for key in list(self._things):
                if first is None or key[0] == first:
                    del self._things[key]
        gc.collect()
