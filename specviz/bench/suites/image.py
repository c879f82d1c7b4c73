"""The image suite: τ, passes a picture, speed-up over our own guided baseline, and quality.

Every method draws the same held-out prompts with the same seeds, all of them one prompt before any goes on to the next: a
machine that grows slower meanwhile is slower for all alike. Beside each speed stand three measures of quality: the
latent distance of each code to the target's own choice in its place (0 but for rounding where a method is exact token for
token), a retrieval score trained here, and contact sheets, which somebody has to look at. A curve sets the two numbers
against the speed. The last rows say who is ahead of whom.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from specviz.bench.kit.coupling_distance import CodeDistances, code_distances
from specviz.bench.kit.drafter_cost import layer_cost
from specviz.bench.kit.measure import Bencher, TimedRun
from specviz.bench.kit.report import Report, Row
from specviz.bench.suites.image_prompts import prompts
from specviz.bench.suites.image_settings import PLAIN, QUICK, RELAXED, STRICT, SWEEPS, Setting
from specviz.bench.suites.image_verdicts import Result, verdicts
from specviz.errors import ModelUnavailable
from specviz.figures.quality_curve import Point, quality_curve
from specviz.models.hub.cache_dir import cache_folder, ensure_folder
from specviz.models.hub.catalog import DEFAULT_IMAGE_TARGET, DEFAULT_TEXT_TARGET
from specviz.models.image.image import weights_of
from specviz.models.image.image_score import ImageScore, load
from specviz.runner import Prepared

SHEET = 8
"""Pictures a row of a contact sheet."""
PROGRESS_EVERY = 8
"""Prompts between two words on how far it is."""


@dataclass
class SettingRuns:
    """What one setting drew: times and steps, the pictures, and how far their codes are from the target's own choice."""

    runs: list[TimedRun]
    pictures: list[np.ndarray]
    distances: list[CodeDistances]


def run(report: Report, target: str, methods: Sequence[str], quick: bool = False, sweeps: bool = False) -> None:
    """Every setting whose method was asked for, all when ``methods`` is empty; ``sweeps`` are what a user may turn beside
    the bounds."""
    bench = Bencher(DEFAULT_IMAGE_TARGET if target == DEFAULT_TEXT_TARGET else target)
    report.where["target"] = bench.target
    texts = prompts(4 if quick else 64)
    known = SWEEPS if sweeps else QUICK if quick else STRICT + RELAXED
    settings = [setting for setting in known if not methods or setting.method in methods]
    score = _score()
    drawn_by = _draw(report, bench, (PLAIN, *settings), texts)
    alone = drawn_by[PLAIN.label]
    score_mean, away = _quality(report, PLAIN.label, alone, texts, score)
    points = [Point(PLAIN.method, PLAIN.label, 1.0, score_mean, away)]
    rows = [(PLAIN.label, alone.pictures)]
    results = []
    if not methods or {"eagle", "eagle2", "lantern", "lantern_pp"}.intersection(methods):
        report.add(layer_cost(lambda: bench.prepared("eagle", texts[0], 1.0), "eagle"))
    for setting in settings:
        drawn = drawn_by[setting.label]
        results.append(_speed(report, setting, drawn, alone))
        score_mean, away = _quality(report, setting.label, drawn, texts, score)
        points.append(Point(setting.method, setting.label, results[-1].faster, score_mean, away))
        rows.append((setting.label, drawn.pictures))
    for row in verdicts(Result(PLAIN, [1.0] * len(texts), 1.0, 1.0, _seconds(alone)), results):
        report.add(row)
    where = contact_sheet(rows, ("sweeps" if sweeps else "all") + ("-quick" if quick else ""))
    report.add(Row("contact sheets", None, "", detail=f"{where}: a row a setting, in the order above"))
    report.add(Row("quality against speed", None, "", detail=f"{curve(points, where)}: a point a setting"))


def _draw(report: Report, bench: Bencher, settings: Sequence[Setting], texts: Sequence[str]) -> dict[str, SettingRuns]:
    """By setting one picture a prompt; the seed is the prompt's number. The first is drawn twice, for a warm start."""
    drawn_by = {setting.label: SettingRuns([], [], []) for setting in settings}
    for seed, prompt in enumerate(texts):
        for setting in settings:
            drawn = drawn_by[setting.label]
            ready = bench.prepared(setting.method, prompt, 1.0, parameters=dict(setting.parameters))
            if not seed:
                bench.timed_run(ready, seed)
            timed = bench.timed_run(ready, seed)
            drawn.runs.append(timed)
            drawn.pictures.append(picture(ready, timed))
            drawn.distances.append(code_distances(ready, timed.ids, seed))
        if (seed + 1) % PROGRESS_EVERY == 0 or seed + 1 == len(texts):
            report.say(f"{seed + 1} of {len(texts)} prompts drawn in {len(settings)} settings")
    return drawn_by


def picture(ready: Prepared, timed: TimedRun) -> np.ndarray:
    """The decoded picture, uint8 [row, column, 3]."""
    return ready.loaded.picture(list(timed.ids))


def passes(timed: TimedRun) -> int:
    """Runs of the target a picture took."""
    return sum(step.passes for step in timed.steps)


def _seconds(drawn: SettingRuns) -> list[float]:
    return [timed.seconds for timed in drawn.runs]


def _speed(report: Report, setting: Setting, drawn: SettingRuns, alone: SettingRuns) -> Result:
    """Rows on speed: codes a pass, how many times fewer passes, and less wall time, a picture took."""
    pairs = list(zip(alone.runs, drawn.runs, strict=True))
    taus = [ours.tau for _, ours in pairs]
    fewer = sum(passes(plain) for plain, _ in pairs) / sum(passes(ours) for _, ours in pairs)
    faster = statistics.median(plain.seconds / ours.seconds for plain, ours in pairs)
    report.add(Row(f"{setting.label}: τ", statistics.mean(taus), "codes a pass"))
    each = f"{statistics.mean(passes(ours) for _, ours in pairs):.0f} passes a picture"
    calls = statistics.mean(sum(step.draft_calls for step in ours.steps) for _, ours in pairs)
    report.add(Row(f"{setting.label}: passes", fewer, detail=f"{each}, {calls:.0f} of the drafter"))
    seconds = _seconds(drawn)
    report.add(Row(f"{setting.label}: wall time", faster, detail=f"{statistics.mean(seconds):.2f} s"))
    return Result(setting, taus, fewer, faster, seconds)


def _quality(
    report: Report, label: str, drawn: SettingRuns, texts: Sequence[str], score: ImageScore | None
) -> tuple[float | None, float]:
    """Rows on quality; the mean score, None where nothing scores, and the mean distance."""
    away = statistics.mean(distances.own for distances in drawn.distances)
    scale = statistics.mean(distances.independent for distances in drawn.distances)
    explanation = (
        f"two independent draws from the target's distributions lie {scale:.3f} apart: about the most of an exact method"
    )
    if label == PLAIN.label:
        explanation = f"rounding alone, as one pass reads all codes; two independent draws lie {scale:.3f} apart"
    report.add(Row(f"{label}: latent distance to the target's own choice", away, "", detail=explanation))
    if score is not None:
        own = score.of(drawn.pictures, texts).diagonal()
        retrieved = score.retrieval_rate(drawn.pictures, texts)
        detail = f"{retrieved:.0%} found among {len(texts)}; {score.accuracy}"
        report.add(Row(f"{label}: score", float(own.mean()), "", detail=detail))
    return None if score is None else float(own.mean()), away


def _score() -> ImageScore | None:
    try:
        return load(weights_of("image_score"))
    except ModelUnavailable:
        return None  # the rows that need it are left out, which the report shows


def contact_sheet(rows: Sequence[tuple[str, Sequence[np.ndarray]]], name: str) -> Path:
    """A PNG with every setting's first pictures in a row; where it was written."""
    strips = [np.concatenate(list(pictures[:SHEET]), axis=1) for _, pictures in rows]
    where = ensure_folder(cache_folder() / "bench") / f"image-{name}.png"
    Image.fromarray(np.concatenate(strips, axis=0)).save(where)
    return where


def curve(points: Sequence[Point], beside: Path) -> Path:
    """A page with the points, that opens without a network, beside the contact sheet; where it was written."""
    where = beside.with_name(f"{beside.stem}-curve.html")
    quality_curve(points).write_html(where, include_plotlyjs=True)
    return where
