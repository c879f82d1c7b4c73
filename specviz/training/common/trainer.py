"""What every recipe shares: gradients on all cores, a learning rate by the clock, checkpoints that resume."""

from __future__ import annotations

import json
import os
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from specviz.models.device import cpu_has_bfloat16

Part = TypeVar("Part")
Report = Callable[[Mapping[str, float]], None]


@dataclass
class Progress:
    """How far a recipe has come. ``seconds`` is training time alone, over all resumptions; ``before`` says in words what
    was spent on the weights it began with, nothing when they were fresh."""

    updates: int = 0
    seconds: float = 0.0
    tokens: int = 0
    history: list[dict[str, float]] = field(default_factory=list)
    before: str = ""

    def spent(self, device: str) -> str:
        """For the card: training time and answer tokens."""
        now = f"{self.seconds / 60:.0f} minutes on {device}, {self.tokens} answer tokens"
        return f"{self.before}, then {now}" if self.before else now


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
            while not self.failed:
                self._add(self._waiting.get_nowait())
        except queue.Empty:
            return
        except Exception as problem:
            self.failed.append(problem)

    def _add(self, part: Any) -> None:
        with arithmetic(self._leaves[0].device):
            one = self._loss(part)
        found = torch.autograd.grad(one, self._leaves)
        with self._lock:
            self.value += float(one.detach())
            # Not in place: two leaves may have been given one and the same gradient tensor.
            self.total = [a + b for a, b in zip(self.total, found, strict=True)] if self.total else list(found)


def rate(peak: float, share: float, updates: int, warm: int = 40, falling: float = 0.45) -> float:
    """The learning rate when ``share`` of the time is gone: a short warm-up, then constant, then straight down to 2
    %."""
    fall = 1.0 if share < 1 - falling else max(0.02, (1 - share) / falling)
    return peak * fall * min(1.0, (updates + 1) / warm)


def write_checkpoint(path: Path, tensors: Mapping[str, Tensor], progress: Progress) -> None:
    """Write a checkpoint whole or not at all: a training stopped in the middle of it keeps the one before."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_suffix(".new")
    held = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    save_file(held, fresh, metadata={"progress": json.dumps(asdict(progress))})
    os.replace(fresh, path)


def goes_on(resume: bool, checkpoint: Path, before: str = "") -> bool:
    """Whether a training goes on from ``checkpoint``. One that was to, finds none and has no other weights to begin with
    (``before`` says what was spent on those) starts anew, and says so."""
    found = checkpoint.is_file()
    if resume and not found and not before:
        print(f"There is no checkpoint {checkpoint.name} to go on from: starting anew.", flush=True)
    return resume and found


def read_checkpoint(path: Path) -> tuple[dict[str, Tensor], Progress]:
    """Tensors and progress of a checkpoint."""
    with safe_open(path, framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}
        progress = Progress(**json.loads((file.metadata() or {})["progress"]))
    return tensors, progress


class Clock:
    """Training time, kept apart from the time spent measuring and saving.

    With ``workers`` it is the time that many cores have really worked: on a machine that others use too, a schedule by
    the wall clock would be over before anything was learned. Without, it is the wall clock's.
    """

    def __init__(self, progress: Progress, minutes: float, workers: int | None = None) -> None:
        self.progress = progress
        self.limit = 60 * minutes
        self._workers = workers
        self._since = self._now()

    def _now(self) -> float:
        return time.monotonic() if self._workers is None else time.process_time() / self._workers

    def start(self) -> None:
        """Training goes on from here."""
        self._since = self._now()

    def stop(self) -> None:
        """Add the time since ``start``."""
        now = self._now()
        self.progress.seconds += now - self._since
        self._since = now

    @property
    def share(self) -> float:
        """How much of the time allowed is gone, 0 to 1."""
        return min(1.0, self.progress.seconds / self.limit)
