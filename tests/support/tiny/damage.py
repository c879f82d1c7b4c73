"""Lies and damage in a file of safetensors."""

from __future__ import annotations

import json
import random
import struct
from pathlib import Path
from typing import Any


def lie_in_header(file: Path, field: str, value: Any, tensor: int = 0) -> None:
    """Give a tensor, by its number, another value in the header."""
    written = file.read_bytes()
    size = struct.unpack("<Q", written[:8])[0]
    header = json.loads(written[8 : 8 + size])
    names = [name for name in header if name != "__metadata__"]
    header[names[tensor % len(names)]][field] = value
    lie = json.dumps(header).encode()
    file.write_bytes(struct.pack("<Q", len(lie)) + lie + written[8 + size :])


def damage(file: Path, count: int, drawn: random.Random, most: int = 1 << 30) -> None:
    """Overwrite some bytes among the first."""
    written = bytearray(file.read_bytes())
    for _ in range(count):
        written[drawn.randrange(min(len(written), most))] = drawn.randrange(256)
    file.write_bytes(bytes(written))
