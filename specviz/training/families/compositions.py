"""Compositions that the sprite model learns: coloured shapes and concepts, whole or small, at a place or beside each other.

A small thing has half the picture's side and lies on whole cells, so codes are laid out as pixels are. Held out are one coloured
shape in eight in all scenes, one pair of things in eight in all layouts, and, of one thing, one layout in eight.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image, ImageDraw
from torch import Tensor

from specviz.models.image.prompts import WordPrompts
from specviz.paths import ASSETS
from specviz.prompts import table
from specviz.training.families import emoji
from specviz.training.families.emoji import GROUNDS, SIDE, Emoji
from specviz.training.phrases import phrases

DATA = phrases("emoji")["compositions"]
PLACES: Mapping[str, Sequence[int]] = DATA["places"]
LAYOUTS: Mapping[str, Any] = DATA["layouts"] | {place: {"at": [at], "words": DATA["small"]} for place, at in PLACES.items()}
SHAPES = DATA["corners"] | {shape: phrases("scenes")["known"][shape][0]["corners"] for shape in DATA["shapes"]}
COLOURED = {f"{colour} {shape}": (tuple(rgb), SHAPES[shape]) for shape in SHAPES for colour, rgb in DATA["colours"].items()}
"""Colour and corners, in the unit square, of every coloured shape."""
KINDS = ("grounds", "places", "pairs", "relations")
"""Sets of prompts for held-out compositions."""
FINE = 4
"""Pixels of an outline per pixel of the art."""
SHEET, WIDE = ASSETS / "images" / "compositions.webp", 32
"""Real pictures of the held-out compositions, one below the other, and their side in pixels."""
SHIFT = 2
"""Maximum number of pixels by which a drawn picture is moved before it is compared."""


class Scene(NamedTuple):
    """Composition of one thing or two."""

    layout: str
    ground: str
    things: tuple[str, ...]

    @property
    def held_out(self) -> bool:
        """Whether a part is held out: a coloured shape, the pair of things, or the layout of the thing."""
        whole = " ".join(sorted(self.things)) if len(self.things) > 1 else f"{self.things[0]}, {self.layout}"
        parts = (whole, *(thing for thing in self.things if thing in COLOURED))
        return any(int(hashlib.sha256(part.encode()).hexdigest()[:8], 16) % 8 == 6 for part in parts)


@cache
def held_out() -> Mapping[str, Scene]:
    """Return the 64 held-out compositions by prompt."""
    entries = [entry for kind in KINDS for entry in table(kind).items()]
    return {prompt: Scene(layout, ground, tuple(things)) for prompt, (layout, ground, *things) in entries}


def text(scene: Scene, generator: np.random.Generator) -> str:
    """Return a random prompt for ``scene``."""
    words = generator.choice(LAYOUTS[scene.layout]["words"]).format(*scene.things, place=scene.layout)
    if scene.ground != "white":
        words = generator.choice(DATA["grounds"]).format(words, scene.ground)
    return re.sub(r"\ba(?= [aeiou])", "an", words)


def shapes() -> list[np.ndarray]:
    """Return the coloured shapes, each uint8 [row, column, rgba]."""
    drawn = list[np.ndarray]()
    for rgb, corners in COLOURED.values():
        mask, picture = Image.new("L", (FINE * SIDE, FINE * SIDE)), Image.new("RGB", (SIDE, SIDE), rgb)
        ImageDraw.Draw(mask).polygon([FINE * SIDE * along for corner in corners for along in corner], fill=255)
        picture.putalpha(mask.reduce(FINE))
        drawn.append(np.asarray(picture))
    return drawn


class Compositions:
    """Cells of all things, whole and small, on all backgrounds: codes or pixels."""

    @torch.inference_mode()
    def __init__(self, labels: Sequence[str], style: str, grid: int, cell: int, encode: Callable[[Tensor], Tensor]) -> None:
        """``labels``: names of the concepts. ``grid``: cells across. ``cell``: pixels across a cell. ``encode``: function from
        pixels [picture, rgb, row, column] to cells [picture, place, ..]."""
        art, self.grid, self.cells = emoji.load(), grid, dict[tuple[str, str, int], Tensor]()
        rows = {concept.label: concept.rows[style] for concept in art.concepts if concept.label in labels}
        self.things, nothing = (*rows, *COLOURED), np.zeros((SIDE, SIDE, 4), np.uint8)
        drawn = Emoji((), np.stack([*art.pictures[list(rows.values())], *shapes(), nothing]))
        count = len(drawn.pictures)
        for ground, rgb in GROUNDS.items():
            pixels = torch.from_numpy(drawn.on(np.arange(count), np.tile(rgb, (count, 1))))
            for side in (grid, grid // 2):
                cells = encode(F.avg_pool2d(pixels, SIDE // cell // side)).unflatten(1, (side, side))
                self.cells |= {(thing, ground, side): one for thing, one in zip((*self.things, ""), cells, strict=True)}

    def of(self, scene: Scene) -> Tensor:
        """Return the cells [place, ..] of ``scene``."""
        at, half = LAYOUTS[scene.layout]["at"], self.grid // 2
        cells = self.cells["" if at else scene.things[0], scene.ground, self.grid].clone()
        for thing, (row, column) in zip(scene.things, at, strict=bool(at)):
            top, left = row * half // 2, column * half // 2
            cells[top : top + half, left : left + half] = self.cells[thing, scene.ground, half]
        return cells.flatten(0, 1)

    def draw(self, generator: np.random.Generator, prompts: WordPrompts) -> tuple[str, np.ndarray]:
        """Return a prompt that ``prompts`` reads to its end, and the codes [place], of a composition that is not held out."""
        while True:
            layout = str(generator.choice(["whole", "beside", "beside", "stacked", generator.choice(list(PLACES))]))
            ground = str(generator.choice(list(GROUNDS))) if generator.random() < 0.5 else "white"
            chosen = generator.permutation(len(self.things))[: len(LAYOUTS[layout]["at"]) or 1]
            scene = Scene(layout, ground, tuple(self.things[number] for number in chosen))
            words = text(scene, generator)
            if not scene.held_out and not prompts.rows(words).unread:
                return words, self.of(scene).numpy()


@cache
def references() -> Tensor:
    """Return the real pictures of the held-out compositions [picture, row, column, rgb], from 0 to 255."""
    return torch.from_numpy(np.array(Image.open(SHEET).convert("RGB"))).float().unflatten(0, (-1, WIDE))


def nearest(picture: np.ndarray) -> int:
    """Return the number of the held-out composition whose real picture is nearest to ``picture``, uint8 [row, column, rgb].

    The distance is Euclidean, over pixels, after the best move by at most :data:`SHIFT` pixels.
    """
    edged = F.pad(torch.from_numpy(picture).float().permute(2, 0, 1)[None], (SHIFT,) * 4, mode="replicate")[0]
    moved = edged.unfold(1, WIDE, 1).unfold(2, WIDE, 1).permute(1, 2, 3, 4, 0).flatten(2).flatten(0, 1)
    return int(torch.cdist(moved, references().flatten(1)).amin(0).argmin())
