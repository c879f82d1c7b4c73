"""Persistent store of learned costs: times of a model's passes and of drafter forwards on this machine."""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections.abc import Mapping
from contextlib import suppress

import msgspec
import torch
import transformers

from specviz.engine.cost import TIMED, CostCurve, PassTimes, RunCosts, Timed, measure
from specviz.engine.interfaces import Target
from specviz.engine.stop import locked
from specviz.engine.threads import contention
from specviz.errors import ModelUnavailable
from specviz.models.device import processor
from specviz.models.hub.cache_dir import Progress, cache_folder, ensure_folder, file_lock
from specviz.models.pass_times import FILE, VERSION, Stored, stored
from specviz.version import __version__

MOST = 64
"""Maximum number of entries in the file, one per model and number of threads; the latest are kept."""
AGAIN = 60.0
"""Seconds after which passes of uncertain cost are timed again, for example after a start on a busy machine."""
PATIENCE = 2.0
"""Seconds to wait for another process that is writing the file."""

_VERSIONS = {"specviz": __version__, "torch": torch.__version__, "transformers": transformers.__version__}
_LOG = logging.getLogger(__name__)
_KNOWN: dict[str, PassTimes] = {}
_TIMED: dict[str, float] = {}
_LOCK = threading.RLock()


class ModelCosts:
    """Costs of one ``model`` on this machine, shared by its runs and learned from them.

    ``facts``: identification of the model. ``chains``: whether the model scores only chains. ``unit``: costs of another model,
    whose one-row pass is the unit of cost; such ratios stay valid when the machine becomes busy.
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
        """Return the costs for one run of the method called ``name``."""
        return RunCosts(self.times, name)

    def times(self, timed: bool = False) -> PassTimes:
        """Return the times for the current number of threads. With ``timed``, a few passes are timed first if the times are
        uncertain.

        Runs that size trees by the times pass ``timed``; runs that only update the times do not. Times from the file serve for
        :data:`AGAIN` seconds, however uncertain, so that the first run after a start need not wait.
        """
        threads = torch.get_num_threads()
        if threads in self._times and not timed:
            return self._times[threads]
        with locked(_LOCK):
            key = self._key()
            if threads not in self._times:  # a run that loses threads midway starts from the times for another number of threads
                known = _KNOWN.get(key) or _read(key)
                if key not in _KNOWN and known:
                    _TIMED[key] = time.monotonic()
                beside = next((times.like() for times in self._times.values()), None)
                self._times[threads] = _KNOWN[key] = known or beside or PassTimes()
            times = self._times[threads]
            if timed and not times.sure and time.monotonic() - _TIMED.get(key, -AGAIN) >= AGAIN:
                _TIMED[key] = time.monotonic()
                if self._unit is not None:
                    measure(self._unit._model, self._unit._learn, (1,))
                measure(
                    self._model, self._learn, self._sizes, self._chains,
                    lambda share: self._progress("Timing the model on this machine", share),
                )  # fmt: skip
                self.keep()
            return times

    def _learn(self, rows: int, milliseconds: float) -> None:
        unit = 1.0 if self._unit is None else self._unit.times().row
        self.times().learn(rows, milliseconds / unit, contention())

    def curve(self) -> CostCurve:
        """Return the milliseconds of a pass by rows. The first call times a few passes if the times are uncertain."""
        first, self._sized = not self._sized, True
        curve = self.times(timed=first).curve
        if not self._unit:
            return curve
        one = self._unit.curve().at(1)
        return CostCurve(curve.widths, tuple(one * ratio for ratio in curve.milliseconds))

    def keep(self) -> None:
        """Write this model's times to the file. A failure is logged as a warning; the next start then times passes again."""
        now = time.time()
        own = {self._key(threads): Stored(**times.state(), at=now) for threads, times in list(self._times.items())}
        try:
            with file_lock("costs", patience=PATIENCE):
                entries = {**stored(), **own}
                latest = sorted(entries, key=lambda key: min(entries[key].at, now))[-MOST:]
                file = ensure_folder(cache_folder()) / FILE
                draft = file.with_suffix(f".{os.getpid()}.tmp")
                draft.write_bytes(msgspec.json.encode({"version": VERSION, "models": {key: entries[key] for key in latest}}))
                draft.replace(file)
        except (OSError, ModelUnavailable) as problem:
            _LOG.warning("The pass times measured here could not be saved for the next start: %s", problem)

    def _key(self, threads: int | None = None) -> str:
        device = self._model.device
        place = {"device": torch.cuda.get_device_name(device)} if device.type == "cuda" else {
            "device": f"{device} {processor()}", "threads": str(threads or torch.get_num_threads()),
            "processors": str(os.cpu_count()),
        }  # fmt: skip
        return json.dumps({**self._facts, **place, **_VERSIONS}, sort_keys=True)


def target_costs(target: Target, progress: Progress, unit: ModelCosts | None = None) -> ModelCosts:
    """Return the costs of a target on this machine, counted in one-row passes of ``unit`` if given."""
    rows = str(getattr(target, "rows", 1))  # guidance reads each code twice
    facts = {"model": f"{target.name} of {target.vocab_size} tokens", "tier": target.tier, "rows": rows}
    return ModelCosts({**facts, "dtype": str(getattr(target, "number_format", target.dtype))}, target, progress, unit=unit)


def _read(key: str) -> PassTimes | None:
    """Return the times stored under ``key``, or None if they are missing or invalid."""
    with suppress(KeyError, ValueError, TypeError):
        entry = stored()[key]
        return PassTimes.of(msgspec.structs.asdict(entry), age=max(0.0, time.time() - entry.at) / 86_400)
    return None
