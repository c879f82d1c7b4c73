"""Small, nasty changes to trace files: to the bytes of a file, and to the values inside its lines."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Sequence
from typing import Any

HOSTILE: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2, 3.0, 0.5, -0.0, 1e308, 2**31, 2**53, 2**63, -(2**70), "", "root", "accepted",
    "x" * 5000, "<script>alert(1)</script>", "\u2028", "\x00", [], {}, [[]], [None], [0, 1], {"a": 1},
    {"type": "copy"}, "eos", "step",
)  # fmt: skip
SNIPPETS = (
    b"NaN", b"Infinity", b"-Infinity", b"1e999", b"9" * 400, b"[" * 3000, b"{", b"}", b'"', b"\\", b"\n", b"\r",
    b"\xff\xfe", b"\xed\xa0\x80", b"\\ud800", b"null", b",", b":", b'"v":2,', b'"seq":0,', b"\xef\xbb\xbf",
)  # fmt: skip


def mutated(lines: list[str], generator: random.Random) -> bytes:
    """The file of ``lines`` with one to three changes."""
    changed = list(lines)
    for _ in range(generator.randint(1, 3)):
        generator.choice((_value, _value, _value, _order, _text))(changed, generator)
    data = "\n".join(changed).encode("utf-8", "surrogatepass")
    return _bytes(data, generator) if generator.random() < 0.4 else data


def changed_value(found: Any, generator: random.Random, values: Sequence[Any] = HOSTILE) -> Any:
    """A copy of a JSON value with one value somewhere inside replaced, dropped, doubled or moved."""
    found = copy.deepcopy(found)
    holder, key = found, None
    while isinstance(holder, dict | list) and holder:
        key = generator.choice(list(holder)) if isinstance(holder, dict) else generator.randrange(len(holder))
        if generator.random() < 0.25 or not isinstance(holder[key], dict | list) or not holder[key]:
            break
        holder = holder[key]
    if key is None:
        return generator.choice(values)
    act = generator.randrange(5)
    if act == 0:
        del holder[key]
    elif act == 1 and isinstance(holder, list):
        holder.insert(key, copy.deepcopy(generator.choice(holder)))
    elif act == 2 and isinstance(holder, dict):
        holder[generator.choice(("extra", "type", "v", ""))] = holder.pop(key)
    elif act == 3 and isinstance(holder[key], int):
        holder[key] += generator.choice((-1, 1, 7))
    else:
        holder[key] = copy.deepcopy(generator.choice(values))
    return found


def _value(lines: list[str], generator: random.Random) -> None:
    place = generator.randrange(len(lines))
    try:
        found = json.loads(lines[place])
    except ValueError:
        return
    lines[place] = json.dumps(changed_value(found, generator), ensure_ascii=generator.random() < 0.5)


def _order(lines: list[str], generator: random.Random) -> None:
    place, other = generator.randrange(len(lines)), generator.randrange(len(lines))
    act = generator.randrange(3)
    if act == 0 and len(lines) > 1:
        del lines[place]
    elif act == 1:
        lines.insert(other, lines[place])
    else:
        lines[place], lines[other] = lines[other], lines[place]


def _text(lines: list[str], generator: random.Random) -> None:
    place = generator.randrange(len(lines))
    cut = generator.randrange(len(lines[place]) + 1)
    lines[place] = lines[place][:cut] + generator.choice(("", "}", "]", ",null", lines[place][:40])) + lines[place][cut:]


def _bytes(data: bytes, generator: random.Random) -> bytes:
    at = generator.randrange(len(data) + 1)
    upto = min(len(data), at + generator.choice((0, 0, 1, 2, 40)))
    return data[:at] + generator.choice(SNIPPETS) + data[upto:]
