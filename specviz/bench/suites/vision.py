"""The vision suite: each drafter and an ablation of its parts on held-out scenes, and the speed-up in all.

Feature drafters grow trees of one depth and size here, so that τ compares drafters and not trees; the speed-up takes every
method as a visitor gets it, prefill included. The picture is encoded once for all runs, so no run is charged for it.
"""

from __future__ import annotations

import gc
import io
import json
import statistics
import threading
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from PIL import Image

from specviz.bench.kit.drafter_cost import layer_cost
from specviz.bench.kit.measure import Bencher, PictureQuestion, median_ratio, range_text
from specviz.bench.kit.report import Report, Row
from specviz.bench.suites.falcon import Arm
from specviz.errors import BadInput, SpecvizError
from specviz.models.hub.catalog import DEFAULT_TEXT_TARGET, DEFAULT_VISION_TARGET
from specviz.models.vision.vision_drafts import plain_crossed
from specviz.runner import Prepared

FOLDER = Path(__file__).resolve().parents[3] / "assets" / "images" / "scenes"
TREE: dict[str, Any] = {"depth": 5, "width": 6, "nodes": 24}
DEPTHS = 5
TOKENS = 160
TEMPERATURES = (0.0, 1.0)
PAIRS = 5
QUICK = 4
"""Scenes of a short run."""

NO_MIDDLE = "dream without its middle loss"
"""A training of its own, so it stands in for the network that ships."""
ARMS: dict[str, tuple[str, dict[str, Any]]] = {
    "prompt_lookup": ("prompt_lookup", {}),
    "token_recycling": ("token_recycling", {}),
    "suffix_decoding": ("suffix_decoding", {}),
    "language_only": ("language_only", {}),
    "eagle2": ("eagle2", TREE),
    "hivis": ("hivis", TREE),
    "hivis, residuals zeroed": ("hivis", {**TREE, "residuals": "off"}),
    "dream": ("dream", TREE),
    "dream without cross-attention": ("dream", {**TREE, "cross_attention": False}),
    "dream shown every patch": ("dream", {**TREE, "keep": 1.0}),
    NO_MIDDLE: ("dream", TREE),
}
"""Name -> method and parameters."""
BY_DEPTH = ("eagle2", "hivis", "hivis, residuals zeroed", "dream", "dream without cross-attention", NO_MIDDLE)
FASTEST = ("token_recycling", "language_only", "eagle2", "hivis", "dream")


def held_out(folder: Path = FOLDER) -> list[PictureQuestion]:
    """Every held-out scene with the question for a description. Raises BadInput when the sheet is not at hand."""
    try:
        sheet_index = json.loads((folder / "held-out.json").read_text(encoding="utf-8"))
        sheet = Image.open(folder / "held-out.webp").convert("RGB")
    except (OSError, ValueError) as problem:
        raise BadInput(f"The held-out scenes in {folder} cannot be read ({problem}): get them with the project.") from None
    side, columns = sheet_index["side"], sheet_index["columns"]
    questions = []
    for at, scene in enumerate(sheet_index["scenes"]):
        left, top = at % columns * side, at // columns * side
        out = io.BytesIO()
        sheet.crop((left, top, left + side, top + side)).save(out, "PNG")
        questions.append(PictureQuestion(out.getvalue(), scene["describe"]))
    return questions


def run(report: Report, target: str, methods: Sequence[str], quick: bool = False) -> None:
    """Rows for τ, acceptance by depth, prefill lengths and speed, at both temperatures."""
    target = DEFAULT_VISION_TARGET if target == DEFAULT_TEXT_TARGET else target
    report.where["target"] = target
    questions = held_out()[:: len(held_out()) // QUICK] if quick else held_out()
    bench = Bencher(target, TOKENS)
    for temperature in TEMPERATURES:
        arms_by_name = dict(arms(report, bench, questions, methods, temperature))
        for row in [*comparisons(arms_by_name, temperature), *by_depth(arms_by_name, temperature)]:
            report.add(row)
    if not methods or "hivis" in methods:
        report.add(layer_cost(partial(_ready, bench, questions[0], "hivis", {}, 0.0), "hivis"))
    for row in [*prefills(bench, questions[0], methods), *speeds(bench, questions[: 2 if quick else 6], methods)]:
        report.add(row)


def arms(
    report: Report, bench: Bencher, questions: Sequence[PictureQuestion], methods: Sequence[str], temperature: float
) -> Iterator[tuple[str, Arm]]:
    """Every arm whose method is wanted and at hand, a row of τ as it is known."""
    for name, (method, parameters) in ARMS.items():
        if methods and method not in methods:
            continue
        arm = Arm()
        try:
            for question in questions:
                ready = _ready(bench, question, method, parameters, temperature)
                if name == NO_MIDDLE:
                    ready = _with_plain_network(ready)
                arm.add(bench.timed_run(ready, seed=1))
        except SpecvizError as problem:
            report.add(Row(f"τ of {name}, T = {temperature:g}", None, detail=str(problem)))
            continue
        low, high = min(arm.tau), max(arm.tau)
        detail = f"{low:.2f}–{high:.2f} over {len(arm.tau)} held-out scenes"
        report.add(Row(f"τ of {name}, T = {temperature:g}", statistics.mean(arm.tau), "tokens a pass", detail=detail))
        yield name, arm


def comparisons(arms_by_name: dict[str, Arm], temperature: float) -> Iterator[Row]:
    """Drafter against drafter, and each without one of its parts."""
    pairs = (
        ("hivis", "eagle2", "τ: HiViS over EAGLE-2 with visual rows", 1.0),
        ("dream", "eagle2", "τ: DREAM over EAGLE-2 with visual rows", 1.0),
        ("hivis", "hivis, residuals zeroed", "τ: HiViS over itself with residuals zeroed", None),
        ("dream", "dream without cross-attention", "τ: DREAM over itself without cross-attention", None),
        ("dream", "dream shown every patch", "τ: DREAM over itself shown every patch", None),
        ("dream", NO_MIDDLE, "τ: DREAM over itself without its middle loss", None),
    )
    for ours, theirs, name, goal in pairs:
        if ours in arms_by_name and theirs in arms_by_name:
            our_taus, their_taus = arms_by_name[ours].tau, arms_by_name[theirs].tau
            better = sum(a > b for a, b in zip(our_taus, their_taus, strict=True))
            worse = sum(a < b for a, b in zip(our_taus, their_taus, strict=True))
            detail = f"{statistics.mean(our_taus):.3f} and {statistics.mean(their_taus):.3f}; more on {better}, less on {worse}"
            ratio = statistics.mean(our_taus) / statistics.mean(their_taus)
            yield Row(f"{name}, T = {temperature:g}", ratio, goal=goal, detail=detail)
    if arms_by_name:
        best = max(arms_by_name, key=lambda name: statistics.mean(arms_by_name[name].tau))
        value = statistics.mean(arms_by_name[best].tau)
        yield Row(f"best τ, T = {temperature:g}", value, "tokens a pass", 3.5, detail=best)


def by_depth(arms_by_name: dict[str, Arm], temperature: float) -> Iterator[Row]:
    """Of the steps that came to a depth the share that went on, depth by depth."""
    for name in BY_DEPTH:
        if name in arms_by_name:
            shares = [arms_by_name[name].acceptance_at(depth) for depth in range(1, DEPTHS + 1)]
            curve = ", ".join(f"{share:.3f}" for share in shares)
            yield Row(
                f"acceptance by depth of {name}, T = {temperature:g}", shares[0], "", detail=f"depth 1 to {DEPTHS}: {curve}"
            )


def prefills(bench: Bencher, question: PictureQuestion, methods: Sequence[str]) -> Iterator[Row]:
    """Tokens that each drafter reads before it starts, as its own note tells, beside the target's."""
    for name, (method, parameters) in ARMS.items():
        if name not in ("language_only", "eagle2", "hivis", "dream") or (methods and method not in methods):
            continue
        try:
            ready = _ready(bench, question, method, parameters, 0.0)
            step = bench.timed_run(ready, record="tree").steps[0]
        except SpecvizError:
            continue  # said already, with the reason, by its row of τ
        rows = next(note.data for note in step.notes if note.type == "visual_tokens")
        text = len(ready.parts.picture.of_text) if ready.parts.picture else 0
        detail = f"{rows['drafter']} of the target's {rows['target']} tokens; {text} of them are text"
        yield Row(f"drafter prefill of {name}", rows["drafter"] / rows["target"], detail=detail)


def speeds(bench: Bencher, questions: Sequence[PictureQuestion], methods: Sequence[str]) -> Iterator[Row]:
    """Own autoregressive run over each method's, prefill included, interleaved; a goal on the best."""
    gains: dict[str, tuple[float, list[float]]] = {}
    for name in FASTEST:
        if methods and name not in methods:
            continue
        try:
            gains[name] = _speed(bench, questions, name)
        except SpecvizError:
            continue  # said already, with the reason, by its row of τ
        ratio, ratios = gains[name]
        yield Row(f"speed-up of {name} with prefill, T = 0", ratio, detail=range_text(ratios))
    if gains:
        best = max(gains, key=lambda name: gains[name][0])
        yield Row("best speed-up with prefill, T = 0", gains[best][0], goal=1.8, detail=best)


def _speed(bench: Bencher, questions: Sequence[PictureQuestion], name: str) -> tuple[float, list[float]]:
    ratios: list[float] = []
    for question in questions:
        plain, ours = (_ready(bench, question, method, {}, 0.0) for method in ("autoregressive", name))
        for ready in (plain, ours):
            seconds(ready)  # the first run of each also prepares what later ones find
        gains = median_ratio(lambda plain=plain: seconds(plain), lambda ours=ours: seconds(ours), PAIRS)  # type: ignore[misc]
        ratios += gains[1]
    return statistics.median(ratios), ratios


def seconds(ready: Prepared) -> float:
    """How long a run takes from its prefill to its end."""
    decoding = ready.decoding(ready.compose(), 0, "off", threading.Event())
    gc.collect()
    started = time.perf_counter()
    for _ in decoding.steps():
        pass
    return time.perf_counter() - started


def _with_plain_network(ready: Prepared) -> Prepared:
    """The same run with the control's network in place of the one that ships."""
    network = plain_crossed(ready.loaded, ready.target)
    ready.parts = ready.parts.using(drafter_weights=lambda kind: network)
    return ready


def _ready(bench: Bencher, question: PictureQuestion, method: str, parameters: dict[str, Any], temperature: float) -> Prepared:
    return bench.prepared(method, question, temperature, parameters=parameters)
