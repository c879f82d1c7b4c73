"""Safe reader of published drafting heads: a folder or hub repository, its tensors checked one by one.

Only safetensors are opened. Every shape is checked against the config and the target. A tensor unknown to our networks
is refused, since leaving it out would change the computation.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from specviz.errors import ModelUnavailable, SpecvizError
from specviz.models.hub.cache_dir import Progress, no_progress
from specviz.models.hub.catalog import resolve
from specviz.models.hub.hub import fetch_repository
from specviz.models.hub.prepare import PICKLES

Stored = str | tuple["Stored", ...] | list["Stored"]
"""Name of a stored tensor; in a tuple, of those whose rows are joined, and in a list, of those that are stacked."""


@dataclass(frozen=True)
class Fit:
    """The target that heads must fit: its ``embedding`` and ``head`` [vocab, hidden] and its number of layers."""

    name: str
    layers: int
    embedding: Tensor
    head: Tensor

    @property
    def hidden(self) -> int:
        return self.head.shape[1]


@dataclass(frozen=True)
class Repository:
    """A folder of heads: its displayed name, its config.json, and the file of each tensor."""

    name: str
    config: Mapping[str, Any]
    files: Mapping[str, Path]

    def tensor(self, name: Stored) -> Tensor:
        """Return one tensor. Raises ModelUnavailable if its file is damaged."""
        if not isinstance(name, str):
            return (torch.stack if isinstance(name, list) else torch.cat)([self.tensor(part) for part in name])
        try:
            with safe_open(self.files[name], framework="pt") as file:
                tensor: Tensor = file.get_tensor(name)
                return tensor
        except (OSError, SafetensorError) as problem:
            raise ModelUnavailable(f"{self.files[name].name} of {self.name} is damaged ({problem}). Get it anew.") from problem


@contextmanager
def reading(name: str) -> Iterator[None]:
    """Guard the reading of the heads called ``name``. Raises ModelUnavailable for any error that their settings or tensors
    cause."""
    try:
        yield
    except (SpecvizError, MemoryError):
        raise
    except Exception as problem:  # an unexpected setting, or a tensor of a wrong kind
        raise ModelUnavailable(
            f"{name} has a setting or tensor that makes no sense ({type(problem).__name__}: {problem}). Get the heads anew."
        ) from problem


def open_repository(name: str, progress: Progress = no_progress) -> Repository:
    """Open the heads called ``name``: a folder, a hub id, or a catalogued model from the hub that drafts for itself.

    Raises ModelUnavailable for pickles, damaged files, or missing weights.
    """
    place = resolve(name)
    if place.entry is not None and not place.repository:  # a model from the hub may hold MTP layers
        raise ModelUnavailable(f"{name} is a whole model, not heads for one. Give a hub id or a folder with heads.")
    folder = place.path or fetch_repository(place.repository, progress)
    stored = sorted(folder.glob("*.safetensors")) if folder.is_dir() else []
    if not stored:
        suffixes = {file.suffix.lower() for file in folder.iterdir()} if folder.is_dir() else {folder.suffix.lower()}
        if suffixes & PICKLES or place.repository:
            raise ModelUnavailable(
                f"{name} has no safetensors, perhaps only pickles, which can run code when opened and are never read here. "
                "Choose heads stored as safetensors; or, where you trust them, get the files yourself and run `python -m specviz "
                "convert FILE` on your own machine."
            )
        raise ModelUnavailable(f"{name} holds no safetensors weights. Give the folder that holds the heads.")
    try:
        file = folder / "config.json"
        config = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    except (OSError, ValueError, RecursionError) as problem:
        raise ModelUnavailable(f"The config.json of {name} cannot be read ({problem}). Get it anew.") from problem
    if not isinstance(config, dict):
        raise ModelUnavailable(f"The config.json of {name} holds no settings. Get it anew.")
    files: dict[str, Path] = {}
    for file in stored:
        try:
            with safe_open(file, framework="pt") as opened:
                files.update(dict.fromkeys(opened.keys(), file))
        except (OSError, SafetensorError) as problem:
            raise ModelUnavailable(f"{file.name} of {name} is damaged ({problem}). Get it anew.") from problem
    return Repository(name, config, files)


def shaped(stored: Repository, names: Mapping[str, Stored], name: str, shape: Sequence[int]) -> Tensor:
    """Return the tensor ``name``, whose published name ``names`` gives. Raises ModelUnavailable if it is missing or has another
    shape."""
    if name not in names:
        raise ModelUnavailable(f"{stored.name} lacks the tensor {name}: get the heads again.")
    published, tensor = names[name], stored.tensor(names[name])
    if tuple(tensor.shape) != tuple(shape):
        found, wanted = (" x ".join(map(str, size)) for size in (tensor.shape, shape))
        raise ModelUnavailable(
            f"{published if isinstance(published, str) else name} of {stored.name} is {found} and should be {wanted}: these "
            "heads do not fit this target, or their config.json is another one's."
        )
    return tensor


def tensors_of(
    stored: Repository, names: Mapping[str, Stored], shapes: Mapping[str, Sequence[int]], kind: str, also: Collection[str] = ()
) -> dict[str, Tensor]:
    """Return the tensors of these ``shapes``. Raises ModelUnavailable if one is missing or has another shape, or if the folder
    holds one that is neither among them nor in ``also``."""
    tensors = {name: shaped(stored, names, name, shape) for name, shape in shapes.items()}
    if strange := sorted(str(own) for name, own in names.items() if name not in shapes and name not in also):
        raise ModelUnavailable(f"{stored.name} holds {strange[0]}, which {kind} heads as published do not have. Choose others.")
    return tensors
