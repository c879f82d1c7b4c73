"""Cache of values computed once per owner, such as a model, and freed with the owner."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

from specviz.engine.stop import locked

Value = TypeVar("Value")
_LOCK = threading.Lock()
_CACHES: weakref.WeakKeyDictionary[Any, tuple[threading.RLock, dict[Hashable, Any]]] = weakref.WeakKeyDictionary()


def cached(owner: Any, key: Hashable, make: Callable[[], Value]) -> Value:
    """Return ``owner``'s value for ``key``, computed by ``make`` once across all threads.

    ``make`` may look up other keys of the same owner. A value must not hold a strong reference to the owner, or both leak.
    """
    with _LOCK:
        lock, values = _CACHES.setdefault(owner, (threading.RLock(), {}))
    with locked(lock):
        if key not in values:
            values[key] = make()
        return values[key]
