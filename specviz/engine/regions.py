"""Compiled regions: functions of tensors and numbers whose operations torch's own compiler fuses.

Compilation takes a minute and holds the interpreter's lock, so a separate process compiles into inductor's cache, which later
starts use as well. Until then passes are not compiled. The time to load code from the cache is charged to no run.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch._dynamo
from torch import Tensor
from torch._inductor.runtime.cache_dir_utils import cache_dir

from specviz.engine.clock import capturing

FOLDER = "TORCHINDUCTOR_CACHE_DIR"
"""Environment variable that names inductor's cache."""
LONGEST = 900
"""Seconds after which a compilation process is killed, so that it does not outlive its run for long."""
MOST = 24
"""Maximum number of passes compiled for one model, by width and columns; others are not compiled."""
# Every model and pass specialises the same few functions, of which the compiler accepts eight by default.
torch._dynamo.config.recompile_limit = 8 * MOST

Call = tuple[Callable[..., Any], Sequence[Any]]
"""A region with example arguments: tensors, numbers, None, and tuples of them."""


def _described(one: Any) -> dict[str, Any]:
    """Description of a region (its name) or a tensor (without values) for JSON."""
    if not isinstance(one, Tensor):
        return {"region": (one.__module__, one.__qualname__)}
    return {
        "size": one.shape,
        "stride": one.stride(),
        "dtype": str(one.dtype).removeprefix("torch."),
        "device": str(one.device),
        "axes": sorted(getattr(one, "_dynamo_dynamic_indices", ())),
    }


def _made(form: dict[str, Any]) -> Any:
    if "region" in form:
        module, name = form["region"]
        return getattr(importlib.import_module(module), name)
    axes = form.pop("axes")
    return growing(torch.empty_strided(**{**form, "dtype": getattr(torch, form["dtype"])}).zero_(), *axes)


def growing(tensor: Tensor, *axes: int) -> Tensor:
    """Mark the axes whose lengths a region must not assume, and return the tensor."""
    for axis in axes:
        torch._dynamo.mark_dynamic(tensor, axis)
    return tensor


@cache
def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function as a region. A call with new shapes loads or compiles its code.

    Regions run in inference mode only, and their code stays valid when a run changes torch's number of threads. On a GPU,
    inductor tries several forms of each kernel. For a single row it reads a matrix by a reduction of its own instead of cuBLAS.
    """
    options: Any = {
        "guard_filter_fn": lambda guards: [guard.guard_type != "GLOBAL_STATE" for guard in guards],
        "coordinate_descent_tuning": True,
    }
    return torch.compile(function, fullgraph=True, dynamic=False, options=options)


def obstacle(device: torch.device) -> str:
    """Return the reason why this machine cannot compile for ``device``, or an empty string."""
    if device.type == "cuda":
        return "" if importlib.util.find_spec("triton") else "Triton is not installed"
    found = any(map(shutil.which, (os.environ.get("CXX", "g++"), "clang++", "cl")))
    return "" if found else "there is no C++ compiler"


@torch.inference_mode()
def load(calls: Iterable[Call]) -> None:
    """Run every call: code that is not in the cache is compiled."""
    for function, given in calls:
        compiled(function)(*given)


def main(marker: str, threads: int) -> None:
    """Load the calls that standard input describes, in a separate process, and create the file ``marker``. Code for a CPU
    depends on the number of ``threads``.
    """
    if hasattr(signal, "alarm"):  # not on Windows
        signal.alarm(LONGEST)
    torch.set_num_threads(threads)
    load(json.load(sys.stdin, object_hook=_made))
    Path(marker).touch()


class Regions:
    """Regions of one model's passes. ``calls(width, columns)`` returns those of a pass.

    ``compiled``: whether any pass has switched to compiled code.
    """

    background = True
    """Whether a separate process compiles; else the first pass of a shape waits for the compiler."""

    def __init__(self, calls: Callable[[int, int], list[Call]]) -> None:
        self._calls = calls
        self._jobs: dict[tuple[int, int], bool | subprocess.Popen[bytes]] = {}
        self._lock = threading.Lock()
        self._news: list[str] = []
        self.compiled = False
        self.progress: Callable[[str, float | None], None] = lambda message, share: None

    def ready(self, width: int, columns: int) -> bool:
        """Return whether passes of this shape have compiled code; if not, start to compile it.

        A wider pass waits for the code of one row, so that a method has no better kernels than its baseline.
        """
        return all(self._ready((rows, columns)) for rows in sorted({1, width}))

    def take_news(self) -> list[str]:
        """Return sentences about passes that switched to compiled code or failed to compile since the last call."""
        news, self._news = self._news, []
        return news

    def _ready(self, shape: tuple[int, int]) -> bool:
        job = self._jobs.get(shape)
        if isinstance(job, bool):
            return job
        busy = any(other is False or (other is not True and other.poll() is None) for other in self._jobs.values())
        if busy or (job is None and len(self._jobs) >= MOST):
            return False
        with capturing(0), self._lock:
            if self._jobs.get(shape) is job:  # or another run has continued the job
                self._jobs[shape] = self._advance(job, self._calls(*shape), "passes of {} rows over {} columns".format(*shape))
        return self._jobs[shape] is True

    def _advance(self, job: Any, calls: list[Call], what: str) -> bool | subprocess.Popen[bytes]:
        """Start the compilation, or load its finished code. Return the process, True once loaded, or False on failure."""
        folder = Path(cache_dir()) / "specviz"
        folder.mkdir(parents=True, exist_ok=True)
        described = json.dumps(calls, default=_described)
        marker = folder / hashlib.sha256(f"{torch.__version__} tuned {described}".encode()).hexdigest()[:24]
        output = marker.with_suffix(".log")
        try:
            if job is None and self.background and not marker.exists():
                self.progress(f"Compiling {what}; until then they run uncompiled", None)
                command = [sys.executable, "-c", f"from {__name__} import main; main({str(marker)!r}, {torch.get_num_threads()})"]
                with output.open("wb") as log:
                    job = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=log, stderr=log)
                with job.stdin as stdin:
                    stdin.write(described.encode())
                return job
            if job and job.returncode:
                raise RuntimeError(output.read_text(errors="replace").strip().rpartition("\n")[2])
            load(calls)
        except Exception as problem:  # any error: compilers fail in many ways, and plain passes still run
            self._news.append(f"Compiling {what} failed, so they stay uncompiled: {' '.join(str(problem).split())[:300]}")
            return False
        self.compiled = True
        self._news.append(f"Compiled code now runs {what}.")
        return True
