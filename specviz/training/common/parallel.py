"""Gradients on all cores: threads that share an update by its parts, and the arithmetic a device is made for."""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from specviz.models.device import cpu_has_bfloat16

Part = TypeVar("Part")


def cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def sharing() -> int:
    """Threads that share an update on a processor; torch itself is kept to one from here on."""
    workers = min(cores(), torch.get_num_threads())
    torch.set_num_threads(1)
    return workers


def gradients(
    parts: Sequence[Part], loss: Callable[[Part], Tensor], leaves: Sequence[Tensor], workers: int
) -> tuple[list[Tensor], float]:
    """Sum over ``parts`` of the loss and its gradients. Each worker takes the next part when it is free.

    Threads share the work by parts and not inside each operation: a core that someone else is using then slows down
    only its own part, while operations split in two would wait for it thousands of times an update.
    """
    sums = _Sums(parts, loss, leaves)
    threads = [threading.Thread(target=sums.work, daemon=True) for _ in range(workers - 1)]
    for thread in threads:
        thread.start()
    sums.work()
    for thread in threads:
        thread.join()
    if sums.failed:
        raise sums.failed[0]
    return sums.total, sums.value


def arithmetic(device: torch.device) -> AbstractContextManager[Any]:
    """Matrix products in bfloat16 where ``device`` is made for it, the rest and the weights in float32."""
    half = products(device) == torch.bfloat16
    return torch.autocast(device.type, torch.bfloat16) if half else nullcontext()


def products(device: torch.device) -> torch.dtype:
    """What ``device`` multiplies fastest in: a processor without bfloat16 of its own took sixteen times as long in it."""
    return torch.bfloat16 if device.type != "cpu" or cpu_has_bfloat16() else torch.float32


def keep_cast(frozen: Tensor) -> None:
    """Let autocast cast a tensor that is not learned once for all parts too: it keeps only what could want a gradient.
    None is computed, since :func:`gradients` asks for those of the leaves alone."""
    frozen.requires_grad_()


def evened(rows: Tensor, step: int = 64) -> Tensor:
    """``rows`` [row, width] with zeros behind them up to a multiple of ``step``.

    oneDNN makes a kernel for every shape it meets, which took a quarter of a training's time where hardly two parts had as many
    rows, and holds on to gigabytes of them.
    """
    return F.pad(rows, (0, 0, 0, -len(rows) % step))


def evenly(products: Callable[[Tensor], Tensor], rows: Tensor) -> Tensor:
    """``products`` of ``rows`` [row, width], row by row, over as many rows as :func:`evened` makes them."""
    return products(evened(rows))[: len(rows)]


class _Sums:
    """Parts that wait, and what those that are done add up to."""

    def __init__(self, parts: Sequence[Any], loss: Callable[[Any], Tensor], leaves: Sequence[Tensor]) -> None:
        self.total: list[Tensor] = []
        self.value = 0.0
        self.failed: list[BaseException] = []
        self._loss, self._leaves = loss, leaves
        self._lock = threading.Lock()
        self._waiting: queue.SimpleQueue[Any] = queue.SimpleQueue()
        for part in parts:
            self._waiting.put(part)

    def work(self) -> None:
        """Take parts until there are none, or one has failed. An error is kept for the thread that started it all."""
        try:
            # One context for all parts: what autocast has cast once it keeps until the end of it, and casting the weights
            # anew for each part took as long as the products.
            with arithmetic(self._leaves[0].device):
                while not self.failed:
                    self._add(self._waiting.get_nowait())
        except queue.Empty:
            return
        except Exception as problem:
            self.failed.append(problem)

    def _add(self, part: Any) -> None:
        loss = self._loss(part)
        with torch.autocast(self._leaves[0].device.type, enabled=False):
            part_gradients = torch.autograd.grad(loss, self._leaves)
        with self._lock:
            self.value += float(loss.detach())
            # Not in place: two leaves may have been given one and the same gradient tensor.
            self.total = [a + b for a, b in zip(self.total, part_gradients, strict=True)] if self.total else list(part_gradients)
