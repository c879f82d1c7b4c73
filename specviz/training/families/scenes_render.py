"""Renderer of scenes on the training device.

Shapes are signed distances, sampled and thresholded, so that edges are smooth at any size and outlines cost nothing. Emoji art
is sampled from levels of detail. Blur, scaling, tone and noise follow, as a camera or a screen adds them.
Axis names: ``scene``, ``layer``, ``channel``, ``row``, ``column``, ``edge``.
"""

from __future__ import annotations

import copy
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from specviz.models.hub.cache_dir import cache_folder, ensure_folder
from specviz.training.families import emoji, scenes_unknown
from specviz.training.families.scenes import ART, DRAWINGS, FIELD, LINEAR, NAMES, PATTERN, PICTURE, RADIAL, SHAPES, SIDE, Paint
from specviz.training.phrases import phrases

FINE = 96
"""Pixels across of a sampled distance."""
MARGIN = 1.25
"""Side of a texture, relative to the thing in its middle."""
STRANGERS = 420
"""Emoji that the model does not know."""
Outline = Mapping[str, Any]
"""``corners`` [corner, (x, y)] in the unit square, and the radius ``rounded`` by which the outline is moved."""
_DATA = phrases("scenes")
KNOWN: Mapping[str, Sequence[Outline]] = _DATA["known"]
UNKNOWN: Sequence[Outline] = _DATA["unknown"]["shapes"]


def distances(outline: Outline) -> Tensor:
    """Return the signed distance to an outline, positive inside, float32 [row, column], over MARGIN of the unit square."""
    steps = ((torch.arange(FINE, dtype=torch.float64) + 0.5) / FINE - 0.5) * MARGIN + 0.5
    points = torch.stack(torch.meshgrid(steps, steps, indexing="xy"), -1)
    corners = torch.tensor(outline["corners"], dtype=torch.float64)
    nearest, inside = torch.full((FINE, FINE), 9.0, dtype=torch.float64), torch.zeros(FINE, FINE, dtype=torch.bool)
    for start, end in zip(corners, corners.roll(-1, 0), strict=True):
        along, gap = end - start, points - start
        share = ((gap * along).sum(-1) / (along * along).sum()).clamp(0, 1)
        nearest = torch.minimum(nearest, (gap - share[..., None] * along).norm(dim=-1))
        crosses = (start[1] > points[..., 1]) != (end[1] > points[..., 1])
        inside ^= crosses & (points[..., 0] < along[0] * (points[..., 1] - start[1]) / (along[1] + 1e-12) + start[0])
    return (torch.where(inside, nearest, -nearest) + outline["rounded"]).float()


def art() -> np.ndarray:
    """Return emoji art, uint8 [drawing, row, column, rgba]: known ones by style, then unknown ones. Kept in the cache."""
    file = ensure_folder(cache_folder() / "data") / "scenes-art.npy"
    if not file.is_file():
        every = emoji.load()
        codes = {concept.code: concept for concept in every.concepts}
        own = [codes[code] for code in _DATA["emoji"].values()]
        alike = {*NAMES, *SHAPES, *_DATA["unknown"]["alike"].split()}
        others = [one for one in every.concepts if not alike & {*one.label.lower().split(), *one.tags}]
        picked = np.random.default_rng(0).permutation(len(others))[:STRANGERS]
        rows = [concept.rows[style] for style in emoji.STYLES for concept in own]
        rows += [others[one].rows[emoji.STYLES[place % 3]] for place, one in enumerate(picked)]
        fresh = file.with_name(f"{os.getpid()}-{file.name}")
        np.save(fresh, every.pictures[rows])
        os.replace(fresh, file)
    return np.load(file, allow_pickle=False)


class Renderer:
    """Renderer on a ``device``. Its random numbers make a scene look different every time."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.generator = device, torch.Generator(device).manual_seed(0)
        known = [outline for name in SHAPES for outline in KNOWN[name]]
        self._known = len(known)
        self._shapes = torch.stack([distances(outline) for outline in (*known, *UNKNOWN)])[:, None].to(device)
        counts = [len(KNOWN[name]) for name in SHAPES]
        self._counts = torch.tensor(counts, device=device)
        self._first = torch.tensor([sum(counts[:place]) for place in range(len(counts))], device=device)
        drawn = torch.from_numpy(art()).to(device).permute(0, 3, 1, 2).float() / 255
        drawn = F.pad(torch.cat((drawn[:, :3] * drawn[:, 3:], drawn[:, 3:]), 1), (round(emoji.SIDE * (MARGIN - 1) / 2),) * 4)
        levels = [drawn, *(F.interpolate(F.avg_pool2d(drawn, step), drawn.shape[-2:], mode="bilinear") for step in (2, 4))]
        self._art, self._unknown_art = torch.stack(levels).half(), len(NAMES) * DRAWINGS
        self._pictures = torch.from_numpy(scenes_unknown.pictures()).to(device)
        lines = (torch.arange(SIDE, device=device) + 0.5).float()
        self._at = torch.stack(torch.meshgrid(lines, lines, indexing="xy"), -1)  # [row, column, (x, y)]

    def _uniform(self, *shape: int, low: float = 0.0, high: float = 1.0) -> Tensor:
        return torch.rand(shape, generator=self.generator, device=self.device) * (high - low) + low

    def _normal(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self.generator, device=self.device)

    def _each(self, count: int, low: float = 0.0, high: float = 1.0) -> Tensor:
        """Return a random number a scene, float32 [scene, 1, 1, 1]."""
        return self._uniform(count, 1, 1, 1, low=low, high=high)

    def _chance(self, count: int, share: float) -> Tensor:
        """Return 1 for a random ``share`` of the scenes, else 0: float32 [scene, 1, 1, 1]."""
        return (self._each(count) < share).float()

    def seeded(self, seed: int) -> Renderer:
        """Return this renderer with random numbers of its own, for the same pictures every time."""
        other = copy.copy(self)
        other.generator = torch.Generator(self.device).manual_seed(seed)
        return other

    @torch.no_grad()
    def draw(self, paints: Paint) -> Tensor:
        """Return the pictures, uint8 [scene, row, column, channel], of stacked ``paints``, on the device."""
        paint = {name: torch.from_numpy(value).to(self.device) for name, value in paints.items()}
        canvas = self._ground(paint)
        for layer in range(paint["layer"].shape[1]):
            names = ("layer", "place", "xy", "pixels", "turn", "aspect", "rgb")
            canvas = self._thing(canvas, {name: paint[name][:, layer] for name in names})
        canvas = self._camera(canvas)
        left, top, right, bottom = paint["frame"].T[:, :, None, None]
        x, y = self._at[..., 0], self._at[..., 1]
        inside = ((x > left) & (x < right) & (y > top) & (y < bottom))[:, None]
        return (torch.where(inside, canvas, 1.0) * 255 + 0.5).to(torch.uint8).permute(0, 2, 3, 1).contiguous()

    def _fields(self, count: int) -> Tensor:
        """Return random fields [scene, 1, row, column] from 0 to 1 with a power spectrum of 1/frequency to a random slope."""
        rows, columns = torch.fft.fftfreq(SIDE, device=self.device), torch.fft.rfftfreq(SIDE, device=self.device)
        frequency = torch.hypot(rows[:, None], columns[None]).clamp_min(1 / SIDE)
        slope = self._uniform(count, 1, 1, low=0.3, high=1.5)
        field = torch.fft.irfft2(torch.fft.rfft2(self._normal(count, SIDE, SIDE)) * frequency**-slope, (SIDE, SIDE))
        field = (field - field.mean((1, 2), keepdim=True)) / field.std((1, 2), keepdim=True)
        return (field / 4 + 0.5).clamp(0, 1)[:, None]

    def _ground(self, paint: Mapping[str, Tensor]) -> Tensor:
        """Return the grounds, float32 [scene, channel, row, column] from 0 to 1."""
        count, mode = len(paint["mode"]), paint["mode"][:, None, None, None]
        first, second = paint["ground"].transpose(0, 1)[..., None, None] / 255
        angle = self._uniform(count, 1, 1, high=2 * math.pi)
        across = (self._at[..., 0] * angle.cos() + self._at[..., 1] * angle.sin()) / SIDE
        low, high = across.amin((1, 2), keepdim=True), across.amax((1, 2), keepdim=True)
        linear = ((across - low) / (high - low))[:, None]
        middle = self._uniform(count, 1, 1, 2, low=0.2 * SIDE, high=0.8 * SIDE)
        radial = ((self._at - middle).norm(dim=-1) / SIDE).clamp(0, 1)[:, None]
        waves = torch.sin(across[:, None] * SIDE / self._each(count, low=3.0, high=24.0) * 2 * math.pi)
        pattern = (waves * 6 + 0.5).clamp(0, 1) * self._each(count, low=0.45)
        mix = torch.zeros(count, 1, SIDE, SIDE, device=self.device)
        for chosen, value in ((LINEAR, linear), (RADIAL, radial), (FIELD, self._fields(count)), (PATTERN, pattern)):
            mix = torch.where(mode == chosen, value, mix)
        places = torch.randint(len(self._pictures), (count,), generator=self.generator, device=self.device)
        shown = self._varied(self._pictures[places].permute(0, 3, 1, 2).float() / 255)
        return torch.where(mode == PICTURE, shown, first * (1 - mix) + second * mix)

    def _varied(self, pictures: Tensor) -> Tensor:
        """Return a random part of each picture, mirrored or not, with channels swapped or not."""
        count, zero = len(pictures), torch.zeros(len(pictures), device=self.device)
        zoom = self._uniform(count, low=0.55, high=1.0)
        mirror = torch.where(self._uniform(count) < 0.3, -1.0, 1.0)
        shift = self._uniform(2, count, low=-1.0, high=1.0) * (1 - zoom)
        matrix = torch.stack((zoom * mirror, zero, shift[0], zero, zoom, shift[1]), -1).view(count, 2, 3)
        grid = F.affine_grid(matrix, [count, 3, SIDE, SIDE], align_corners=False)
        seen = F.grid_sample(pictures, grid, padding_mode="border", align_corners=False)
        swapped = seen[:, torch.randperm(3, generator=self.generator, device=self.device)]
        return torch.where(self._chance(count, 0.4) > 0, swapped, seen)

    def _thing(self, canvas: Tensor, thing: Mapping[str, Tensor]) -> Tensor:
        """Draw one layer of things."""
        count, place, size = len(canvas), thing["place"], thing["pixels"][:, None, None, None]
        gap = (self._at - thing["xy"][:, None, None]) / size
        cos, sin = thing["turn"].cos()[:, None, None], thing["turn"].sin()[:, None, None]
        squeeze = thing["aspect"].sqrt()[:, None, None]
        across, down = (gap[..., 0] * cos + gap[..., 1] * sin) / squeeze, (gap[..., 1] * cos - gap[..., 0] * sin) * squeeze
        is_art = thing["layer"] == ART
        mirror = torch.where((self._uniform(count) < 0.3) & is_art, -1.0, 1.0)[:, None, None]
        grid = torch.stack((across * mirror, down), -1) * (2 / MARGIN)
        shown = torch.where(
            is_art[:, None, None, None], self._art_of(place, size, grid), self._shape_of(place, size, grid, thing["rgb"])
        )
        inside = (grid.abs().amax(-1) < 1)[:, None] & (thing["layer"] > 0)[:, None, None, None]
        drawn = torch.where(inside, shown, 0.0)
        # A shadow: the alpha, moved and blurred.
        soft = F.avg_pool2d(F.pad(drawn[:, 3:].roll((2, 2), (2, 3)), (2, 2, 2, 2)), 5, 1)
        canvas = canvas * (1 - soft * self._chance(count, 0.2) * self._each(count, low=0.1, high=0.5))
        return canvas * (1 - drawn[:, 3:]) + drawn[:, :3]

    def _art_of(self, place: Tensor, size: Tensor, grid: Tensor) -> Tensor:
        """Return emoji art with premultiplied alpha [scene, 4, row, column]. ``place``: -1 for one that is not known."""
        unknown = torch.randint(self._unknown_art, self._art.shape[1], place.shape, generator=self.generator, device=self.device)
        chosen = torch.where(place < 0, unknown, place)
        level = (size.flatten() < 44).long() + (size.flatten() < 20).long()
        drawn = F.grid_sample(self._art[level, chosen].float(), grid, align_corners=False)
        tone = self._uniform(len(place), 3, 1, 1, low=-0.06, high=0.06) + self._each(len(place), low=-0.1, high=0.1)
        return torch.cat(((drawn[:, :3] * (1 + tone)).clamp(0, 1), drawn[:, 3:]), 1)

    def _shape_of(self, place: Tensor, size: Tensor, grid: Tensor, colour: Tensor) -> Tensor:
        """Return plain shapes with premultiplied alpha [scene, 4, row, column]: filled, shaded, outlined or hollow."""
        count = len(place)
        unknown = torch.randint(self._known, len(self._shapes), place.shape, generator=self.generator, device=self.device)
        name = place.clamp(0, len(SHAPES) - 1)
        variant = (self._uniform(count) * self._counts[name]).long() * (self._uniform(count) < 0.75)
        chosen = torch.where(place < 0, unknown, self._first[name] + variant)
        distance = F.grid_sample(self._shapes[chosen], grid, padding_mode="border", align_corners=False) * size
        soft, rgb = self._each(count, low=0.8, high=2.0), colour[..., None, None] / 255
        alpha = (0.5 + distance / soft).clamp(0, 1)
        angle = self._uniform(count, 1, 1, high=2 * math.pi)
        slope = (grid[..., 0] * angle.cos() + grid[..., 1] * angle.sin())[:, None]
        light = slope * self._chance(count, 0.35) * self._each(count, low=0.05, high=0.25)
        fill = (rgb + torch.where(light > 0, (1 - rgb) * light, rgb * light) * 1.3).clamp(0, 1)
        hollow = self._chance(count, 0.1) * (size > 20)
        thick, thin = (size * 0.07).clamp_min(1.8) * self._each(count, low=0.9, high=1.6), self._each(count, low=1.0, high=3.0)
        width = torch.where(hollow > 0, thick, thin.minimum(size * 0.08))
        outlined = torch.maximum(self._chance(count, 0.25), hollow)
        line = (alpha - (0.5 + (distance - width) / soft).clamp(0, 1)) * outlined
        white = self._chance(count, 0.2)
        ink = torch.where(hollow > 0, rgb, rgb * self._each(count, high=0.6) * (1 - white) + white)
        body = (alpha - line) * (1 - hollow)
        return torch.cat((fill * body + ink * line, body + line), 1)

    def _camera(self, canvas: Tensor) -> Tensor:
        """Return the pictures after blur or sharpening, a smaller size, tone and noise, each for some."""
        count = len(canvas)
        blurred = F.avg_pool2d(F.pad(canvas, (1, 1, 1, 1), mode="replicate"), 3, 1)
        canvas = canvas + (blurred - canvas) * self._chance(count, 0.3) * self._each(count, low=-0.6)
        smaller = int(torch.randint(56, 112, (1,), generator=self.generator, device=self.device).item())
        shrunk = F.interpolate(canvas, (smaller, smaller), mode="bilinear", antialias=True)
        shrunk = F.interpolate(shrunk, (SIDE, SIDE), mode="bilinear")
        canvas = torch.where(self._chance(count, 0.2) > 0, shrunk, canvas)
        toned = self._chance(count, 0.4)
        gain = 1 + toned * (self._uniform(count, 3, 1, 1, low=-0.05, high=0.05) + self._each(count, low=-0.08, high=0.1))
        canvas = (canvas.clamp(0, 1) ** (1 + toned * self._each(count, low=-0.2, high=0.25))) * gain
        grain = self._chance(count, 0.35) * self._each(count, high=0.07)
        return (canvas + grain * self._normal(*canvas.shape)).clamp(0, 1)
