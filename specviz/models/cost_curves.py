"""Store of learned costs: what a model's passes, and drafter forwards beside them, cost on this machine, kept between starts."""

from __future__ import annotations

import json
import logging
import os
import shutil
import threading
import time
from collections.abc import Mapping
from typing import Any

import torch
import transformers

from specviz.engine.cost import TIMED, CostCurve, PassTimes, RunCosts, Timed, measure
from specviz.engine.interfaces import Target
from specviz.engine.stop import locked
from specviz.engine.threads import contention
from specviz.errors import ModelUnavailable
from specviz.models.hardware import processor
from specviz.models.hub.cache_dir import Progress, cache_folder, ensure_folder, file_lock
from specviz.version import __version__

VERSION = 2
"""Of the file's format. A file of another version is dropped."""
MOST = 64
"""Models, each on one number of threads, that the file keeps: those that ran last."""
AGAIN = 60.0
"""Seconds until passes whose cost is uncertain, as after a busy beginning, are timed again."""
PATIENCE = 2.0
"""Seconds to wait for another process that writes the file."""

FILE = "costs.json"
_VERSIONS = {"specviz": __version__, "torch": torch.__version__, "transformers": transformers.__version__}
_LOG = logging.getLogger(__name__)
_KNOWN: dict[str, PassTimes] = {}
_TIMED: dict[str, float] = {}
_LOCK = threading.RLock()


class ModelCosts:
    """Costs of one ``model`` here, set apart from all others by ``facts``: shared by its runs, and learned from them.

    ``chains`` is for models that score chains only. Where a ``unit`` is given, its pass of one row is what these costs are
    counted in: their ratio stays while the machine grows busy.
    """

    def __init__(
        self, facts: Mapping[str, str], model: Timed, progress: Progress, sizes: tuple[int, ...] = TIMED, chains: bool = False,
        unit: ModelCosts | None = None,
    ) -> None:  # fmt: skip
        self._facts: dict[str, str] = {**facts, **({} if unit is None else {"beside": unit._facts["model"]})}
        self._model, self._progress = model, progress
        self._sizes, self._chains, self._unit = sizes, chains, unit
        self._times: dict[int, PassTimes] = {}
        self._sized = False

    def run(self, name: str) -> RunCosts:
        """Costs for one run of the method called ``name``."""
        return RunCosts(self.times, name)

    def times(self, timed: bool = False) -> PassTimes:
        """The times on the present number of threads. With ``timed`` a few passes are timed first where they are uncertain, as a
        run does before it sizes trees by them; a run that only teaches them times none."""
        threads = torch.get_num_threads()
        if threads in self._times and not timed:
            return self._times[threads]
        with locked(_LOCK):
            key = self._key()
            if threads not in self._times:  # from the other number of threads where some were taken away in the middle of a run
                known = _KNOWN.get(key) or _read(key)
                beside = next((times.like() for times in self._times.values()), None)
                self._times[threads] = _KNOWN[key] = known or beside or PassTimes()
            times = self._times[threads]
            if timed and not times.sure and time.monotonic() - _TIMED.get(key, -AGAIN) >= AGAIN:
                self._time()
            return times

    def _time(self) -> None:
        """Time a few passes."""
        _TIMED[self._key()] = time.monotonic()
        if self._unit is not None:
            measure(self._unit._model, self._unit._learn, (1,))
        measure(
            self._model, self._learn, self._sizes, self._chains,
            lambda share: self._progress("Timing the model on this machine", share),
        )  # fmt: skip
        self.keep()

    def _learn(self, rows: int, milliseconds: float) -> None:
        unit = 1.0 if self._unit is None else self._unit.times().row
        self.times().learn(rows, milliseconds / unit, contention())

    def curve(self) -> CostCurve:
        """Milliseconds of a pass by its rows, timed on the first call where that is uncertain."""
        first, self._sized = not self._sized, True
        curve = self.times(timed=first).curve
        if self._unit is None:
            return curve
        one = self._unit.curve().at(1)
        return CostCurve(curve.widths, tuple(one * ratio for ratio in curve.milliseconds))

    def keep(self) -> None:
        """Write what is known of this model into the file. Where that cannot be, the next start times a few passes again."""
        states = {self._key(threads): times.state() for threads, times in list(self._times.items())}
        try:
            with file_lock("costs", patience=PATIENCE):
                entries = {**_entries(), **{key: {**state, "at": time.time()} for key, state in states.items()}}
                latest = sorted(entries, key=lambda key: _at(entries[key]))[-MOST:]
                text = json.dumps({"version": VERSION, "models": {key: entries[key] for key in latest}})
                file = ensure_folder(cache_folder()) / FILE
                draft = file.with_suffix(f".{os.getpid()}.tmp")
                draft.write_text(text, encoding="utf-8")
                draft.replace(file)
                shutil.rmtree(cache_folder() / "costs", ignore_errors=True)  # where editions before kept a curve a file
        except (OSError, ModelUnavailable) as problem:
            _LOG.warning("What passes cost here could not be kept for the next start: %s", problem)

    def _key(self, threads: int | None = None) -> str:
        device = self._model.device
        place = {"device": torch.cuda.get_device_name(device)} if device.type == "cuda" else {
            "device": f"{device} {processor()}", "threads": str(threads or torch.get_num_threads()),
            "processors": str(os.cpu_count()),
        }  # fmt: skip
        return json.dumps({**self._facts, **place, **_VERSIONS}, sort_keys=True)


def target_costs(target: Target, progress: Progress, unit: ModelCosts | None = None) -> ModelCosts:
    """The costs of a target here; beside those of another one where that is the ``unit``."""
    rows = str(getattr(target, "rows", 1))  # a guided picture reads every code twice
    facts = {"model": f"{target.name} of {target.vocab_size} tokens", "tier": target.tier, "rows": rows}
    return ModelCosts({**facts, "dtype": str(target.dtype)}, target, progress, unit=unit)


def _entries() -> dict[str, Any]:
    """All that the file keeps; nothing where there is none, one of another version, or none that can be read."""
    try:
        kept = json.loads((cache_folder() / FILE).read_text(encoding="utf-8"))
        entries = kept["models"] if kept["version"] == VERSION else {}
    except (OSError, ValueError, TypeError, KeyError):
        return {}
    return {key: entry for key, entry in entries.items() if isinstance(entry, dict)} if isinstance(entries, dict) else {}


def _at(entry: Mapping[str, Any]) -> float:
    at = entry.get("at")
    return min(float(at), time.time()) if isinstance(at, int | float) else 0.0


def _read(key: str) -> PassTimes | None:
    """What the file keeps under ``key``; None where that is nothing, or nothing that can be read."""
    entry = _entries().get(key)
    try:
        return None if entry is None else PassTimes.of(entry, age=(time.time() - _at(entry)) / 86_400)
    except (ValueError, TypeError, KeyError):
        return None
