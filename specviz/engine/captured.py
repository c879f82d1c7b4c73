"""Captured work: operations of fixed shape over tensors at fixed addresses, recorded once as a CUDA graph and replayed.

Elsewhere the work is simply done, so its arithmetic is tested on any machine. What it reads and writes must stay where it is for
as long as the graph is used, and nothing in it may be asked by the host.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

import torch

Result = TypeVar("Result")
_CAPTURING = threading.Lock()


class Captured(Generic[Result]):
    """``work`` gives tensors that are at the same address after every call. It may be done several times over before its first
    result is used, so what it writes must not depend on what it wrote before."""

    def __init__(self, work: Callable[[], Result], device: torch.device) -> None:
        self._work = work
        self._device = device
        self._graph: torch.cuda.CUDAGraph | None = None
        self._result: Result | None = None

    def __call__(self) -> Result:
        if self._device.type != "cuda":
            return self._work()
        if self._graph is None:
            self.record()
        assert self._graph is not None and self._result is not None
        self._graph.replay()
        return self._result

    def record(self) -> None:
        """Warm up on a side stream, as CUDA asks, then record. The first replay gives the first result."""
        with _CAPTURING, torch.cuda.device(self._device):
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(2):
                    self._work()
            torch.cuda.current_stream().wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            # Another user's run may allocate or copy meanwhile, which the default mode would count as an error of ours.
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                self._result = self._work()
            self._graph = graph
