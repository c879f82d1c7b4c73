"""File of learned costs: times of passes on this machine, by model. Imports no torch, because the page shows them too."""

from __future__ import annotations

import json
import math
from contextlib import suppress
from itertools import accumulate
from typing import Any

import msgspec

from specviz.models.hub.cache_dir import cache_folder

FILE = "costs.json"
VERSION = 2
"""Version of the file's format; files with another version are discarded."""
CERTAIN, LEAST_ROWS = 0.2, 16
"""Largest standard deviation of a log cost in one-row passes that counts as measured, and least width of a measured curve."""


class Stored(msgspec.Struct):
    """State of a model's ``PassTimes``, whose widths are powers of two, and the time in seconds at which it was written."""

    logs: list[float]
    spread: list[float]
    forwards: dict[str, tuple[float, float]]
    at: float


class _File(msgspec.Struct):
    version: int
    models: dict[str, msgspec.Raw]


def stored() -> dict[str, Stored]:
    """Return the readable entries of the file; none if it is missing, damaged or of another version."""
    entries = dict[str, Stored]()
    with suppress(OSError, msgspec.DecodeError):
        file = msgspec.json.decode((cache_folder() / FILE).read_bytes(), type=_File)
        for key, entry in file.models.items() if file.version == VERSION else ():
            with suppress(msgspec.DecodeError):
                entries[key] = msgspec.json.decode(entry, type=Stored)
    return entries


def measured(machine: str, target: str) -> dict[str, Any] | None:
    """Return the pass times last measured on a device that the text ``machine`` names, of ``target`` if there are any, or None.

    ``rows``: widths whose cost in one-row passes is certain; ``milliseconds`` of a pass of each; ``at``: seconds since 1970.
    """
    for key, entry in sorted(stored().items(), key=lambda one: (target in one[0], one[1].at), reverse=True):
        with suppress(ValueError, TypeError, LookupError, OverflowError):  # a damaged entry, or one without a certain time
            facts, times = json.loads(key), accumulate(map(math.exp, entry.logs), max)
            known = [(1 << place, time) for place, time in enumerate(times) if entry.spread[place] < CERTAIN]
            rows, milliseconds = zip(*known, strict=True)
            is_certain = rows[0] == 1 and rows[-1] >= LEAST_ROWS
            # A model beside another is timed in that one's passes, and guidance reads each row twice.
            is_plain = facts["rows"] == "1" and "beside" not in facts
            if is_certain and is_plain and facts["device"].removeprefix("cpu ") in machine:
                model = facts["model"].rpartition("/")[2]  # without the server's folders
                return {**facts, "model": model, "rows": rows, "milliseconds": milliseconds, "at": entry.at}
    return None
