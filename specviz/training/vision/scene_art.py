"""What scenes are made of: emoji art from one small atlas, plain shapes, colours, backgrounds; cut out, sized, drawn.

The atlas holds two drawings of each emoji, Noto's (Apache-2.0) above Twemoji's (graphics CC-BY 4.0), in the order of
``EMOJI``; ``write_atlas`` makes it from folders of 64 x 64 PNG files named by code point.
"""

from __future__ import annotations

import math
from functools import lru_cache
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from specviz.errors import ModelUnavailable
from specviz.paths import ASSETS

ATLAS = ASSETS / "images" / "emoji.png"
CELL = 56
ACROSS = 24
DRAWINGS = 2

EMOJI: dict[str, str] = dict(
    entry.split(":")
    for entry in """
    dog:1f436 cat:1f408 rabbit:1f430 fox:1f98a bear:1f43b panda:1f43c lion:1f981 tiger:1f405 horse:1f40e cow:1f404 pig:1f437
    sheep:1f411 elephant:1f418 monkey:1f412 penguin:1f427 duck:1f986 owl:1f989 frog:1f438 turtle:1f422 snake:1f40d whale:1f433
    fish:1f420 octopus:1f419 crab:1f980 butterfly:1f98b bee:1f41d apple:1f34e banana:1f34c grapes:1f347 strawberry:1f353
    cherry:1f352 lemon:1f34b pineapple:1f34d carrot:1f955 mushroom:1f344 pizza:1f355 burger:1f354 cake:1f370 donut:1f369
    ball:26bd guitar:1f3b8 bell:1f514 key:1f511 book:1f4d8 clock:23f0 crown:1f451 shoe:1f45f camera:1f4f7 chair:1fa91 cup:2615
    balloon:1f388 gift:1f381 car:1f697 bus:1f68c train:1f682 bicycle:1f6b2 boat:26f5 plane:2708-fe0f rocket:1f680 tree:1f333
    cactus:1f335 flower:1f33b sun:2600-fe0f moon:1f319 cloud:2601-fe0f snowman:26c4 house:1f3e0 castle:1f3f0 robot:1f916
    ghost:1f47b umbrella:1f302 drum:1f941
    """.split()
)
NAMES = tuple(EMOJI)
SHAPES = ("circle", "square", "triangle", "diamond", "star", "heart")
COLOURS: dict[str, tuple[int, int, int]] = {
    "red": (220, 38, 38),
    "orange": (249, 130, 22),
    "yellow": (240, 205, 20),
    "green": (34, 150, 70),
    "blue": (37, 99, 225),
    "purple": (135, 60, 200),
    "pink": (244, 114, 182),
    "black": (25, 25, 28),
}
GROUNDS: dict[str, tuple[int, int, int]] = {
    "white": (253, 253, 253),
    "grey": (205, 207, 210),
    "light blue": (198, 226, 250),
    "light green": (205, 240, 208),
    "light yellow": (253, 245, 195),
}


@lru_cache(maxsize=1)
def _atlas() -> Image.Image:
    if not ATLAS.is_file():
        raise ModelUnavailable(f"The drawings {ATLAS.name} are missing from {ATLAS.parent}: restore them from the project.")
    return Image.open(ATLAS).convert("RGBA")


@lru_cache(maxsize=8192)
def emoji(name: str, drawing: int, size: int) -> np.ndarray:
    """One drawing as float32 [row, column, 4], colours multiplied by their coverage, ``size`` pixels each way."""
    place = NAMES.index(name) + drawing * len(NAMES)
    left, top = place % ACROSS * CELL, place // ACROSS * CELL
    cut = _atlas().crop((left, top, left + CELL, top + CELL)).convert("RGBa")  # lower case: multiplied by coverage
    return np.asarray(cut.resize((size, size), Image.Resampling.LANCZOS), dtype=np.float32) / 255


@lru_cache(maxsize=1024)
def coverage(shape: str, size: int) -> np.ndarray:
    """A plain shape's coverage, float32 [row, column]."""
    big = 4 * size
    canvas = Image.new("L", (big, big), 0)
    drawn = ImageDraw.Draw(canvas)
    if shape == "circle":
        drawn.ellipse((0, 0, big - 1, big - 1), fill=255)
    elif shape == "square":
        drawn.rectangle((big // 12, big // 12, big - big // 12, big - big // 12), fill=255)
    else:
        drawn.polygon([(x * big, y * big) for x, y in _outline(shape)], fill=255)
    return np.asarray(canvas.resize((size, size), Image.Resampling.BOX), dtype=np.float32) / 255


def _outline(shape: str) -> list[tuple[float, float]]:
    """Corners in the unit square."""
    if shape == "triangle":
        return [(0.5, 0.03), (0.98, 0.93), (0.02, 0.93)]
    if shape == "diamond":
        return [(0.5, 0.0), (0.92, 0.5), (0.5, 1.0), (0.08, 0.5)]
    if shape == "star":
        radii = [0.52 if corner % 2 == 0 else 0.22 for corner in range(10)]
        turns = [math.pi * (corner / 5 - 0.5) for corner in range(10)]
        return [
            (0.5 + radius * math.cos(turn), 0.53 + radius * math.sin(turn)) for radius, turn in zip(radii, turns, strict=False)
        ]
    turns = [2 * math.pi * step / 48 for step in range(48)]
    return [
        (0.5 + 0.5 * math.sin(turn) ** 3,
         0.45 - (13 * math.cos(turn) - 5 * math.cos(2 * turn) - 2 * math.cos(3 * turn) - math.cos(4 * turn)) / 32)
        for turn in turns
    ]  # fmt: skip


def write_atlas(noto: Path, twemoji: Path, path: Path = ATLAS) -> None:
    """Put both sets' drawings into one picture: ``noto`` and ``twemoji`` are folders of 64 x 64 PNG files."""
    count = DRAWINGS * len(NAMES)
    canvas = Image.new("RGBA", (ACROSS * CELL, -(-count // ACROSS) * CELL))
    for drawing, folder in enumerate((noto, twemoji)):
        for place, code in enumerate(EMOJI.values(), start=drawing * len(NAMES)):
            art = Image.open(folder / f"{code}.png").convert("RGBA").resize((CELL, CELL), Image.Resampling.LANCZOS)
            canvas.paste(art, (place % ACROSS * CELL, place // ACROSS * CELL))
    canvas.quantize(256, method=Image.Quantize.FASTOCTREE).save(path, optimize=True)
