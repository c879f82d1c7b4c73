"""Pictures without anything that the vision-language model knows: pages, forms, screens, charts, strokes, letters, photographs.

Each is drawn at twice the model's resolution from a seed and scaled down. :func:`pictures` keeps a set of them in the cache.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor

import numpy as np
from PIL import Image, ImageDraw, ImageFilter, ImageFont

from specviz.models.device import cores
from specviz.models.hub.cache_dir import cache_folder, ensure_folder
from specviz.training.families.scenes import SIDE

COUNT = 1600
"""Pictures in the set."""
_BIG = 2 * SIDE
_LETTERS = "etaoinshrdlucmfwypvbgkjqxz" * 3 + "ETAOINSHRDL0123456789.,:-/€$%"
Colour = tuple[int, int, int]
Area = tuple[float, float, float, float]
"""Left, top, right and bottom in pixels."""


class Sheet:
    """A picture in progress. ``paper`` and ``ink``: colours that contrast."""

    def __init__(self, seed: int) -> None:
        self.generator = np.random.default_rng([seed, 23])
        light, dark = self.generator.integers(225, 256, 3), self.generator.integers(0, 90, 3)
        if self.chance(0.5):
            light = np.full(3, self.generator.integers(240, 256))
        paper, ink = (light, dark) if self.chance(0.82) else (dark, light)
        self.ink: Colour = (int(ink[0]), int(ink[1]), int(ink[2]))
        self.image = Image.new("RGB", (_BIG, _BIG), tuple(map(int, paper)))
        self.draw = ImageDraw.Draw(self.image)

    def chance(self, share: float) -> bool:
        return bool(self.generator.random() < share)

    def between(self, low: float, high: float) -> float:
        return float(self.generator.uniform(low, max(low, high)))

    def number(self, low: float, high: float) -> int:
        """Return a random integer from ``low`` to ``high``, inclusive."""
        return int(self.generator.integers(int(low), max(int(low), int(high)) + 1))

    def colour(self) -> Colour:
        red, green, blue = self.generator.integers(0, 256, 3).tolist()
        return red, green, blue

    def accent(self) -> Colour:
        """Return the ink or, one time in three, a random colour."""
        return self.colour() if self.chance(0.33) else self.ink

    def words(self, letters: int) -> str:
        """Return random words of ``letters`` letters in all."""
        text = "".join(" " if self.chance(0.17) else str(self.generator.choice(list(_LETTERS))) for _ in range(letters))
        return text.strip() or "a"


def text(sheet: Sheet, area: Area) -> None:
    """Write lines of text into an area; one block in four has bars for words."""
    left, top, right, bottom = area
    size, colour = min(sheet.number(7, 18), bottom - top), sheet.accent()
    bars, step, ragged = sheet.chance(0.25), size * sheet.between(1.2, 1.9), sheet.between(0, 0.5)
    while top + size <= bottom + 1:
        end = right - ragged * (right - left) * sheet.between(0, 1)
        if bars:
            while left < end:
                wide = size * sheet.between(0.6, 3)
                sheet.draw.rectangle((left, top + size * 0.3, min(left + wide, end), top + size * 0.8), fill=colour)
                left += wide + size * 0.4
            left = area[0]
        else:
            line = sheet.words(max(1, int((end - left) / size * 1.9)))
            sheet.draw.text((left, top), line, colour, ImageFont.load_default(size))
        top += step * (2 if sheet.chance(0.12) else 1)


def field(sheet: Sheet, area: Area) -> None:
    """Draw a form's row: a label, then a box, a line, a box to tick, or a button."""
    left, top, right, bottom = area
    bottom, split = min(bottom, top + sheet.number(12, 24)), left + (right - left) * sheet.between(0.25, 0.5)
    text(sheet, (left, top + 2, split - 4, top + 12))
    end, kind = sheet.between(split + 12, right), sheet.number(0, 3)
    if kind == 0:
        sheet.draw.line((split, bottom, end, bottom), sheet.accent(), 1)
    else:
        end, fill = split + 9 if kind == 1 else end, sheet.colour() if kind == 2 or sheet.chance(0.2) else None
        bottom = top + 9 if kind == 1 else bottom
        sheet.draw.rounded_rectangle((split, top, end, bottom), sheet.number(0, 5), fill, sheet.accent(), sheet.number(1, 2))


def table(sheet: Sheet, area: Area) -> None:
    """Draw a table of text or numbers, with or without lines and a heading."""
    left, top, right, bottom = area
    rows, columns, lined = sheet.number(2, (bottom - top) / 11), sheet.number(2, 7), sheet.between(0, 1)
    high, wide = (bottom - top) / rows, (right - left) / columns
    if sheet.chance(0.5):
        sheet.draw.rectangle((left, top, right, top + high), fill=sheet.colour())
    for row in range(rows):
        for column in range(columns):
            place = left + column * wide, top + row * high
            if sheet.chance(0.85):
                line = sheet.words(sheet.number(1, wide / 7))
                sheet.draw.text(place, line, sheet.ink, ImageFont.load_default(int(min(13, max(6, high * 0.6)))))
            if lined < 0.5:
                sheet.draw.rectangle((*place, place[0] + wide, place[1] + high), outline=sheet.ink)
        if lined < 0.75:
            sheet.draw.line((left, top + row * high, right, top + row * high), sheet.ink, 1)


def chart(sheet: Sheet, area: Area) -> None:
    """Draw axes with bars or curves."""
    left, top, right, bottom = area
    sheet.draw.line((left, top, left, bottom, right, bottom), sheet.ink, 1)
    count, colour, curves = sheet.number(4, 14), sheet.colour(), sheet.number(-3, 4)
    wide = (right - left) / count
    for bar in range(count if curves < 1 else 0):
        height, fill = (bottom - top) * sheet.between(0.15, 1), colour if count > 6 else sheet.colour()
        sheet.draw.rectangle((left + (bar + 0.2) * wide, bottom - height, left + (bar + 0.75) * wide, bottom), fill=fill)
    for _ in range(curves):
        heights = bottom - (bottom - top) * np.clip(np.cumsum(sheet.generator.normal(0, 0.16, count)) + 0.5, 0.02, 1)
        points = list(zip(np.linspace(left, right, count).tolist(), heights.tolist(), strict=True))
        sheet.draw.line(points, sheet.colour(), sheet.number(1, 4))


def picture_in(sheet: Sheet, area: Area) -> None:
    """Draw a photograph's texture into an area."""
    left, top, right, bottom = map(int, area)
    sheet.image.paste(texture(sheet).crop((0, 0, right - left, bottom - top)), (left, top))


PARTS: dict[Callable[[Sheet, Area], None], float] = {text: 0.36, field: 0.3, table: 0.14, chart: 0.12, picture_in: 0.08}
"""Share of each kind of part of a page."""


def page(sheet: Sheet) -> None:
    """Draw a page, a form, a screen or an invoice: areas split at random, some coloured, each with parts of one or more kinds."""
    kinds, shares = list(PARTS), np.array(list(PARTS.values()))
    alike = kinds[sheet.generator.choice(len(kinds), p=shares)] if sheet.chance(0.4) else None

    def fill(area: Area) -> None:
        left, top, right, bottom = area
        wide, high = right - left, bottom - top
        if high > 60 or (wide > 130 and sheet.chance(0.3)):
            share, across = sheet.between(0.15, 0.85), wide > 110 and sheet.chance(0.25)
            cut = left + share * wide if across else top + share * high
            fill((left, top, cut, bottom) if across else (left, top, right, cut))
            fill((cut, top, right, bottom) if across else (left, cut, right, bottom))
            return
        if sheet.chance(0.12):
            sheet.draw.rectangle(area, fill=sheet.colour())
        if wide < 24 or high < 12 or sheet.chance(0.12):
            return
        part = alike or kinds[sheet.generator.choice(len(kinds), p=shares)]
        part(sheet, (left + sheet.number(3, 10), top + 3, right - sheet.number(3, 10), bottom - 3))

    margin = sheet.number(0, 30)
    fill((margin, margin, _BIG - margin, _BIG - margin))


def strokes(sheet: Sheet) -> None:
    """Draw scribbles, lines, arcs and hatching."""
    for _ in range(sheet.number(1, 9)):
        kind, wide, colour = sheet.generator.random(), sheet.number(1, 9), sheet.accent()
        start, length = sheet.generator.uniform(10, _BIG - 10, 2), sheet.between(30, 190)
        if kind < 0.45:
            turn = np.cumsum(sheet.generator.normal(0, sheet.between(0.1, 0.9), 40)) + sheet.between(0, 6.3)
            step = np.stack((np.cos(turn), np.sin(turn)), 1) * length / 40 * sheet.between(1, 2.5)
            sheet.draw.line([(float(x), float(y)) for x, y in start + np.cumsum(step, 0)], colour, wide, joint="curve")
        elif kind < 0.65:
            sheet.draw.line((*start, *(start + sheet.generator.uniform(-1, 1, 2) * length)), colour, wide)
        elif kind < 0.8:
            angle = sheet.between(0, math.pi)
            across = np.array((math.cos(angle), math.sin(angle)))
            for place in range(-_BIG, 2 * _BIG, sheet.number(5, 26)):
                middle, along = across * place, np.array((-across[1], across[0])) * 2 * _BIG
                sheet.draw.line((*(middle - along), *(middle + along)), colour, max(1, wide // 3))
        else:
            low = sheet.between(0, 300)
            box = (*start, *(start + length * sheet.generator.uniform(0.5, 1, 2)))
            sheet.draw.arc(box, low, low + sheet.between(40, 200), colour, wide)


def letters(sheet: Sheet) -> None:
    """Draw a few large letters or digits."""
    size = sheet.number(40, 190)
    place = sheet.number(4, 60), sheet.number(-10, max(0, 200 - size))
    sheet.draw.text(place, sheet.words(sheet.number(1, _BIG / size * 1.5)), sheet.accent(), ImageFont.load_default(size))


def noise(sheet: Sheet, slope: float) -> np.ndarray:
    """Return a random field float32 [row, column] with a power spectrum of 1/frequency to the ``slope``, from 0 to 1."""
    frequency = np.hypot(np.fft.fftfreq(_BIG)[:, None], np.fft.rfftfreq(_BIG))
    frequency[0, 0] = 1
    field = np.fft.irfft2(np.fft.rfft2(sheet.generator.normal(size=(_BIG, _BIG))) / frequency ** (slope / 2), (_BIG, _BIG))
    low, high = np.quantile(field, (0.01, 0.99))
    return np.clip((field - low) / max(high - low, 1e-9), 0, 1).astype(np.float32)


def texture(sheet: Sheet) -> Image.Image:
    """Return a picture with a photograph's spectrum: a field that mixes two colours, with its own grain."""
    first, second, third = sheet.generator.integers(0, 256, (3, 3)).astype(np.float32)
    if sheet.chance(0.7):  # most of a photograph is pale or dark
        grey, pale = sheet.between(40, 215), sheet.between(0.1, 0.6)
        first, second = grey + (first - 128) * pale, grey + (second - 128) * pale
    mix, rough = noise(sheet, sheet.between(1.4, 3.2))[..., None], noise(sheet, sheet.between(0.6, 2.2))[..., None]
    mixed = first * mix + second * (1 - mix) + (third - 128) * (rough - 0.5) * sheet.between(0, 0.8)
    return Image.fromarray(np.clip(mixed, 0, 255).astype(np.uint8))


def leaves(sheet: Sheet) -> None:
    """Draw a "dead leaves" picture: things with textures that occlude each other, as in a photograph (Lee et al. 2001)."""
    generator, grounds = sheet.generator, [texture(sheet) for _ in range(4)]
    base, sheet.image = generator.integers(0, 256, 3), grounds[3]
    for _ in range(sheet.number(4, 70)):
        radius, count = float(np.clip(10 / generator.random() ** 0.7, 8, 130)), sheet.number(5, 14)
        angles, reach = np.sort(generator.uniform(0, 2 * math.pi, count)), radius * generator.uniform(0.35, 1.0, count)
        around = np.stack((np.cos(angles), np.sin(angles)), 1) * reach[:, None] + generator.uniform(-20, _BIG + 20, 2)
        mask = Image.new("L", (_BIG, _BIG), 0)
        ImageDraw.Draw(mask).polygon([(float(x), float(y)) for x, y in around], fill=255)
        if sheet.chance(0.6):
            mask = mask.filter(ImageFilter.GaussianBlur(sheet.between(0.5, 7)))
        tint = np.clip(base + generator.normal(0, 60, 3), 0, 255).astype(int).tolist()
        cover = Image.blend(grounds[sheet.number(0, 2)], Image.new("RGB", (_BIG, _BIG), tuple(tint)), sheet.between(0.3, 0.95))
        sheet.image.paste(cover, (0, 0), mask)


def landscape(sheet: Sheet) -> None:
    """Draw bands of texture with rough borders, as a horizon, hills, a street or a wall have."""
    edge, rows = sheet.between(0.1, 0.5) * _BIG, np.arange(_BIG)[:, None]
    canvas = np.linspace(sheet.colour(), sheet.colour(), _BIG)[:, None].repeat(_BIG, 1)
    for _ in range(sheet.number(1, 5)):
        border = edge + (noise(sheet, sheet.between(1.5, 3))[0] - 0.5) * sheet.between(0, 90)
        canvas = np.where((rows > border)[..., None], np.asarray(texture(sheet), np.float32), canvas)
        edge += sheet.between(0.08, 0.35) * _BIG
    sheet.image = Image.fromarray(np.clip(canvas, 0, 255).astype(np.uint8))


KINDS: dict[Callable[[Sheet], None], float] = {page: 0.58, strokes: 0.1, letters: 0.06, leaves: 0.17, landscape: 0.09}
"""Share of each kind of picture."""


def picture(seed: int) -> np.ndarray:
    """Return the picture of a seed, uint8 [row, column, 3], ``SIDE`` pixels wide."""
    sheet, kinds = Sheet(seed), list(KINDS)
    kinds[sheet.generator.choice(len(kinds), p=list(KINDS.values()))](sheet)
    return np.asarray(sheet.image.resize((SIDE, SIDE), Image.Resampling.LANCZOS))


def pictures() -> np.ndarray:
    """Return the set of pictures, uint8 [picture, row, column, 3], drawn on first use."""
    file = ensure_folder(cache_folder() / "data") / f"unknown-{COUNT}.npy"
    if not file.is_file():
        fresh = file.with_name(f"{os.getpid()}-{file.name}")
        with ProcessPoolExecutor(cores()) as pool:
            np.save(fresh, np.stack(list(pool.map(picture, range(COUNT), chunksize=16))))
        os.replace(fresh, file)
    return np.load(file, allow_pickle=False)
