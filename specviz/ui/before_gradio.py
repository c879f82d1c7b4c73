"""Setup before Gradio is imported: a private upload folder, swept by age and removed when the process ends."""

from __future__ import annotations

import asyncio
import atexit
import inspect
import os
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, asynccontextmanager, suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

from filelock import FileLock, Timeout


def without_gradio_stubs() -> AbstractContextManager[Any]:
    """Hide the source files of component classes in this context, so that Gradio writes no stub files."""
    # Gradio 6.31 has no setting for it: it parses the source of every component and writes beside it, in a shared installation
    # too. Importing it takes half the time without (2.4 s instead of 4.8 s on two cores).
    original_getfile = inspect.getfile

    def getfile(of: Any) -> str:
        if type(of).__name__ == "ComponentMeta":
            raise OSError("no stub is wanted")
        return original_getfile(of)

    return patch.object(inspect, "getfile", getfile)


def without_proxies() -> AbstractContextManager[Any]:
    """Make HTTP clients created in this context ignore the proxies set in the environment."""
    return patch.dict(os.environ, no_proxy="*", NO_PROXY="*")


VARIABLE = "GRADIO_TEMP_DIR"
PREFIX = "specviz-uploads-"
LOCK = ".lock"
EVERY, AGE = 300.0, 900.0
"""Interval of the sweeps and maximum age of a file, in seconds."""
STARTING = 60.0
"""Maximum time in seconds between the creation and the locking of a folder."""


def claim() -> None:
    """Create an upload folder and set GRADIO_TEMP_DIR to it. Must be called before Gradio is imported.

    The folder is created below the previous GRADIO_TEMP_DIR or the system's temporary folder. Folders of dead processes are
    removed.
    """
    base = Path(os.environ.get(VARIABLE) or tempfile.gettempdir())
    try:
        base.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=base))
    except OSError:
        return  # settings.check reports the problem
    _remove_leftovers(base)
    lock, owner = FileLock(str(folder / LOCK)), os.getpid()
    lock.acquire()
    os.environ[VARIABLE] = str(folder)

    def remove() -> None:
        if os.getpid() == owner:  # not in a forked process
            lock.release()
            shutil.rmtree(folder, ignore_errors=True)

    def end(number: int, frame: Any) -> None:
        remove()
        signal.signal(signal.SIGTERM, earlier or signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTERM)

    atexit.register(remove)
    earlier = signal.getsignal(signal.SIGTERM)
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, end)


def _remove_leftovers(base: Path) -> None:
    """Remove the folders of dead processes, recognised by a free lock."""
    for folder in base.glob(f"{PREFIX}*"):
        with suppress(OSError, Timeout):
            is_ours = not hasattr(os, "getuid") or folder.lstat().st_uid == os.getuid()
            if is_ours and folder.is_dir() and not folder.is_symlink() and time.time() - folder.stat().st_mtime > STARTING:
                with FileLock(str(folder / LOCK), timeout=0):
                    pass
                shutil.rmtree(folder, ignore_errors=True)


def sweep(folder: Path, age: float = AGE) -> None:
    """Remove files older than ``age`` seconds, and empty folders."""
    for place, _, names in os.walk(folder, topdown=False):
        for file in (Path(place) / name for name in names if name != LOCK):
            with suppress(OSError):  # already removed
                facts = file.stat()
                if time.time() - max(facts.st_mtime, facts.st_ctime) > age:
                    file.unlink()
        if Path(place) != folder:
            with suppress(OSError):
                Path(place).rmdir()


@asynccontextmanager
async def swept(app: Any) -> AsyncIterator[None]:
    """Lifespan of the app that sweeps the upload folder in the background."""

    async def go_on() -> None:
        while True:
            await asyncio.sleep(EVERY)
            await asyncio.to_thread(sweep, Path(os.environ[VARIABLE]))

    sweeping = asyncio.create_task(go_on()) if os.environ.get(VARIABLE) else None
    try:
        yield
    finally:
        if sweeping:
            sweeping.cancel()
