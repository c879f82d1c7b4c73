"""Layouts of published heads, from ``assets/head_layouts.toml``: how a folder is recognised, how names and settings are read."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from specviz.models.heads.head_settings import words
from specviz.models.hub.catalog import row_of
from specviz.models.hub.published import Repository
from specviz.paths import ASSETS

_EXTRA = re.compile(r"(?:model\.)?(?:language_model\.)?layers\.(\d{1,6})\.(?:eh_proj|enorm)\.weight")
_LAYER = re.compile(r"^(?:language_model\.)?layers\.(\d{1,6})\.")


@dataclass(frozen=True)
class Layout:
    """A layout of published heads; fields as in the file. ``method`` is empty for a layout without a reader."""

    title: str
    when: tuple[Mapping[str, Any], ...]
    method: str = ""
    network: str = ""
    short: str = ""
    names: tuple[list[str], ...] = ()
    read: tuple[str, ...] = ()
    values: Mapping[str, list[Any]] = field(default_factory=dict)
    ignored: str = ""
    architectures: str = ""
    switches: Mapping[str, list[str]] = field(default_factory=dict)
    present: Mapping[str, str] = field(default_factory=dict)
    declared: tuple[str, ...] = ()
    how: Mapping[str, Any] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)

    def fits(self, stored: Repository) -> bool:
        """Whether a folder has this layout, given that no earlier layout of the table fits it."""
        names = [name.removeprefix("model.") for name in stored.files]
        architectures = " ".join(words(stored.name, stored.config, "architectures")).lower()
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

    def names_in(self, stored: Repository) -> dict[str, str]:
        """Return the published names of a folder's tensors, by their names in our networks."""
        first = min(_extra_layers(stored), default=-1)
        names = {}
        for original in stored.files:
            name = original.removeprefix("model.")
            if first >= 0:  # MTP layers, which follow the model's own, are renumbered from 0
                name = _LAYER.sub(lambda found: f"layers.{int(found[1]) - first}.", name)
            for pattern, plain in self.names:
                name = re.sub(pattern, plain, name)
            names[name] = original
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
