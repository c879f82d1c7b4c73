"""Captured work: operations of fixed shape over tensors at fixed addresses, recorded once as a CUDA graph and replayed.

On other devices the work runs directly, so its arithmetic is tested on any machine. Tensors that it reads and writes must keep
their addresses while the graph is in use, and the work must not synchronize with the host.
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
    """Capture ``work``; return a function that replays it, and the result that every replay overwrites.

    Graphs of one ``pool`` share memory for intermediates: they may be replayed in any order, one at a time, and a replay
    overwrites the previous one's result. The work is warmed up on a side stream, as CUDA requires; it runs several times, so its
    writes must not depend on earlier ones. The result is undefined until the first replay. A
    capture takes longer than many rounds and happens once, so it counts towards no run's time.
    """
    with capturing(), _CAPTURING, torch.cuda.device(device):
        side = _side(device)
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):
                work()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        # Another user's run may allocate or copy during the capture, which the default mode would report as an error here.
        with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
            result = work()
    return graph.replay, result


@device_cache(16)
def _side(device: torch.device) -> torch.cuda.Stream:
    """One side stream for all captures: cuBLAS keeps a workspace for every stream that it has ever used."""
    return torch.cuda.Stream(device)
