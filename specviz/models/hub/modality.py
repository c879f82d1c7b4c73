"""Modality of a target by its name: text, images, or pictures and text. Reads at most a config.json; no torch."""

from __future__ import annotations

import threading
from pathlib import Path

from specviz.engine.stop import locked
from specviz.models.hub.cache_dir import Progress, no_progress, read_json
from specviz.models.hub.catalog import resolve

IMAGE_WRITERS = frozenset({"janus", "emu3", "chameleon", "llamagen"})
"""transformers' model types that write images as codes, and LlamaGen, for which it has no class."""

PICTURE_READERS = frozenset(
    {"llava", "llava_next", "smolvlm", "idefics3", "qwen2_vl", "qwen2_5_vl", "qwen3_vl", "gemma3", "paligemma"}
)  # fmt: skip
"""transformers' model types that read pictures and write text."""

_KNOWN: dict[str, str] = {}
_LOCK = threading.Lock()


def modality_of(name: str, progress: Progress = no_progress) -> str:
    """Modality of the target called ``name``: "text", "image" or "vision_language".

    Fetches a hub repository's config.json, the only statement of its type. Raises ModelUnavailable if no such model exists.
    """
    place = resolve(name)
    if place.entry is not None:
        return place.entry.modality
    if place.path is not None:
        return modality_in(place.path) if place.path.is_dir() else "text"
    with locked(_LOCK):
        if place.repository not in _KNOWN:
            from specviz.models.hub.hub import fetch_repository

            _KNOWN[place.repository] = modality_in(fetch_repository(place.repository, progress, ["config.json"]))
        return _KNOWN[place.repository]


def modality_in(folder: Path) -> str:
    """Modality of the model in a folder. An unreadable config counts as text, whose loader reports the reason."""
    kind = type_in(folder)
    if kind in IMAGE_WRITERS:
        return "image"
    return "vision_language" if kind in PICTURE_READERS else "text"


def type_in(folder: Path) -> str:
    """transformers' name for the type of the model in a folder, empty when its config cannot be read."""
    config = read_json(folder / "config.json")
    # LANTERN's conversion of LlamaGen is declared a Llama: it is one over codes, with other positions.
    return "llamagen" if {"block_size", "cls_token_num"} <= config.keys() else str(config.get("model_type", ""))
