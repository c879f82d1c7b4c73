"""Where a step's time goes: host clock on a CPU, CUDA events on a GPU (read one step later, never waited for)."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import torch

from specviz.trace.schema import Nanoseconds

_PHASES = ("draft", "verify", "judge", "commit")


@dataclass
class Stopwatch:
    """Marks the end of each phase of one step. A phase may be marked more than once; its parts add up."""

    device: torch.device
    _started: int = 0
    _marks: list[tuple[str, int | torch.cuda.Event]] = field(default_factory=list)
    _first: int | torch.cuda.Event = 0
    _ended: int = 0

    def start(self, carried: int = 0) -> None:
        """A new step begins. ``carried`` nanoseconds of host work since the last one are counted to it."""
        self._marks = []
        self._started = time.perf_counter_ns() - carried
        self._first = self._now()

    def _now(self) -> int | torch.cuda.Event:
        if self.device.type != "cuda":
            return time.perf_counter_ns()
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self.device))
        return event

    def mark(self, phase: str) -> None:
        """``phase`` ("draft", "verify", "judge", "commit") ends here, having begun at the mark before."""
        self._marks.append((phase, self._now()))

    def stop(self) -> None:
        """The step ends: the wall time since :meth:`start` is its length."""
        self._ended = time.perf_counter_ns()

    def read(self) -> Nanoseconds:
        """The phases, and as ``host`` the rest of the wall time. On CUDA the events must have passed."""
        spent = dict.fromkeys(_PHASES, 0)
        before = self._first
        for phase, mark in self._marks:
            spent[phase] += self._between(before, mark)
            before = mark
        wall = self._ended - self._started
        return Nanoseconds(**spent, host=max(0, wall - sum(spent.values())))

    @staticmethod
    def _between(before: int | torch.cuda.Event, after: int | torch.cuda.Event) -> int:
        if isinstance(before, int) and isinstance(after, int):
            return after - before
        return int(before.elapsed_time(after) * 1e6)  # type: ignore[union-attr]
