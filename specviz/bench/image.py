"""The image suite: codes a target pass, passes a picture, speed against our own guided one-by-one run, and what it costs.

Every method draws the same held-out prompts with the same seeds. Beside each speed stand three measures of quality: the
latent distance to the strict picture of the same seed (0 for a method that is exact token for token), a retrieval score
trained here, and contact sheets, which somebody has to look at. A curve sets the two numbers against the speed.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from specviz.bench.image_prompts import prompts
from specviz.bench.layer import layer
from specviz.bench.measure import Bencher, Timed
from specviz.bench.report import Report, Row
from specviz.errors import ModelUnavailable
from specviz.models.catalog import DEFAULT_IMAGE_TARGET, DEFAULT_TEXT_TARGET
from specviz.models.folders import cache_folder, made
from specviz.models.image import weights_of
from specviz.models.image_score import ImageScore, load
from specviz.run import Prepared
from specviz.views.quality_curve import Point, quality_curve

SHEET = 8
"""Pictures a row of a contact sheet."""
PASSES, WALL = 2.5, 1.5
"""Goals: target passes of the one-by-one run over ours, and the same of wall time, for the best relaxed method."""


@dataclass(frozen=True)
class Setting:
    """One point of the curve of quality against speed."""

    method: str
    parameters: Mapping[str, Any]

    @property
    def label(self) -> str:
        """How a row calls it."""
        return " ".join([self.method, *(f"{name}={value}" for name, value in self.parameters.items())])


STRICT = (Setting("eagle", {"tree": "published"}), Setting("eagle2", {"nodes": 25}), Setting("speculative_jacobi", {}))
RELAXED = tuple(
    [Setting("lantern", {"delta": delta, "nodes": 25}) for delta in (0.05, 0.1, 0.3)]
    + [Setting("lantern_pp", {"factor": factor}) for factor in (1.5, 2.0, 5.0)]
    + [Setting("lantern_pp", {"factor": 2.0, "tree": tree}) for tree in ("12", "57", "chain")]
    + [Setting("mulo_sd", {"tau": tau}) for tau in (0.02, 0.05, 0.1, 0.2)]
    + [Setting("mulo_sd", {"tau": 0.05, "cache": "stale"})]
)
QUICK = (Setting("eagle2", {"nodes": 25}), Setting("lantern", {}), Setting("lantern_pp", {}), Setting("mulo_sd", {}))


@dataclass
class Drawn:
    """What one setting drew: times and passes beside the one-by-one run's, and the pictures."""

    timed: list[Timed]
    pictures: list[np.ndarray]


def run(report: Report, target: str, methods: Sequence[str], quick: bool = False) -> None:
    """Every setting whose method was asked for, all when ``methods`` is empty."""
    bench = Bencher(DEFAULT_IMAGE_TARGET if target == DEFAULT_TEXT_TARGET else target)
    asked = prompts(4 if quick else 64)
    settings = [one for one in (QUICK if quick else STRICT + RELAXED) if not methods or one.method in methods]
    score = _score()
    alone = _draw(bench, Setting("autoregressive", {}), asked)
    loaded = bench.prepared("autoregressive", asked[0], 1.0).loaded
    found, away = _quality(report, "autoregressive", alone, alone, asked, loaded, score)
    points = [Point("autoregressive", "autoregressive", 1.0, found, away)]
    rows: list[tuple[str, list[np.ndarray]]] = [("autoregressive", alone.pictures)]
    gains = []
    if not methods or {"eagle", "eagle2", "lantern", "lantern_pp"}.intersection(methods):
        report.add(layer(lambda: bench.prepared("eagle", asked[0], 1.0), "eagle"))
    for setting in settings:
        drawn = _draw(bench, setting, asked)
        gains.append(_speed(report, setting, drawn, alone))
        found, away = _quality(report, setting.label, drawn, alone, asked, loaded, score)
        points.append(Point(setting.method, setting.label, gains[-1][1], found, away))
        rows.append((setting.label, drawn.pictures))
    if any(gains):
        report.add(Row("fewer target passes, best setting", max(one for one, _ in gains), goal=PASSES))
        report.add(Row("less wall time, best setting", max(one for _, one in gains), goal=WALL))
    where = sheet(rows, "quick" if quick else "all")
    report.add(Row("contact sheets", None, "", detail=f"{where}: a row a setting, in the order above"))
    report.add(Row("quality against speed", None, "", detail=f"{curve(points, where)}: a point a setting"))


def _draw(bench: Bencher, setting: Setting, asked: Sequence[str]) -> Drawn:
    """One picture a prompt; the seed is the prompt's number. The first is drawn twice, for a warm start."""
    timed, pictures = [], []
    for seed, prompt in enumerate(asked):
        ready = bench.prepared(setting.method, prompt, 1.0, parameters=dict(setting.parameters))
        if not seed:
            bench.once(ready, seed)
        timed.append(bench.once(ready, seed))
        pictures.append(picture(ready, timed[-1]))
    return Drawn(timed, pictures)


def picture(ready: Prepared, timed: Timed) -> np.ndarray:
    """The decoded picture, uint8 [row, column, 3]."""
    return ready.loaded.picture(list(timed.ids))


def passes(timed: Timed) -> int:
    """Runs of the target a picture took."""
    return sum(step.passes for step in timed.steps)


def _speed(report: Report, setting: Setting, drawn: Drawn, alone: Drawn) -> tuple[float, float]:
    """Rows on speed; how many times fewer passes, and less wall time, a picture took."""
    pairs = list(zip(alone.timed, drawn.timed, strict=True))
    fewer = statistics.mean(passes(plain) / passes(ours) for plain, ours in pairs)
    faster = statistics.median(plain.seconds / ours.seconds for plain, ours in pairs)
    report.add(Row(f"{setting.label}: τ", statistics.mean(ours.tau for _, ours in pairs), "codes a pass"))
    each = f"{statistics.mean(passes(ours) for _, ours in pairs):.0f} passes a picture"
    calls = statistics.mean(sum(step.draft_calls for step in ours.steps) for _, ours in pairs)
    report.add(Row(f"{setting.label}: passes", fewer, detail=f"{each}, {calls:.0f} of the drafter"))
    report.add(
        Row(f"{setting.label}: wall time", faster, detail=f"{statistics.mean(o.seconds for _, o in pairs):.2f} s")
    )
    return fewer, faster


def _quality(
    report: Report, label: str, drawn: Drawn, alone: Drawn, asked: Sequence[str], loaded: Any, score: ImageScore | None
) -> tuple[float | None, float]:
    """Rows on quality; the mean score, None where nothing scores, and the mean distance."""
    away = [
        distance(loaded.codebook, ours.ids, plain.ids) for ours, plain in zip(drawn.timed, alone.timed, strict=True)
    ]
    if drawn is not alone:
        report.add(Row(f"{label}: latent distance to the strict picture", statistics.mean(away), "", at_most=True))
    if score is not None:
        own = score.of(drawn.pictures, asked).diagonal()
        found = score.found(drawn.pictures, asked)
        detail = f"{found:.0%} found among {len(asked)}; {score.accuracy}"
        report.add(Row(f"{label}: score", float(own.mean()), "", detail=detail))
    return None if score is None else float(own.mean()), statistics.mean(away)


def distance(codebook: torch.Tensor, ours: Sequence[int], plain: Sequence[int]) -> float:
    """Mean distance of the codes' vectors, cell by cell; 0 when the pictures are the same, at most 2."""
    apart = codebook[list(ours)] - codebook[list(plain)]
    return float(apart.norm(dim=-1).mean())


def _score() -> ImageScore | None:
    try:
        return load(weights_of("image_score"))
    except ModelUnavailable:
        return None  # the rows that need it are left out, which the report shows


def sheet(rows: Sequence[tuple[str, Sequence[np.ndarray]]], name: str) -> Path:
    """A PNG with every setting's first pictures in a row; where it was written."""
    shown = [np.concatenate(list(pictures[:SHEET]), axis=1) for _, pictures in rows]
    where = made(cache_folder() / "bench") / f"image-{name}.png"
    Image.fromarray(np.concatenate(shown, axis=0)).save(where)
    return where


def curve(points: Sequence[Point], beside: Path) -> Path:
    """A page with the points, that opens without a network, beside the contact sheet; where it was written."""
    where = beside.with_name(f"{beside.stem}-curve.html")
    quality_curve(points).write_html(where, include_plotlyjs=True)
    return where
