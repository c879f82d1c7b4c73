"""Step timing: the host clock on a CPU, CUDA events on a GPU, which are read one step later and never waited for."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise

import torch

from specviz.trace.schema import Nanoseconds

_PHASES = ("draft", "verify", "judge", "commit")


_OF_THREAD = threading.local()


class Untimed:
    """Time spent only on notes (such as another drafter's proposals) or on captures, which serve all later runs.

    This time is not the method's, so steps report it separately. On a GPU, entering and leaving synchronize. Nested blocks count
    once. ``spent``: total nanoseconds. ``capturing``: nanoseconds of the ``captures`` captures.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._since = 0
        self._depth = 0
        self.spent = 0
        self.capturing = 0
        self.captures = 0

    def __enter__(self) -> None:
        if not self._depth:
            self._since = self._now()
        self._depth += 1

    def __exit__(self, *problem: object) -> None:
        self._depth -= 1
        if not self._depth:
            self.spent += self._now() - self._since

    @contextmanager
    def here(self) -> Iterator[None]:
        """Charge this thread's captures to this run until the ``with`` block ends."""
        outer = getattr(_OF_THREAD, "untimed", None)
        _OF_THREAD.untimed = self
        try:
            yield
        finally:
            _OF_THREAD.untimed = outer

    def _now(self) -> int:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return time.perf_counter_ns()


@contextmanager
def capturing(passes: int = 1) -> Iterator[None]:
    """Exclude the ``with`` block from the times of the current thread's run, which reports it separately. In the block,
    ``passes`` are captured for all later runs.
    """
    untimed: Untimed | None = getattr(_OF_THREAD, "untimed", None)
    if not untimed:
        yield
        return
    with untimed:
        since = untimed._now()
        try:
            yield
        finally:
            untimed.capturing += untimed._now() - since
            untimed.captures += passes


class Stopwatch:
    """Clock of one step, which marks the end of each phase. A phase may be marked more than once; its parts add up.

    Time spent in ``untimed`` counts towards no phase; the step reports it as ``aside``, without the capture time.
    """

    def __init__(self, device: torch.device, untimed: Untimed) -> None:
        self.device = device
        self.untimed = untimed
        self._marks: list[tuple[str, int | torch.cuda.Event, int]] = []
        self._begin = self._end = (0, 0, 0)

    def start(self, carried: int = 0) -> None:
        """Begin a step. ``carried``: nanoseconds of host work since the previous step, which count towards this one."""
        self._begin = (time.perf_counter_ns() - carried, self.untimed.spent, self.untimed.capturing)
        self._marks = [("", self._now(), self.untimed.spent)]

    def mark(self, phase: str) -> None:
        """End ``phase`` ("draft", "verify", "judge", "commit"), which began at the previous mark."""
        self._marks.append((phase, self._now(), self.untimed.spent))

    def _now(self) -> int | torch.cuda.Event:
        if self.device.type != "cuda":
            return time.perf_counter_ns()
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self.device))
        return event

    def stop(self) -> None:
        """End the step, whose length is the wall time since :meth:`start`."""
        self._end = (time.perf_counter_ns(), self.untimed.spent, self.untimed.capturing)

    def read(self) -> Nanoseconds:
        """Return the phases, with the rest of the wall time as ``host``. On CUDA, the events must have completed."""
        spent = dict.fromkeys(_PHASES, 0)
        for (_, before, aside_before), (phase, mark, aside) in pairwise(self._marks):
            if isinstance(before, int) and isinstance(mark, int):
                passed = mark - before
            else:
                assert not isinstance(before, int) and not isinstance(mark, int), "marks of one step are of one kind"
                passed = int(before.elapsed_time(mark) * 1e6)
            spent[phase] += max(0, passed - (aside - aside_before))
        wall, aside, captured = (end - begin for begin, end in zip(self._begin, self._end, strict=True))
        return Nanoseconds(**spent, host=max(0, wall - aside - sum(spent.values())), aside=max(0, aside - captured))
