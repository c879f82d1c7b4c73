"""Cache folder of downloaded models: location, locks, disk space and write errors."""

from __future__ import annotations

import errno
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from safetensors import SafetensorError

from specviz.errors import ModelUnavailable

Progress = Callable[[str, float | None], None]
"""Callback that receives a message about the current work and the completed share in [0, 1], None if unknown."""


MOST_RESERVED = 2e9
"""Maximum bytes of memory or disk kept free for the app, libraries and key-value caches; small machines keep a fraction."""
_TURN_SECONDS = 0.25
_FULL = ("No space left", "Disk quota exceeded", "not enough space on the disk")


def no_progress(message: str, fraction: float | None = None) -> None:
    """Ignore progress."""


def cache_folder() -> Path:
    """Return ``SPECVIZ_CACHE`` if set, else the platform's cache folder."""
    if chosen := os.environ.get("SPECVIZ_CACHE", "").strip():
        return Path(chosen).expanduser()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "specviz"
    name, default = ("LOCALAPPDATA", "AppData/Local") if sys.platform == "win32" else ("XDG_CACHE_HOME", ".cache")
    return Path(os.environ.get(name) or Path.home() / default) / "specviz"


def ensure_folder(folder: Path) -> Path:
    """Create ``folder`` if it is missing, and return it. Raises ModelUnavailable if that fails."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise ModelUnavailable(
            f"Models are kept in {cache_folder()}, which cannot be written ({problem.strerror}). "
            "Set the environment variable SPECVIZ_CACHE to a writable folder."
        ) from problem
    return folder


def check_disk(name: str, size: int, folder: Path) -> None:
    """Raise ModelUnavailable if ``size`` bytes of files would leave too little space on the disk of ``folder``."""
    while not folder.exists():
        folder = folder.parent
    disk = shutil.disk_usage(folder)
    room = disk.free - min(MOST_RESERVED, disk.total / 20)
    if size > room:
        raise ModelUnavailable(
            f"{name} takes {size / 1e9:.1f} GB of disk, but {max(0.0, room / 1e9):.1f} GB are left for models here. Choose a "
            "smaller model, or free space where SPECVIZ_CACHE and HF_HOME are."
        )


@contextmanager
def file_lock(name: str, progress: Progress = no_progress, patience: float = 3600.0) -> Iterator[None]:
    """Hold the inter-process lock called ``name``. Raises ModelUnavailable after waiting ``patience`` seconds.

    While waiting, ``progress`` is called several times a second; an error raised by ``progress`` ends the wait.
    """
    lock = FileLock(str(ensure_folder(cache_folder() / "locks") / f"{name}.lock"))
    end, turn = time.monotonic() + patience, 0.0
    while not lock.is_locked:
        try:
            with cache_write(name):
                lock.acquire(timeout=turn)
        except Timeout:
            progress(f"Waiting for another process that is preparing {name}", None)
            turn = min(_TURN_SECONDS, end - time.monotonic())
            if turn <= 0:
                raise ModelUnavailable(
                    f"Another process has been preparing {name} for {patience:.0f} seconds. "
                    f"Stop it, or delete {lock.lock_file} if none is running, and try again."
                ) from None
    try:
        yield
    finally:
        lock.release()


@contextmanager
def cache_write(name: str) -> Iterator[None]:
    """Turn errors raised while the cache is written into ModelUnavailable."""
    try:
        yield
    except Timeout:  # from a lock; Timeout is an OSError
        raise
    except (OSError, SafetensorError) as problem:
        reason = "the disk is full" if disk_is_full(problem) else getattr(problem, "strerror", None) or problem
        raise ModelUnavailable(disk_full_message(name, str(reason))) from problem


def disk_full_message(name: str, reason: str = "the disk is full") -> str:
    """Return the message for a failed write to the cache."""
    return (
        f"{name} could not be written to {cache_folder()} ({reason}). "
        "Free disk space, or set SPECVIZ_CACHE to a folder on another disk."
    )


def disk_is_full(problem: BaseException | str) -> bool:
    """Return whether an error, its cause, or a log reports a full disk."""
    if isinstance(problem, str):
        return any(words in problem for words in _FULL)
    if isinstance(problem, OSError) and problem.errno in (errno.ENOSPC, errno.EDQUOT):
        return True
    cause = problem.__cause__ or problem.__context__
    return disk_is_full(str(problem)) or (cause is not None and disk_is_full(cause))


def read_json(file: Path) -> dict[str, Any]:
    """Return the JSON object in ``file``, or an empty one if the file is missing or unreadable."""
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def fsync(file: Path) -> None:
    """Flush ``file`` to disk before a rename, so that a power cut leaves no empty file."""
    with file.open("rb+") as opened:
        os.fsync(opened.fileno())
