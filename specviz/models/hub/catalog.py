"""Catalogue of models: sources, and where each model has run. Needs no torch and no network."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from specviz.errors import BadInput, ModelUnavailable, shown
from specviz.paths import ASSETS

NUMBER_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2, "int8": 1}

TARGET, DRAFT = "target", "draft"
VISION, IMAGE = "vision_language", "image"


class WheelFile(Struct, frozen=True, forbid_unknown_fields=True, tag="wheel"):
    """File in a wheel on the package index. ``sha256``, ``size`` (bytes): those of the extracted file."""

    package: str
    version: str
    member: str
    size: int
    sha256: str
    wheel_size: int

    @property
    def requirement(self) -> str:
        return f"{self.package}=={self.version}"


class HubRepository(Struct, frozen=True, forbid_unknown_fields=True, tag="hub"):
    """Repository on the model hub, or one GGUF ``file`` of it.

    ``size``: download in bytes, approximate for a repository, whose files the hub's client checks.
    """

    repository: str
    size: int
    file: str = ""
    sha256: str = ""


class ShippedFile(Struct, frozen=True, forbid_unknown_fields=True, tag="shipped"):
    """File that ships with this project, under ``assets/``. ``base``: catalogue name of the model that it changes, if any."""

    path: str
    size: int
    sha256: str
    base: str = ""


class Entry(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Model as its card shows it.

    ``roles``: uses of the model: target, draft model for others of its ``family`` (same tokenizer), or both. ``run_on``: kind of
    machine on which this project ran it, "" if none. ``dtype``: dtype for "auto", if the model and not the machine determines it.
    ``int8``: whether "auto" is int8 on a CPU with AVX-512.
    """

    name: str
    title: str
    modality: str
    roles: tuple[str, ...]
    family: str
    parameters: int
    licence: str
    source: WheelFile | HubRepository | ShippedFile
    run_on: str = ""
    note: str = ""
    dtype: str = ""
    int8: bool = False

    @property
    def status(self) -> str:
        """Sentence on whether this project has run the entry."""
        return f"Run on {self.run_on}." if self.run_on else "This project has not run it yet."


Row = TypeVar("Row")


def row_of(kind: type[Row], fields: Mapping[str, Any], where: str) -> Row:
    """Build a record from a TOML table. Raises BadInput naming the table and the missing, unknown or mistyped field."""
    try:
        return msgspec.convert(fields, kind)
    except msgspec.ValidationError as problem:
        raise BadInput(f"{where}: {problem}.") from problem


_FILE = ASSETS / "catalog.toml"
_BY_NAME = {
    name: row_of(Entry, {**fields, "name": name}, f"{_FILE.name}: {name}")
    for name, fields in tomllib.loads(_FILE.read_text("utf-8")).items()
}


def entries(modality: str | None = None, role: str | None = None) -> tuple[Entry, ...]:
    """Return the entries, the default first, optionally only those of one ``modality`` or ``role``."""
    return tuple(
        entry for entry in _BY_NAME.values() if modality in (None, entry.modality) and (role is None or role in entry.roles)
    )


DEFAULT_TEXT_TARGET, DEFAULT_VISION_TARGET, DEFAULT_IMAGE_TARGET = (
    entries(modality, TARGET)[0].name for modality in ("text", VISION, IMAGE)
)
"""First target of each modality in the file."""


@dataclass(frozen=True)
class Place:
    """Meaning of a model's name: an ``entry``, a hub ``repository`` (which an entry may name too), or a ``path``."""

    name: str
    entry: Entry | None = None
    repository: str = ""
    path: Path | None = None


def resolve(name: str) -> Place:
    """Resolve a catalogue name, GGUF file, folder, or hub id ``organisation/model``, in this order.

    Raises ModelUnavailable if ``name`` is none of these.
    """
    name = name.strip()
    if name in _BY_NAME:
        entry = _BY_NAME[name]
        return Place(name, entry, entry.source.repository if isinstance(entry.source, HubRepository) else "")
    path = Path(name)
    with suppress(OSError, RuntimeError):  # a name that is too long, or an unknown user's home, is not a path
        path = path.expanduser()
        here, folder = path.exists(), path.is_dir()
        if name and (name.lower().endswith(".gguf") or folder or name.startswith((".", "/", "~", "\\"))):
            if not here:
                raise ModelUnavailable(f"There is no file or folder {shown(name)}. Check the path.")
            if not folder and path.suffix.lower() != ".gguf":
                raise ModelUnavailable(f"{name} is not a .gguf file. Give the folder that holds the model, or a .gguf file.")
            return Place(name, path=path.resolve())
    if re.fullmatch(r"[A-Za-z0-9][\w.-]{0,95}/[\w.-]{1,96}", name):
        return Place(name, repository=name)
    raise ModelUnavailable(
        f"There is no model {shown(name)}. Give a name from the catalogue ({', '.join(_BY_NAME)}), a hub id such as "
        "organisation/model, a folder with safetensors weights, or a .gguf file."
    )


def is_model(name: str) -> bool:
    """Whether a name denotes a model or heads, and not a part of this project or a server."""
    try:
        resolve(name)
    except ModelUnavailable:
        return False
    return True
