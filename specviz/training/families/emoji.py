"""Emoji art to learn pictures from: three drawing styles, their names and keywords, and which concepts nobody may learn.

Packages on npm: Noto Emoji (Apache-2.0) and Twemoji (CC-BY 4.0) as 64-pixel pictures, Fluent Emoji 3D (MIT), and names and
keywords from emojibase (MIT). Fetched once with ``npm pack``, checked, and kept in the cache folder as one array.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, cast

import numpy as np
from PIL import Image

from specviz.errors import ModelUnavailable
from specviz.models.hub.cache_dir import cache_folder, ensure_folder, flushed, only_one
from specviz.training.phrases import phrases

SIDE = 64
HELD_OUT_EVERY = 20
STYLES = ("noto", "twemoji", "fluent")
GROUNDS: Mapping[str, Sequence[int]] = phrases("emoji")["grounds"]
LICENCE = "Apache-2.0; learned from Noto Emoji (Apache-2.0), Twemoji (CC-BY 4.0), Fluent Emoji (MIT)"


@dataclass(frozen=True)
class Package:
    """An npm package; ``folder`` is where in it the pictures or names are."""

    name: str
    version: str
    sha256: str
    folder: str

    @property
    def file(self) -> str:
        return f"{self.name.lstrip('@').replace('/', '-')}-{self.version}.tgz"


PACKAGES = {name: Package(**entry) for name, entry in phrases("emoji")["packages"].items()}
NAMES = PACKAGES["names"]


@dataclass(frozen=True)
class Concept:
    """What an emoji shows. ``rows`` are its pictures' places in the array, by style."""

    code: str
    label: str
    tags: tuple[str, ...]
    group: int
    rows: dict[str, int]

    @property
    def held_out(self) -> bool:
        """Whether training must not see it, in any style: one concept in twenty, by its code point."""
        return int(hashlib.sha256(self.code.encode()).hexdigest()[:8], 16) % HELD_OUT_EVERY == 7


@dataclass(frozen=True)
class Emoji:
    """``pictures`` is uint8 [picture, row, column, rgba] on the disk, alpha not multiplied in."""

    concepts: tuple[Concept, ...]
    pictures: np.ndarray

    def part(self, held_out: bool) -> list[Concept]:
        """The concepts to learn from, or those kept out."""
        return [concept for concept in self.concepts if concept.held_out == held_out]

    def on(self, rows: list[int] | np.ndarray, grounds: np.ndarray) -> np.ndarray:
        """These pictures over ``grounds`` [picture, rgb], float32 [picture, rgb, row, column] from -1 to 1."""
        drawn = self.pictures[rows].astype(np.float32)
        alpha = drawn[..., 3:] / 255
        mixed = drawn[..., :3] * alpha + np.asarray(grounds, np.float32)[:, None, None] * (1 - alpha)
        return np.ascontiguousarray((mixed / 127.5 - 1).transpose(0, 3, 1, 2))


def digest() -> str:
    """Says which pictures and names these are."""
    description = "1 " + " ".join(f"{package.file}:{package.sha256}" for package in PACKAGES.values())
    return hashlib.sha256(description.encode()).hexdigest()[:16]


def line(*more: str) -> str:
    """What was learned from, for a card: the emoji art and the concepts that were kept out."""
    return "; ".join((f"emoji {digest()}, one concept in {HELD_OUT_EVERY} kept out", *more))


def load() -> Emoji:
    """All pictures and names, fetched and unpacked when this machine does not have them yet.

    Raises ModelUnavailable when a package cannot be had.
    """
    folder = ensure_folder(cache_folder() / "emoji" / digest())
    facts = folder / "concepts.json"
    with only_one("emoji"):
        if not facts.exists():
            _unpack(folder)
    entries = json.loads(facts.read_text("utf-8"))
    concepts = tuple(Concept(**{**entry, "tags": tuple(entry["tags"])}) for entry in entries)
    return Emoji(concepts, np.load(folder / "pictures.npy", mmap_mode="r"))


def _unpack(folder: Path) -> None:
    """Of the emoji worth drawing, of people only one of each three drawn as man, woman and person, those in every style."""
    drawings, rows, concepts = {style: _drawings(PACKAGES[style]) for style in STYLES}, list[np.ndarray](), []
    with tarfile.open(fetched(NAMES)) as opened:
        entries, groups = (
            json.load(cast(IO[bytes], opened.extractfile(NAMES.folder + file))) for file in ("data.json", "messages.json")
        )
    keys = {group["order"]: group["key"] for group in groups["subgroups"]}
    for entry in (entry for entry in entries if entry.get("group") is not None):
        key, label, subgroup = _plain(entry["hexcode"]), entry["label"], keys[entry["subgroup"]]
        twice = label.startswith(("man ", "woman ", "men ", "women ")) or ": man" in label or ": woman" in label
        wanted = subgroup not in phrases("emoji")["left_out"] and (subgroup == "person" or not twice)
        if wanted and all(key in drawings[style] for style in STYLES):
            places = {style: len(rows) + number for number, style in enumerate(STYLES)}
            rows += [drawings[style][key] for style in STYLES]
            concepts.append({"code": key, "label": label, "tags": entry["tags"], "group": entry["group"], "rows": places})
    fresh = folder / "new.npy"
    np.save(fresh, np.stack(rows))
    flushed(fresh)
    os.replace(fresh, folder / "pictures.npy")
    (folder / "concepts.json").write_text(json.dumps(concepts), "utf-8")


def _plain(code: str) -> str:
    """A code point sequence without the mark that only asks for a coloured drawing."""
    return code.lower().replace("-fe0f", "")


def _drawings(package: Package) -> dict[str, np.ndarray]:
    """RGBA pictures of a package by code points, 64 pixels wide, without skin tones."""
    found = {}
    with tarfile.open(fetched(package)) as opened:
        for member in opened:
            path = PurePosixPath(member.name)
            tones = any(f"1f3f{tone}" in path.stem.lower() for tone in "bcdef")
            if member.name.startswith(package.folder) and path.suffix in (".png", ".webp") and not tones:
                drawn = Image.open(io.BytesIO(cast(IO[bytes], opened.extractfile(member)).read())).convert("RGBA")
                if drawn.size != (SIDE, SIDE):
                    drawn = drawn.convert("RGBa").resize((SIDE, SIDE), Image.Resampling.LANCZOS).convert("RGBA")
                found[_plain(path.stem)] = np.asarray(drawn)
    return found


def fetched(package: Package) -> Path:
    """The checked tarball, brought by npm with the user's own settings. Raises ModelUnavailable when it cannot be had."""
    folder = ensure_folder(cache_folder() / "files" / "emoji")
    final, npm = folder / package.file, shutil.which("npm")
    by_hand = f"Or put {package.file} into {folder} yourself."
    if not final.exists():
        if npm is None:
            raise ModelUnavailable(f"The emoji art comes from npm, which is not installed: install Node.js. {by_hand}")
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            command = [npm, "pack", f"{package.name}@{package.version}", "--silent", "--pack-destination", scratch]
            done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=scratch)
            arrived = sorted(Path(scratch).glob("*.tgz"))
            if done.returncode or not arrived:
                reason = (done.stderr.strip() or "no reason given")[-300:]
                raise ModelUnavailable(
                    f"npm could not bring {package.name}@{package.version} ({reason}). Check the network. {by_hand}"
                )
            os.replace(arrived[0], final)
    sha256 = hashlib.sha256(final.read_bytes()).hexdigest()
    if sha256 != package.sha256:
        os.replace(final, final.with_name(final.name + ".corrupt"))
        raise ModelUnavailable(
            f"{package.file} is not the file this project knows (sha256 {sha256[:12]}, expected {package.sha256[:12]}); it was "
            "set aside. Try again, or use another registry."
        )
    return final
