"""Captured work: operations of fixed shape over tensors at fixed addresses, recorded once as a CUDA graph and replayed.

Elsewhere the work is simply done, so its arithmetic is tested on any machine. What it reads and writes must stay where it is for
as long as the graph is used, and nothing in it may be asked by the host.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import torch

from specviz.engine.clock import capturing
from specviz.engine.to_device import device_cache

Result = TypeVar("Result")
_CAPTURING = threading.Lock()


def captured(work: Callable[[], Result], device: torch.device, pool: Any = None) -> tuple[Callable[[], None], Result]:
    """What replays ``work``, and the result that every replay fills anew.

    Graphs of one ``pool`` share memory for what lies in between: they may be replayed in any order, one at a time, and a replay
    spoils what the one before it gave. The work is warmed up on a side stream, as CUDA asks; the first replay gives the first
    result.
    """
    with _CAPTURING, torch.cuda.device(device):
        side = _side(device)
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):
                work()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        # Another user's run may allocate or copy meanwhile, which the default mode would count as an error of ours.
        with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
            result = work()
    return graph.replay, result


@device_cache(16)
def _side(device: torch.device) -> torch.cuda.Stream:
    """One for all captures: cuBLAS keeps a workspace for every stream that it has ever worked on."""
    return torch.cuda.Stream(device)


class Captured(Generic[Result]):
    """``work`` gives tensors that are at the same address after every call. It may be done several times over before its first
    result is used, so what it writes must not depend on what it wrote before."""

    def __init__(self, work: Callable[[], Result], device: torch.device) -> None:
        self._work = work
        self._device = device
        self._replay: Callable[[], None] | None = None
        self._result: Result | None = None

    def __call__(self) -> Result:
        if self._device.type != "cuda":
            return self._work()
        if self._replay is None:
            self.record()
        assert self._replay is not None and self._result is not None
        self._replay()
        return self._result

    def record(self) -> None:
        """Capture the work, which takes longer than many rounds and is done once: it is no part of any run's time."""
        with capturing():
            self._replay, self._result = captured(self._work, self._device)
