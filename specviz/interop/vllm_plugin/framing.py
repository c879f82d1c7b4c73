"""Messages from vLLM's process to the writing process: each is a safetensors file, preceded by its length."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import IO, Any

import numpy as np
from safetensors.numpy import load, save

_LENGTH = 8
_WORDS = ""
"""Name of the array that holds the message's kind and content as JSON."""


def send(out: IO[bytes], kind: str, content: Any, arrays: dict[str, np.ndarray] | None = None) -> None:
    """Write one message: ``content`` is plain JSON, ``arrays`` hold numbers."""
    words = np.frombuffer(json.dumps([kind, content]).encode(), np.uint8)
    message = save({_WORDS: words, **(arrays or {})})
    out.write(len(message).to_bytes(_LENGTH, "little") + message)
    out.flush()


def received(source: IO[bytes]) -> Iterator[tuple[str, Any, dict[str, list[Any]]]]:
    """Yield kind, content and arrays (as lists) of each message, until the input ends, or breaks off within a message."""
    while len(length := source.read(_LENGTH)) == _LENGTH:
        size = int.from_bytes(length, "little")
        message = source.read(size)
        if len(message) < size:
            return
        arrays = load(message)
        kind, content = json.loads(arrays.pop(_WORDS).tobytes())
        yield kind, content, {name: array.tolist() for name, array in arrays.items()}
