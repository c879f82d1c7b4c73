"""Scenes: emoji art and plain shapes on a canvas, composed at random from a seed.

A :class:`Scene` is data, from which :func:`draw` draws the picture. Positions and sizes are unambiguous. The middle of a thing
is well inside one of nine regions. The ranges of the three sizes do not touch, and things overlap either clearly or not at all.
Some combinations and drawings are held out of training: see :func:`new_combination` and :func:`new_drawing`.

The atlas of emoji art contains two drawings of each emoji: Noto's (Apache-2.0) above Twemoji's (graphics CC-BY 4.0).
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np
from PIL import Image, ImageDraw

from specviz.errors import ModelUnavailable
from specviz.paths import ASSETS
from specviz.training.phrases import phrases

ATLAS = ASSETS / "images" / "emoji.png"
CELL, ACROSS, DRAWINGS = 56, 24, 2
"""Pixels per drawing in the atlas, drawings per row, and drawings per emoji."""
_DATA = phrases("scenes")
NAMES, SHAPES, REGIONS = tuple(_DATA["emoji"]), tuple(_DATA["shapes"]), tuple(_DATA["regions"])
COLOURS, GROUNDS, SIZES = _DATA["colours"], _DATA["grounds"], _DATA["sizes"]
SIDE = 128
REGION = SIDE / 3
_BORDER = 6
"""Minimum distance in pixels between the middle of a thing and the border of the region."""
FRESH, COMBINATIONS, UNSEEN_DRAWINGS = "fresh", "combinations", "drawings"
"""Kinds of held-out scenes."""
_HELD_OUT_FROM = 1 << 40
"""First seed of held-out scenes."""


@dataclass(frozen=True)
class Thing:
    """A thing on the canvas: a shape with a ``colour``, or an emoji with a ``drawing``. ``x`` and ``y``: middle in pixels."""

    name: str
    size: str
    pixels: int
    x: float
    y: float
    colour: str = ""
    drawing: int = -1

    @property
    def is_shape(self) -> bool:
        return self.drawing < 0

    @property
    def kind(self) -> str:
        """Name, for a shape with the colour."""
        return f"{self.colour} {self.name}" if self.is_shape else self.name

    @property
    def region(self) -> int:
        """Index into ``REGIONS``."""
        return int(self.y // REGION) * 3 + int(self.x // REGION)


@dataclass(frozen=True)
class Scene:
    """A scene.

    ``things``: in reading order of the regions. ``depth``: indices of things from back to front. ``shade``: offset of the
    background's RGB values.
    """

    ground: str
    things: tuple[Thing, ...]
    depth: tuple[int, ...]
    seed: int
    shade: tuple[float, float, float] = field(default=(0.0, 0.0, 0.0), compare=False)


@lru_cache(maxsize=8192)
def _one_in(many: int, *parts: str) -> bool:
    """Whether a hash selects ``parts``, with a probability of one in ``many``."""
    digest = hashlib.blake2b("|".join(parts).encode(), digest_size=4).digest()
    return int.from_bytes(digest, "little") % many == 0


def new_combination(scene: Scene) -> bool:
    """Whether the scene contains a held-out pair: two kinds of things, or a shape and a colour. One pair in twelve is held
    out.
    """
    kinds = [thing.kind for thing in scene.things]
    pairs = [(kind, other) for place, kind in enumerate(kinds) for other in kinds[:place] if kind != other]
    pairs += [(thing.colour, thing.name) for thing in scene.things if thing.is_shape]
    return any(_one_in(12, "pair", *sorted(pair)) for pair in pairs)


def new_drawing(scene: Scene) -> bool:
    """Whether the scene shows a held-out drawing: one of the two drawings, for one emoji in four."""
    return any(thing.drawing == 1 and _one_in(4, "drawing", thing.name) for thing in scene.things)


def compose(seed: int, combinations: bool = False, drawings: bool = False) -> Scene:
    """Return the scene for ``seed``. ``combinations`` and ``drawings``: whether to show held-out ones."""
    generator = np.random.default_rng([seed, 7])
    while True:
        scene = _attempt(generator, seed)
        if scene is not None and new_combination(scene) == combinations and new_drawing(scene) == drawings:
            return scene


def held_out(kind: str, number: int) -> Scene:
    """Return the held-out scene ``number`` of a kind: ``FRESH``, ``COMBINATIONS`` or ``UNSEEN_DRAWINGS``."""
    return compose(_HELD_OUT_FROM + number, combinations=kind == COMBINATIONS, drawings=kind == UNSEEN_DRAWINGS)


def _attempt(generator: np.random.Generator, seed: int) -> Scene | None:
    """Return a random scene; None if two things are too close, or overlap too little or too much."""
    count = int(generator.choice([1, 2, 3, 4, 5], p=[0.03, 0.12, 0.27, 0.33, 0.25]))
    regions, kinds = generator.permutation(9)[:count], list[tuple[str, str]]()
    while len(kinds) < count:  # (name, colour); a kind may be repeated
        if kinds and generator.random() < 0.22:
            kinds.append(kinds[int(generator.integers(len(kinds)))])
        elif generator.random() < 0.36:
            kinds.append((str(generator.choice(SHAPES)), str(generator.choice(list(COLOURS)))))
        else:
            kinds.append((NAMES[int(generator.integers(len(NAMES)))], ""))
    things = [_thing(generator, *kind, int(region)) for kind, region in zip(kinds, regions, strict=True)]
    things.sort(key=lambda thing: thing.region)
    gaps = [gap(thing, other) for place, thing in enumerate(things) for other in things[:place]]
    if not all(between > 1 or -14 < between < -6 for between in gaps):
        return None
    ground = str(generator.choice(list(GROUNDS)))
    red, green, blue = map(float, generator.normal(0, 4, 3))
    depth = tuple(int(place) for place in generator.permutation(count))
    return Scene(ground, tuple(things), depth, seed, (red, green, blue))


def _thing(generator: np.random.Generator, name: str, colour: str, region: int) -> Thing:
    size = str(generator.choice(list(SIZES)))
    low, high = SIZES[size]
    pixels = int(generator.integers(low, high + 1))
    x, y = (
        float(np.clip(generator.uniform(REGION * step + _BORDER, REGION * (step + 1) - _BORDER), pixels / 2, SIDE - pixels / 2))
        for step in (region % 3, region // 3)
    )
    return Thing(name, size, pixels, x, y, colour, -1 if colour else int(generator.integers(DRAWINGS)))


def snap(scene: Scene) -> Scene:
    """Return the scene with every thing in the middle of the region, so that regions determine all answers."""
    things = tuple(
        replace(thing, x=REGION * (thing.region % 3 + 0.5), y=REGION * (thing.region // 3 + 0.5)) for thing in scene.things
    )
    return replace(scene, things=things)


def gap(thing: Thing, other: Thing) -> float:
    """Return the distance in pixels between the squares of two things; if negative, the overlap in the narrower direction."""
    across = abs(thing.x - other.x) - (thing.pixels + other.pixels) / 2
    down = abs(thing.y - other.y) - (thing.pixels + other.pixels) / 2
    return max(across, down)


def overlapping(scene: Scene) -> list[tuple[int, int]]:
    """Return pairs (front, back) of overlapping things, as indices."""
    pairs = [(one, other) for one in range(len(scene.things)) for other in range(one)]
    pairs = [(one, other) for one, other in pairs if gap(scene.things[one], scene.things[other]) < 0]
    return sorted(tuple(sorted(pair, key=scene.depth.index, reverse=True)) for pair in pairs)  # type: ignore[misc]


def draw(scene: Scene) -> np.ndarray:
    """Return the picture of a scene, uint8 [row, column, 3]."""
    ground = np.asarray(GROUNDS[scene.ground], dtype=np.float32) + np.asarray(scene.shade, dtype=np.float32)
    canvas = np.broadcast_to(np.clip(ground, 0, 255) / 255, (SIDE, SIDE, 3)).copy()
    for place in scene.depth:
        thing = scene.things[place]
        top, left = round(thing.y - thing.pixels / 2), round(thing.x - thing.pixels / 2)
        if thing.is_shape:
            covered = coverage(thing.name, thing.pixels)[..., None]
            colour = np.asarray(COLOURS[thing.colour], dtype=np.float32) / 255
            art = np.concatenate((covered * colour, covered), axis=-1)
        else:
            art = emoji(thing.name, thing.drawing, thing.pixels)
        art = art[max(0, -top) : SIDE - top, max(0, -left) : SIDE - left]
        top, left = max(0, top), max(0, left)
        under = canvas[top : top + art.shape[0], left : left + art.shape[1]]
        under *= 1 - art[..., 3:]
        under += art[..., :3]
    return (np.clip(canvas, 0, 1) * 255 + 0.5).astype(np.uint8)


@lru_cache(maxsize=1)
def _atlas() -> Image.Image:
    if not ATLAS.is_file():
        raise ModelUnavailable(f"{ATLAS.parent} lacks the emoji drawings {ATLAS.name}: restore the file from the project.")
    return Image.open(ATLAS).convert("RGBA")


@lru_cache(maxsize=8192)
def emoji(name: str, drawing: int, size: int) -> np.ndarray:
    """Return a drawing of ``size`` x ``size`` pixels, float32 [row, column, 4] with premultiplied alpha."""
    place = NAMES.index(name) + drawing * len(NAMES)
    left, top = place % ACROSS * CELL, place // ACROSS * CELL
    cut = _atlas().crop((left, top, left + CELL, top + CELL)).convert("RGBa")  # lower case: premultiplied alpha
    return np.asarray(cut.resize((size, size), Image.Resampling.LANCZOS), dtype=np.float32) / 255


@lru_cache(maxsize=1024)
def coverage(shape: str, size: int) -> np.ndarray:
    """Return the alpha of a plain shape, float32 [row, column]."""
    big = 4 * size
    canvas = Image.new("L", (big, big), 0)
    drawn = ImageDraw.Draw(canvas)
    if shape == "circle":
        drawn.ellipse((0, 0, big - 1, big - 1), fill=255)
    elif shape == "square":
        drawn.rectangle((big // 12, big // 12, big - big // 12, big - big // 12), fill=255)
    else:
        drawn.polygon([(x * big, y * big) for x, y in _DATA["outlines"][shape]], fill=255)
    return np.asarray(canvas.resize((size, size), Image.Resampling.BOX), dtype=np.float32) / 255
