"""What a user asks for, and what one user's earlier runs leave for later ones. Plain data: nothing here loads torch."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from specviz.errors import BadInput

MOST_NEW_TOKENS = 4096


@dataclass(frozen=True)
class Request:
    """What to run. ``raw`` skips the chat template; "auto" picks dtype, device and tier by what the machine can do.

    ``image`` is a picture that the prompt is about, a path or a PNG's or JPEG's bytes, for targets that read pictures.
    ``guidance`` is how hard an image follows its prompt, None for what the target was made for. ``temperature`` None is
    0 for text and 1 for images, which want to be drawn.
    """

    method: str
    prompt: str
    target: str = "smollm2-135m-instruct"
    draft: str | None = None
    raw: bool = False
    max_new_tokens: int = 128
    temperature: float | None = None
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    dtype: str = "auto"
    device: str = "auto"
    tier: str = "auto"
    parameters: Mapping[str, Any] = field(default_factory=dict)
    baseline: bool = False
    record: str = "tree"
    image: bytes | str | None = None
    guidance: float | None = None

    def __post_init__(self) -> None:
        if not self.prompt.strip():
            raise BadInput("The prompt is empty; write what the model should continue, or draw.")
        if not 1 <= self.max_new_tokens <= MOST_NEW_TOKENS:
            raise BadInput(
                f"max_new_tokens is {self.max_new_tokens}; choose a whole number from 1 to {MOST_NEW_TOKENS}."
            )
        if not 0 <= self.seed < 2**63:
            raise BadInput(f"seed is {self.seed}; choose a whole number from 0 to 2**63 - 1.")


class Memory:
    """What one user's earlier runs left for later ones: n-gram stores, successor matrices. Bounded, oldest out first."""

    def __init__(self, most: int = 8) -> None:
        self._kept: OrderedDict[tuple[Any, ...], Any] = OrderedDict()
        self._most = most
        self._lock = threading.Lock()

    def recall(self, key: tuple[Any, ...], make: Callable[[], Any]) -> Any:
        """What stands under ``key``, made now if nothing does."""
        with self._lock:
            if key not in self._kept:
                self._kept[key] = make()
            self._kept.move_to_end(key)
            while len(self._kept) > self._most:
                self._kept.popitem(last=False)
            return self._kept[key]

    def forget(self) -> None:
        """Start afresh."""
        with self._lock:
            self._kept.clear()
