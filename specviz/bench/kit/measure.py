"""Timed decoding: one prompt, one method, in the same process and tier as what it is compared with."""

from __future__ import annotations

import gc
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

from specviz.engine.interfaces import Composition
from specviz.request import Memory, Request
from specviz.runner import Prepared, prepare
from specviz.trace.metrics import tau
from specviz.trace.schema import Step

T = TypeVar("T")


@dataclass(frozen=True)
class TimedRun:
    """One decoded prompt: seconds of decoding without prefill and capturing, its steps, its output."""

    seconds: float
    steps: tuple[Step, ...]
    ids: tuple[int, ...]

    @property
    def tau(self) -> float:
        """Tokens a target pass; 1 when every step was cut."""
        return tau(self.steps) or 1.0

    @property
    def per_token(self) -> float:
        """Seconds a token."""
        return self.seconds / max(1, len(self.ids))


@dataclass(frozen=True)
class PictureQuestion:
    """A picture, as PNG bytes, and a question about it."""

    picture: bytes
    question: str


COMMON: dict[str, Any] = {}
"""What every request of a suite is asked with beside the suite's own settings, such as ``dtype``."""


@dataclass
class Bencher:
    """Prepares requests on one target and runs them. ``memory`` None gives every run a fresh one."""

    target: str
    tokens: int = 96
    settings: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.settings = {**COMMON, **self.settings}

    def prepared(
        self, method: str, prompt: str | PictureQuestion, temperature: float = 0.0, memory: Memory | None = None, **more: Any
    ) -> Prepared:
        """A request made ready; the model is loaded once per process."""
        if isinstance(prompt, PictureQuestion):
            more, prompt = {**more, "image": prompt.picture}, prompt.question
        request = Request(
            method=method,
            prompt=prompt,
            target=self.target,
            max_new_tokens=self.tokens,
            temperature=temperature,
            parameters=more.pop("parameters", {}),
            **{**self.settings, **more},
        )
        return prepare(request, memory)

    def timed_run(self, ready: Prepared, seed: int = 0, record: str = "off", composition: Composition | None = None) -> TimedRun:
        """Decode and time, with a new composition unless one is given. Garbage is collected before, not during."""
        decoding = ready.decoding(composition or ready.compose(), seed, record, threading.Event())
        gc.collect()
        started = time.perf_counter()
        steps = tuple(decoding.steps())
        apart = decoding.outcome.prefill_ns + decoding.outcome.capture_ns
        seconds = time.perf_counter() - started - apart / 1e9
        return TimedRun(seconds, steps, tuple(decoding.outcome.output_ids))


def in_own_thread(work: Callable[[], T]) -> T:
    """What ``work`` returns, done in a thread of its own that ends with it.

    Each thread that computes keeps helpers for its operations, and where there are more of them than cores, all of them
    sleep between operations instead of waiting awake: a run in one thread slows down for what another once did.
    """
    with ThreadPoolExecutor(max_workers=1) as pool:
        return pool.submit(work).result()


def median_ratio(first: Callable[[], float], second: Callable[[], float], pairs: int) -> tuple[float, list[float]]:
    """Median of first/second over interleaved pairs (order swapped every time, so that drift cancels), and all ratios."""
    ratios = []
    for number in range(pairs):
        if number % 2:
            below, above = second(), first()
        else:
            above, below = first(), second()
        ratios.append(above / below)
    return statistics.median(ratios), ratios


def range_text(ratios: Sequence[float]) -> str:
    """The range, for a reader who wants to know how sure a median is."""
    return f"{min(ratios):.2f}–{max(ratios):.2f} over {len(ratios)}"
