"""Captured work: operations of fixed shape on tensors at fixed addresses, recorded once as a CUDA graph and replayed.

Tensors that the work reads or writes must keep their addresses while the graph is in use. The work must not synchronize with the
host.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

import torch

from specviz.engine.clock import capturing
from specviz.engine.to_device import device_cache

Result = TypeVar("Result")
_CAPTURING = threading.Lock()


def captured(work: Callable[[], Result], device: torch.device, pool: Any = None) -> tuple[Callable[[], None], Result]:
    """Capture ``work``. Returns a function that replays it, and the result, which each replay overwrites.

    ``pool``: memory pool that graphs may share for intermediates if they are replayed one at a time. A replay then overwrites the
    previous one's result. CUDA requires a warm-up on a side stream, so the work runs several times and must be repeatable. The
    result is undefined before the first replay. Capturing is slow and happens once, so no run is charged for it.
    """
    with capturing(), _CAPTURING, torch.cuda.device(device):
        side = _side(device)
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):
                work()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        # The default mode would report allocations and copies of other users' runs as errors.
        with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
            result = work()
    return graph.replay, result


@device_cache(16)
def _side(device: torch.device) -> torch.cuda.Stream:
    """Return the side stream of all captures; cuBLAS keeps a workspace for each stream that it has ever used."""
    return torch.cuda.Stream(device)
