"""Layouts of published heads, from ``assets/head_layouts.toml``: how a folder is recognised, how names and settings are read."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from msgspec import Struct

from specviz.errors import ModelUnavailable
from specviz.models.hub.catalog import row_of
from specviz.models.hub.published import WORDS, Repository, Settings, Stored
from specviz.paths import ASSETS

_EXTRA = re.compile(r"(?:model\.)?(?:language_model\.)?layers\.(\d{1,6})\.(?:eh_proj|enorm)\.weight")
_EXPERT = re.compile(r"(layers\.\d+\.mlp\.experts)\.(\d+)\.(?:gate|up|down)_proj\.weight")
_LAYER = re.compile(r"^(?:language_model\.)?layers\.(\d{1,6})\.")


class Layout(Struct, frozen=True, forbid_unknown_fields=True):
    """A layout of published heads; fields as in the file. ``method`` is empty for a layout without a reader."""

    title: str
    when: tuple[Mapping[str, Any], ...]
    method: str = ""
    network: str = ""
    short: str = ""
    names: tuple[tuple[str, str], ...] = ()
    read: tuple[str, ...] = ()
    values: Mapping[str, list[Any]] = {}
    ignored: str = ""
    architectures: str = ""
    switches: Mapping[str, list[str]] = {}
    present: Mapping[str, str] = {}
    declared: tuple[str, ...] = ()
    how: Mapping[str, Any] = {}
    config: Mapping[str, Any] = {}

    def fits(self, stored: Repository) -> bool:
        """Whether a folder has this layout, given that no earlier layout of the table fits it."""
        names = [name.removeprefix("model.") for name in stored.files]
        architectures = " ".join(Settings(stored.name, stored.config).get("architectures", WORDS)).lower()
        inner = stored.config.get("text_config")
        levels = (stored.config, inner if isinstance(inner, Mapping) else {})

        def holds(condition: str, wanted: Any) -> bool:
            if condition in ("tensor", "without"):
                return any(re.fullmatch(wanted, name) for name in names) == (condition == "tensor")
            if condition == "architecture":
                return wanted in architectures
            if condition == "equal":
                return all(str(stored.config.get(name)) in values for name, values in wanted.items())
            return wanted in stored.config if condition == "setting" else any(one.get(wanted) not in (None, 0) for one in levels)

        return any(all(holds(*condition) for condition in conditions.items()) for conditions in self.when)

    def flags(self, said: Settings, names: Collection[str]) -> dict[str, Any]:
        """Return the fields of a head's configuration that its settings or the names of its tensors switch on or off."""
        found = {field: max(said.get(flag, bool) for flag in flags) for field, flags in self.switches.items()}
        return found | {field: found.get(field, False) or tensor in names for field, tensor in self.present.items()}

    def names_in(self, stored: Repository) -> dict[str, Stored]:
        """Return the published names of a folder's tensors, by their names in our networks. Experts that are stored one by one
        become one tensor of each kind. Raises ModelUnavailable if an expert lacks a matrix."""
        first = min(_extra_layers(stored), default=-1)
        names: dict[str, Stored] = {}
        for original in stored.files:
            name = original.removeprefix("model.")
            if first >= 0:  # MTP layers, which follow the model's own, are renumbered from 0
                name = _LAYER.sub(lambda found: f"layers.{int(found[1]) - first}.", name)
            for pattern, plain in self.names:
                name = re.sub(pattern, plain, name)
            names[name] = original
        experts: dict[str, set[int]] = {}
        for found in filter(None, map(_EXPERT.fullmatch, names)):
            experts.setdefault(found[1], set()).add(int(found[2]))
        for start, numbers in experts.items():
            parts = [[f"{start}.{number}.{kind}_proj.weight" for number in sorted(numbers)] for kind in ("gate", "up", "down")]
            if missing := [part for kind in parts for part in kind if part not in names]:
                raise ModelUnavailable(f"{stored.name} lacks the tensor {missing[0]}: get it again.")
            gate, up, down = ([names.pop(part) for part in kind] for kind in parts)
            names |= {f"{start}.gate_up_proj": list(zip(gate, up, strict=True)), f"{start}.down_proj": down}
        return names


_FILE = ASSETS / "head_layouts.toml"
LAYOUTS = {
    name: row_of(Layout, fields, f"{_FILE.name}: {name}") for name, fields in tomllib.loads(_FILE.read_text("utf-8")).items()
}
METHODS = tuple(sorted({layout.method for layout in LAYOUTS.values() if layout.method}))
"""Methods whose published heads are read."""


def layout_of(stored: Repository) -> Layout:
    """Return the first layout that fits a folder."""
    return next(layout for layout in LAYOUTS.values() if layout.fits(stored))


def drafting(stored: Repository) -> Repository:
    """Return a folder of MTP layers without the target's own tensors, any other folder unchanged."""
    if layout_of(stored) is not LAYOUTS["mtp"]:
        return stored
    extra = _extra_layers(stored)

    def drafts(name: str) -> bool:
        layer = _LAYER.match(name)
        return name.startswith("mtp.") or (layer is not None and int(layer[1]) in extra)

    return replace(stored, files={name: file for name, file in stored.files.items() if drafts(name.removeprefix("model."))})


def _extra_layers(stored: Repository) -> set[int]:
    """Numbers of the MTP layers, which follow a model's own."""
    return {int(found[1]) for name in stored.files if (found := _EXTRA.fullmatch(name))}
