"""Store of measured cost curves: what a pass costs on this machine, kept in the cache folder between starts."""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import platform
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import torch
import transformers

import specviz
from specviz.engine.cost import CostCurve, measure
from specviz.engine.interfaces import Target
from specviz.engine.stop import locked
from specviz.errors import ModelUnavailable
from specviz.models.hub.cache_dir import Progress, cache_folder, ensure_folder

KEPT_SECONDS = 7 * 86_400
"""So long a kept curve is taken at a new start. A machine that was busy when it was measured is not thought slow for ever."""

_LOG = logging.getLogger(__name__)
_KNOWN: dict[str, CostCurve] = {}
_LOCK = threading.RLock()

Measure = Callable[[Callable[[int, int], None]], CostCurve]
"""Measures a curve; told the number of each pass and of how many."""


def measured_curve(target: Target, progress: Progress) -> CostCurve:
    """The cost curve of a target here."""
    rows = str(getattr(target, "rows", 1))  # a guided picture reads every code twice
    facts = {"model": f"{target.name} of {target.vocab_size} tokens", "tier": target.tier, "rows": rows}
    return known_curve({**facts, "dtype": str(target.dtype)}, target.device, lambda told: measure(target, told=told), progress)


def known_curve(facts: dict[str, str], device: torch.device, measuring: Measure, progress: Progress) -> CostCurve:
    """The curve of the model that these ``facts`` tell from all others: measured once a week on a machine with its number of
    threads and these versions, and again when one of them changes."""
    with locked(_LOCK):
        key = json.dumps({**facts, **_surroundings(device)}, sort_keys=True)
        if key not in _KNOWN:
            _KNOWN[key] = _read(key) or _measured(key, device, facts, measuring, progress)
        return _KNOWN[key]


def _measured(key: str, device: torch.device, facts: dict[str, str], measuring: Measure, progress: Progress) -> CostCurve:
    curve = measuring(
        lambda number, total: progress(f"Measuring pass {number} of {total}, which is kept for a week", (number - 1) / total)
    )
    if json.dumps({**facts, **_surroundings(device)}, sort_keys=True) == key:  # else threads were taken away meanwhile
        _write(key, curve)
    return curve


def _surroundings(device: torch.device) -> dict[str, str]:
    """What the time of a pass depends on besides the model."""
    place = {"device": torch.cuda.get_device_name(device)} if device.type == "cuda" else {
        "device": f"{device} {_processor()}", "threads": str(torch.get_num_threads()), "processors": str(os.cpu_count()),
    }  # fmt: skip
    return place | {"specviz": specviz.__version__, "torch": torch.__version__, "transformers": transformers.__version__}


def _processor() -> str:
    """The processor's name: Linux tells it in a file, other systems to Python."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8", errors="replace").splitlines() if info.is_file() else []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.processor() or platform.machine()


def _file(key: str) -> Path:
    return cache_folder() / "costs" / f"{hashlib.sha256(key.encode()).hexdigest()[:24]}.json"


def _read(key: str) -> CostCurve | None:
    """The curve kept under ``key``; None where there is none, an old one, or none that can be read: it is measured again then."""
    try:
        file = _file(key)
        if abs(time.time() - file.stat().st_mtime) > KEPT_SECONDS:
            return None
        kept = json.loads(file.read_text(encoding="utf-8"))
        curve = CostCurve(tuple(map(int, kept["widths"])), tuple(map(float, kept["milliseconds"])))
    except (OSError, ValueError, TypeError, KeyError):
        return None
    sound = len(curve.widths) == len(curve.milliseconds) > 0 and all(0 < cost < math.inf for cost in curve.milliseconds)
    return curve if sound and kept.get("key") == key and list(curve.widths) == sorted(set(curve.widths)) else None


def _write(key: str, curve: CostCurve) -> None:
    """Keep a curve. Where the folder cannot be written it is measured again at the next start, and the log says so."""
    try:
        file = ensure_folder(_file(key).parent) / _file(key).name
        draft = file.with_suffix(f".{os.getpid()}.tmp")
        draft.write_text(json.dumps({"key": key, **asdict(curve)}), encoding="utf-8")
        draft.replace(file)
    except (OSError, ModelUnavailable) as problem:
        _LOG.warning("What a pass costs here could not be kept for the next start: %s", problem)
