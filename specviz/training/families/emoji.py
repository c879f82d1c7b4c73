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
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np
from PIL import Image

from specviz.errors import ModelUnavailable
from specviz.models.hub.cache_dir import cache_folder, ensure_folder, flushed, only_one

SIDE = 64
HELD_OUT_EVERY = 20
STYLES = ("noto", "twemoji", "fluent")
GROUNDS = {
    "white": (255, 255, 255),
    "blue": (150, 195, 245),
    "green": (165, 220, 165),
    "yellow": (250, 225, 130),
    "pink": (250, 185, 205),
    "grey": (200, 200, 200),
    "black": (30, 30, 30),
}
"""What a picture stands on: white, or what the prompt says after "on"."""
LEFT_OUT = frozenset("country-flag family alphanum keycap skin-tone hair-style person-symbol subdivision-flag".split())
"""Subgroups that are hundreds of drawings of letters, flags or the same people."""
_VERSION = 1


@dataclass(frozen=True)
class Package:
    """An npm package; ``folder`` is where in it the pictures are."""

    name: str
    version: str
    sha256: str
    folder: str = ""

    @property
    def file(self) -> str:
        return f"{self.name.lstrip('@').replace('/', '-')}-{self.version}.tgz"


PICTURES = {
    "noto": Package(
        "emoji-datasource-google",
        "16.0.0",
        "fb5fd131b362aab7a55542d2a147a79708cce0a8b1c1bbacd470172708b5c438",
        "package/img/google/64/",
    ),
    "twemoji": Package(
        "emoji-datasource-twitter",
        "16.0.0",
        "f64a530c63bca463bd8317fdc4615ce63a53a0c65018e4ce2d848aaba7a28877",
        "package/img/twitter/64/",
    ),
    "fluent": Package(
        "@lobehub/fluent-emoji-3d",
        "1.1.0",
        "c1bb7eee7de090205a232518a9ab4adb3df458bfbe8a1f78232991194c8b2e58",
        "package/assets/",
    ),
}
NAMES = Package("emojibase-data", "17.0.0", "d01d0e2ca4e22cb402679532155342c71e2e871f25c32223c013b8b166ebdf5a")


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
    packages = [*PICTURES.values(), NAMES]
    description = f"{_VERSION} " + " ".join(f"{package.file}:{package.sha256}" for package in packages)
    return hashlib.sha256(description.encode()).hexdigest()[:16]


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
    drawings = {style: dict(_drawings(package)) for style, package in PICTURES.items()}
    rows: list[np.ndarray] = []
    concepts = []
    for entry in _named():
        key = _plain(entry["hexcode"])
        if all(key in drawings[style] for style in STYLES):
            places = {style: len(rows) + number for number, style in enumerate(STYLES)}
            rows += [drawings[style][key] for style in STYLES]
            concepts.append(
                {"code": key, "label": entry["label"], "tags": entry["tags"], "group": entry["group"], "rows": places}
            )
    fresh = folder / "new.npy"
    np.save(fresh, np.stack(rows))
    flushed(fresh)
    os.replace(fresh, folder / "pictures.npy")
    (folder / "concepts.json").write_text(json.dumps(concepts), "utf-8")


def _plain(code: str) -> str:
    """A code point sequence without the mark that only asks for a coloured drawing."""
    return code.lower().replace("-fe0f", "")


def _drawings(package: Package) -> Iterator[tuple[str, np.ndarray]]:
    """Code points and RGBA pictures of a package, 64 pixels wide, without skin tones."""
    with tarfile.open(fetched(package)) as opened:
        for member in opened:
            path = PurePosixPath(member.name)
            tones = any(f"1f3f{tone}" in path.stem.lower() for tone in "bcdef")
            held = opened.extractfile(member) if member.name.startswith(package.folder) and not tones else None
            if held is not None and path.suffix in (".png", ".webp"):
                drawn = Image.open(io.BytesIO(held.read())).convert("RGBA")
                if drawn.size != (SIDE, SIDE):
                    drawn = drawn.convert("RGBa").resize((SIDE, SIDE), Image.Resampling.LANCZOS).convert("RGBA")
                yield _plain(path.stem), np.asarray(drawn)


def _named() -> list[dict]:
    """The emoji worth drawing, of people only one of each three drawn as man, woman and person."""
    with tarfile.open(fetched(NAMES)) as opened:
        entries = json.load(_member(opened, "package/en/data.json"))
        groups = json.load(_member(opened, "package/en/messages.json"))["subgroups"]
    keys = {group["order"]: group["key"] for group in groups}
    return [entry for entry in entries if entry.get("group") is not None and _wanted(entry["label"], keys[entry["subgroup"]])]


def _wanted(label: str, subgroup: str) -> bool:
    if subgroup in LEFT_OUT:
        return False
    twice = label.startswith(("man ", "woman ", "men ", "women ")) or ": man" in label or ": woman" in label
    return subgroup == "person" or not twice


def _member(opened: tarfile.TarFile, name: str) -> io.BufferedIOBase:
    held = opened.extractfile(name)
    if held is None:
        raise ModelUnavailable(f"{NAMES.file} came without {name}: delete it from the cache folder and try again.")
    return held  # type: ignore[return-value]


def fetched(package: Package) -> Path:
    """The checked tarball, brought by npm with the user's own settings. Raises ModelUnavailable when it cannot be had."""
    final = ensure_folder(cache_folder() / "files" / "emoji") / package.file
    if not final.exists():
        _pack(package, final)
    sha256 = hashlib.sha256(final.read_bytes()).hexdigest()
    if sha256 != package.sha256:
        os.replace(final, final.with_name(final.name + ".corrupt"))
        raise ModelUnavailable(
            f"{package.file} is not the file this project knows (sha256 {sha256[:12]}, expected {package.sha256[:12]}); it was "
            "set aside. Try again, or use another registry."
        )
    return final


def _pack(package: Package, final: Path) -> None:
    npm = shutil.which("npm")
    by_hand = f"Or put {package.file} into {final.parent} yourself."
    if npm is None:
        raise ModelUnavailable(f"The emoji art comes from npm, which is not installed: install Node.js. {by_hand}")
    scratch = final.parent / "part"
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir()
    command = [npm, "pack", f"{package.name}@{package.version}", "--silent", "--pack-destination", str(scratch)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=scratch)
    arrived = sorted(scratch.glob("*.tgz"))
    if done.returncode or not arrived:
        reason = (done.stderr.strip() or "no reason given")[-300:]
        raise ModelUnavailable(f"npm could not bring {package.name}@{package.version} ({reason}). Check the network. {by_hand}")
    os.replace(arrived[0], final)
    shutil.rmtree(scratch, ignore_errors=True)


LICENCE = "Apache-2.0; learned from Noto Emoji (Apache-2.0), Twemoji (CC-BY 4.0), Fluent Emoji (MIT)"


def line(*more: str) -> str:
    """What was learned from, for a card: the emoji art and the concepts that were kept out."""
    return "; ".join((f"emoji {digest()}, one concept in {HELD_OUT_EVERY} kept out", *more))
