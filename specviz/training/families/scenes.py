"""Scenes: emoji art and plain shapes as any program draws them, and pictures without anything that the model knows.

A :class:`Scene` is what is said; a :data:`Paint` is what :mod:`scenes_render` draws. Both come from a seed. Positions are
unambiguous: the middle of a thing is inside one of nine regions, and things overlap either clearly or not at all. A picture
without known things has no ``things``; asked about it, the model says so.
Axis names: ``scene``, ``layer`` (things from back to front), ``edge`` (left, top, right, bottom).
"""

from __future__ import annotations

import colorsys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from specviz.training.phrases import phrases

DRAWINGS = 3
"""Drawings of each emoji: Noto's (Apache-2.0), Twemoji's (graphics CC-BY 4.0) and Fluent's (MIT)."""
_DATA = phrases("scenes")
NAMES, SHAPES, REGIONS = tuple(_DATA["emoji"]), tuple(_DATA["shapes"]), tuple(_DATA["regions"])
SIZES, COLOURS, GROUNDS, OFTEN = _DATA["sizes"], _DATA["colours"], _DATA["grounds"], _DATA["often"]
SIDE = 128
REGION = SIDE / 3
MIXED = "mixed"
"""Ground of several colours or with a texture."""
LAYERS = 5
UNKNOWN = 0.25
"""Share of pictures without known things."""
FLAT, LINEAR, RADIAL, FIELD, PATTERN, PICTURE = range(6)
"""Modes of a ground. PICTURE: one of :func:`scenes_unknown.pictures`."""
SHAPE, ART = 1, 2
"""Kinds of a layer; 0: nothing."""
_LARGEST = {1: 112, 2: 66, 3: 56, 4: 48, 5: 46}
"""Most pixels across of a thing, by the number of things."""
_CLEAR = 3.5
"""Minimum distance in pixels between the middle of a thing and the border of its region."""
_CONTRAST = 85.0
"""Minimum distance of a shape's colour from the ground's, in RGB values."""
_POINTED = {"triangle", "diamond", "star", "heart"}
"""Shapes that leave much of their square empty."""
_RARE = ("white", "grey", "brown")
"""Colours that few shapes have."""
READ_FROM, _HELD_OUT_FROM = 1 << 41, 1 << 42
"""First seeds of scenes that are described in text and never drawn, and of held-out scenes."""
Paint = dict[str, np.ndarray]
"""What a scene's picture is made of: ``layer`` [layer] (kind), ``place`` [layer] (name), ``xy`` [layer, 2], ``pixels``, ``turn``
and ``aspect`` [layer], ``rgb`` [layer, 3], ``ground`` [2, 3], ``mode`` and ``frame`` [edge]."""


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

    ``ground``: name of the background's colour; empty: none. ``things``: known ones, in reading order of the regions. ``depth``:
    indices of things from back to front.
    """

    ground: str
    things: tuple[Thing, ...]
    depth: tuple[int, ...]
    seed: int


def snap(scene: Scene) -> Scene:
    """Return the scene with every thing in the middle of the region, so that regions determine all answers."""
    things = tuple(
        replace(thing, x=REGION * (thing.region % 3 + 0.5), y=REGION * (thing.region // 3 + 0.5)) for thing in scene.things
    )
    return replace(scene, things=things)


def gap(thing: Thing, other: Thing) -> float:
    """Return the distance in pixels between the squares of two things; if negative, the overlap in the narrower direction."""
    return max(abs(thing.x - other.x), abs(thing.y - other.y)) - (thing.pixels + other.pixels) / 2


def overlapping(scene: Scene) -> list[tuple[int, int]]:
    """Return pairs (front, back) of overlapping things, as indices."""
    pairs = [(one, other) for one in range(len(scene.things)) for other in range(one)]
    pairs = [(one, other) for one, other in pairs if gap(scene.things[one], scene.things[other]) < 0]
    return sorted(tuple(sorted(pair, key=scene.depth.index, reverse=True)) for pair in pairs)  # type: ignore[misc]


def shade(ranges: Sequence[Sequence[Sequence[float]]], generator: np.random.Generator) -> np.ndarray:
    """Return a random colour of the ``ranges`` of hue, saturation and value, RGB values [3]."""
    hue, saturation, value = (generator.uniform(low, high) for low, high in ranges[int(generator.integers(len(ranges)))])
    return np.array(colorsys.hsv_to_rgb(hue % 360 / 360, saturation, value), dtype=np.float32) * 255


@lru_cache(maxsize=1024)
def compose(seed: int) -> tuple[Scene, Paint]:
    """Return the scene of a seed, and what its picture is made of."""
    generator = np.random.default_rng([seed, 17])
    unknown = generator.random() < UNKNOWN
    while (made := (_unknown if unknown else _known)(generator, seed)) is None:
        pass
    return made


def blank() -> Paint:
    """Return a white picture without layers."""
    return {
        "layer": np.zeros(LAYERS, np.int64), "place": np.zeros(LAYERS, np.int64), "xy": np.zeros((LAYERS, 2), np.float32),
        "pixels": np.ones(LAYERS, np.float32), "turn": np.zeros(LAYERS, np.float32), "aspect": np.ones(LAYERS, np.float32),
        "rgb": np.zeros((LAYERS, 3), np.float32), "ground": np.full((2, 3), 255, np.float32), "mode": np.array(FLAT),
        "frame": np.array([0, 0, SIDE, SIDE], np.float32),
    }  # fmt: skip


def _ground(generator: np.random.Generator, paint: Paint) -> str:
    """Choose the ground and return its name."""
    share = np.array(list(OFTEN.values()), dtype=float)
    name = list(OFTEN)[int(generator.choice(len(share), p=share / share.sum()))]
    if name != MIXED:
        first = shade(GROUNDS[name], generator)
        second = np.clip(first + generator.normal(0, 5, 3), 0, 255)
        paint["mode"] = np.array(generator.choice([FLAT, LINEAR, RADIAL, FIELD], p=[0.6, 0.2, 0.1, 0.1]))
        if paint["mode"] == FLAT:
            second = first
    else:
        ends = [str(end) for end in generator.choice(list(GROUNDS), 2, replace=False)]
        first, second = (shade(GROUNDS[end], generator) for end in ends)
        paint["mode"] = np.array(generator.choice([LINEAR, RADIAL, FIELD, PATTERN], p=[0.45, 0.15, 0.25, 0.15]))
        if np.linalg.norm(first - second) < 60:
            second = np.where(first > 127, first - 75, first + 75)
    paint["ground"] = np.stack((first, second)).astype(np.float32)
    return name


def _layout(generator: np.random.Generator, count: int) -> list[tuple[float, float, int]]:
    """Return middles and sizes in pixels of ``count`` things, some in a row or on a grid."""
    in_rows = count > 1 and generator.random() < 0.45
    while (placed := _placed(generator, count, in_rows)) is None:
        in_rows = in_rows and generator.random() < 0.98  # a row of some numbers of things never fits
    return placed


def _placed(generator: np.random.Generator, count: int, in_rows: bool) -> list[tuple[float, float, int]] | None:
    """Return things of :func:`_layout`; None if they are too close to each other or to the border of a region."""
    if in_rows:
        across = count if count < 4 else int(generator.integers(2, count + 1))
        down = -(-count // across)
        if generator.random() < 0.35:
            across, down = down, across
        cells = [(column, row) for row in range(down) for column in range(across)][:count]
        margin = generator.uniform(0, 12)
        wide, high = (SIDE - 2 * margin) / across, (SIDE - 2 * margin) / down
        pixels = int(min(wide, high, 50) * generator.uniform(0.6, 0.92))
        shift = generator.normal(0, 1.2, (count, 2))
        placed = [
            (margin + (column + 0.5) * wide + float(dx), margin + (row + 0.5) * high + float(dy), pixels)
            for (column, row), (dx, dy) in zip(cells, shift, strict=True)
        ]
    else:
        alike = generator.random() < 0.3
        sizes = np.maximum(14, _LARGEST[count] - generator.exponential(_LARGEST[count] * 0.35, count)).astype(int)
        sizes = np.full(count, sizes[0]) if alike else sizes
        middles = [generator.uniform(size / 2 - 1, SIDE - size / 2 + 1, 2) for size in sizes]
        placed = [(float(x), float(y), int(size)) for (x, y), size in zip(middles, sizes, strict=True)]
    for place, (x, y, pixels) in enumerate(placed):
        gaps = [max(abs(x - left), abs(y - top)) - (pixels + other) / 2 for left, top, other in placed[:place]]
        sharp = min(abs(at - border) for at in (x, y) for border in (REGION, 2 * REGION)) < _CLEAR
        if sharp or pixels < 12 or not all(between > 3 or -14 < between < -6 for between in gaps):
            return None
    return placed


def _known(generator: np.random.Generator, seed: int) -> tuple[Scene, Paint] | None:
    """Return a scene of one to five things; None if a shape blends into the ground, or a
    pointed one overlaps."""
    paint, count = blank(), int(generator.choice([1, 2, 3, 4, 5], p=[0.2, 0.24, 0.22, 0.19, 0.15]))
    ground, kinds = _ground(generator, paint), list[tuple[str, str]]()
    placed, plain = _layout(generator, count), generator.random()
    while len(kinds) < count:
        if kinds and generator.random() < 0.27:
            kinds.append(kinds[int(generator.integers(len(kinds)))])
        elif generator.random() < (0.95 if plain < 0.4 else 0.25):
            kinds.append((str(generator.choice(SHAPES)), str(generator.choice(list(COLOURS), p=_COLOUR_SHARE))))
        else:
            kinds.append((NAMES[int(generator.integers(len(NAMES)))], ""))
    things = []
    for (name, colour), (x, y, pixels) in zip(kinds, placed, strict=True):
        drawing = -1 if colour else int(generator.integers(DRAWINGS))
        size = max(SIZES, key=lambda word: SIZES[word] if SIZES[word] <= pixels else -1)
        things.append(Thing(name, size, pixels, x, y, colour, drawing))
    things.sort(key=lambda thing: (thing.region, thing.x))
    if any(gap(one, other) < 0 and {one.name, other.name} & _POINTED for at, one in enumerate(things) for other in things[:at]):
        return None
    depth = tuple(int(place) for place in generator.permutation(count))
    shades, between = dict[str, np.ndarray](), np.linspace(paint["ground"][0], paint["ground"][1], 5)
    for layer, thing in enumerate(things[place] for place in depth):
        paint["layer"][layer], paint["xy"][layer], paint["pixels"][layer] = SHAPE, (thing.x, thing.y), thing.pixels
        if thing.is_shape:
            rgb = shades.get(thing.kind)
            for _ in range(12):
                if rgb is not None and np.linalg.norm(between - rgb, axis=-1).min() > _CONTRAST:
                    break
                rgb = shade(COLOURS[thing.colour], generator)
            else:
                return None
            shades[thing.kind] = rgb
            paint["rgb"][layer], paint["place"][layer] = rgb, SHAPES.index(thing.name)
            paint["turn"][layer], paint["aspect"][layer] = _turned(generator, thing.name)
        else:
            paint["layer"][layer], paint["place"][layer] = ART, NAMES.index(thing.name) + thing.drawing * len(NAMES)
            paint["turn"][layer] = generator.normal(0, 0.12)
    reach = [(at - thing.pixels * 0.55, SIDE - at - thing.pixels * 0.55) for thing in things for at in (thing.y, thing.x)]
    _crop(generator, paint, min(map(min, reach[::2])), min(map(min, reach[1::2])))
    return Scene(ground, tuple(things), depth, seed), paint


_COLOUR_SHARE = np.array([0.4 if colour in _RARE else 0.7 for colour in COLOURS])
_COLOUR_SHARE = _COLOUR_SHARE / _COLOUR_SHARE.sum()


def _turned(generator: np.random.Generator, name: str) -> tuple[float, float]:
    """Return an angle in radians and a ratio of width to height with which a shape keeps its name."""
    most = {"square": 0.15, "diamond": 0.1, "triangle": 0.25, "star": 0.4, "heart": 0.25, "circle": 3.0}[name]
    turn = float(np.clip(generator.normal(0, most / 2), -most, most)) if generator.random() < 0.5 else 0.0
    if name == "triangle" and generator.random() < 0.1:
        turn += np.pi
    squeezed = 0.06 if name in {"square", "circle"} else 0.16
    return turn, float(np.exp(np.clip(generator.normal(0, squeezed), -1.5 * squeezed, 1.5 * squeezed)))


def _crop(generator: np.random.Generator, paint: Paint, down: float, across: float) -> None:
    """Make the picture wide or high, with white beside it, as :func:`pad_to_square` does. ``down``, ``across``: free pixels."""
    if generator.random() > 0.25:
        return
    if down >= across and down > 6:
        margin = generator.uniform(4, min(down, 48))
        paint["frame"][[1, 3]] = margin, SIDE - margin
    elif across > 6:
        margin = generator.uniform(4, min(across, 48))
        paint["frame"][[0, 2]] = margin, SIDE - margin


def _unknown(generator: np.random.Generator, seed: int) -> tuple[Scene, Paint]:
    """Return a picture without known things: a page or texture, strange things on a ground, or the ground alone."""
    paint, kind = blank(), generator.random()
    ground = _ground(generator, paint)
    if kind < 0.5:
        paint["mode"], ground = np.array(PICTURE), ""
    elif kind < 0.58:
        paint["mode"], ground = np.array(FIELD), ""
        paint["ground"] = generator.uniform(0, 255, (2, 3)).astype(np.float32)
    elif kind < 0.84:
        placed = _layout(generator, int(generator.choice([1, 2, 3, 4], p=[0.4, 0.3, 0.2, 0.1])))
        for layer, (x, y, pixels) in enumerate(placed):
            art = generator.random() < 0.5
            paint["layer"][layer], paint["place"][layer] = ART if art else SHAPE, -1
            paint["xy"][layer], paint["pixels"][layer] = (x, y), max(pixels, 18)
            turns = [0, 0, np.pi / 2, np.pi, generator.uniform(0, 6)]
            paint["turn"][layer] = generator.normal(0, 0.12) if art else generator.choice(turns)
            paint["rgb"][layer] = shade(COLOURS[str(generator.choice(list(COLOURS)))], generator)
    _crop(generator, paint, *generator.permutation([48, 0]))
    return Scene(ground, (), (), seed), paint


def held_out(number: int) -> tuple[Scene, Paint]:
    """Return the held-out scene ``number``."""
    return compose(_HELD_OUT_FROM + number)


def stacked(paints: Sequence[Paint]) -> Paint:
    """Return what several pictures are made of as arrays with an axis ``scene`` in front."""
    return {name: np.stack([paint[name] for paint in paints]) for name in paints[0]}
