"""Cache folder of downloaded models, with files that arrive whole or not at all."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from specviz.errors import ModelUnavailable

Progress = Callable[[str, float | None], None]
"""Told what is going on, and how much of it is done in [0, 1], or None when nobody can know."""


def silent(message: str, fraction: float | None = None) -> None:
    """The progress of someone who does not want to know."""


def cache_folder() -> Path:
    """``SPECVIZ_CACHE`` where it is set, else this platform's place for things that can be fetched again."""
    chosen = os.environ.get("SPECVIZ_CACHE", "").strip()
    return Path(chosen).expanduser() if chosen else _platform_cache() / "specviz"


def _platform_cache() -> Path:
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")


def ensure_folder(folder: Path) -> Path:
    """``folder``, made if it was missing. Raises ModelUnavailable where the cache cannot be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise ModelUnavailable(
            f"Models are kept in {cache_folder()}, which cannot be written ({problem.strerror}). "
            "Set the environment variable SPECVIZ_CACHE to a folder that can."
        ) from problem
    return folder


@contextmanager
def only_one(name: str, progress: Progress = silent, patience: float = 3600.0) -> Iterator[None]:
    """Hold the lock called ``name`` against every other process of this machine; wait ``patience`` seconds for it."""
    lock = FileLock(str(ensure_folder(cache_folder() / "locks") / f"{name}.lock"))
    try:
        lock.acquire(timeout=0)
    except Timeout:
        progress(f"Waiting for another process that is getting {name} ready", None)
        try:
            lock.acquire(timeout=patience)
        except Timeout:
            raise ModelUnavailable(
                f"Another process has been getting {name} ready for {patience:.0f} seconds. "
                f"Stop it, or delete {lock.lock_file} if there is none, and try again."
            ) from None
    try:
        yield
    finally:
        lock.release()


def flushed(file: Path) -> None:
    """Put ``file`` on the disk before anybody renames it into place, so that a power cut leaves no hollow file."""
    with file.open("rb+") as opened:
        os.fsync(opened.fileno())
