"""Messages between vLLM's process and the one that writes: JSON and the bytes of arrays, their lengths before them."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from typing import IO, Any

import numpy as np

_LENGTHS = struct.Struct("<QQ")


def send(out: IO[bytes], kind: str, content: Any, arrays: dict[str, np.ndarray] | None = None) -> None:
    """Write one message: ``content`` is plain JSON, ``arrays`` are of numbers."""
    found = {name: np.ascontiguousarray(array) for name, array in (arrays or {}).items()}
    shapes = {name: (array.dtype.str, array.shape) for name, array in found.items()}
    head = json.dumps([kind, content, shapes], separators=(",", ":")).encode()
    body = b"".join(array.tobytes() for array in found.values())
    out.write(_LENGTHS.pack(len(head), len(body)) + head + body)
    out.flush()


def received(source: IO[bytes]) -> Iterator[tuple[str, Any, dict[str, list[Any]]]]:
    """Kind, content and arrays (as lists) of each message, until the input ends, or breaks off within one."""
    while len(lengths := source.read(_LENGTHS.size)) == _LENGTHS.size:
        head_size, body_size = _LENGTHS.unpack(lengths)
        head, body = source.read(head_size), source.read(body_size)
        if len(head) < head_size or len(body) < body_size:
            return
        kind, content, shapes = json.loads(head)
        arrays, at = {}, 0
        for name, (dtype, shape) in shapes.items():
            size = int(np.prod(shape))
            arrays[name] = np.frombuffer(body, np.dtype(dtype), size, at).reshape(shape).tolist()
            at += size * np.dtype(dtype).itemsize
        yield kind, content, arrays
