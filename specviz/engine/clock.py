"""Step timing: host clock on a CPU, CUDA events on a GPU (read one step later, never waited for)."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import TracebackType

import torch

from specviz.trace.schema import Nanoseconds

_PHASES = ("draft", "verify", "judge", "commit")


_OF_THREAD = threading.local()


class Untimed:
    """Time spent on notes alone (such as another drafter's proposals), or on captures, which serve all later runs.

    It is not part of the method, so steps report it separately. On a GPU, entering and leaving synchronize. Nested blocks count
    once. ``spent`` is the total in nanoseconds, ``capturing`` the part spent on ``captures`` captures.
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

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
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
def capturing() -> Iterator[None]:
    """Exclude the ``with`` block, a capture for all later passes, from the current thread's run, which reports it separately."""
    untimed: Untimed | None = getattr(_OF_THREAD, "untimed", None)
    if untimed is None:
        yield
        return
    with untimed:
        since = untimed._now()
        try:
            yield
        finally:
            untimed.capturing += untimed._now() - since
            untimed.captures += 1


@dataclass
class Stopwatch:
    """Marks the end of each phase of one step. A phase may be marked more than once; its parts add up.

    Time spent in ``untimed`` counts towards no phase. The step reports it as ``aside``, without the capture time.
    """

    device: torch.device
    untimed: Untimed | None = None
    _started: int = 0
    _marks: list[tuple[str, int | torch.cuda.Event, int]] = field(default_factory=list)
    _first: int | torch.cuda.Event = 0
    _ended: int = 0
    _before: int = 0
    _after: int = 0
    _captured: int = 0

    def start(self, carried: int = 0) -> None:
        """Begin a step. ``carried`` nanoseconds of host work since the last step count towards it."""
        self._marks = []
        self._started = time.perf_counter_ns() - carried
        self._before = self._aside()
        self._captured = -self._capturing()
        self._first = self._now()

    def _aside(self) -> int:
        return 0 if self.untimed is None else self.untimed.spent

    def _capturing(self) -> int:
        return 0 if self.untimed is None else self.untimed.capturing

    def _now(self) -> int | torch.cuda.Event:
        if self.device.type != "cuda":
            return time.perf_counter_ns()
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self.device))
        return event

    def mark(self, phase: str) -> None:
        """End ``phase`` ("draft", "verify", "judge", "commit"), which began at the previous mark."""
        self._marks.append((phase, self._now(), self._aside()))

    def stop(self) -> None:
        """End the step: its length is the wall time since :meth:`start`."""
        self._ended, self._after = time.perf_counter_ns(), self._aside()
        self._captured += self._capturing()

    def read(self) -> Nanoseconds:
        """Return the phases, with the rest of the wall time as ``host``. On CUDA the events must have completed."""
        spent = dict.fromkeys(_PHASES, 0)
        before, aside_before = self._first, self._before
        for phase, mark, aside in self._marks:
            if isinstance(before, int) and isinstance(mark, int):
                passed = mark - before
            else:
                assert not isinstance(before, int) and not isinstance(mark, int), "marks of one step are of one kind"
                passed = int(before.elapsed_time(mark) * 1e6)
            spent[phase] += max(0, passed - (aside - aside_before))
            before, aside_before = mark, aside
        aside = self._after - self._before
        wall = self._ended - self._started - aside
        return Nanoseconds(**spent, host=max(0, wall - sum(spent.values())), aside=max(0, aside - self._captured))
