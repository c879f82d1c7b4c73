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

from specviz.bench.kit.drafter_cost import layer
from specviz.bench.kit.measure import Asked, Bencher, paired, spread
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


def held_out(folder: Path = FOLDER) -> list[Asked]:
    """Every held-out scene with the question for a description. Raises BadInput when the sheet is not at hand."""
    try:
        told = json.loads((folder / "held-out.json").read_text(encoding="utf-8"))
        sheet = Image.open(folder / "held-out.webp").convert("RGB")
    except (OSError, ValueError) as problem:
        raise BadInput(f"The held-out scenes in {folder} cannot be read ({problem}): get them with the project.") from None
    side, columns = told["side"], told["columns"]
    found = []
    for at, one in enumerate(told["scenes"]):
        left, top = at % columns * side, at // columns * side
        out = io.BytesIO()
        sheet.crop((left, top, left + side, top + side)).save(out, "PNG")
        found.append(Asked(out.getvalue(), one["describe"]))
    return found


def run(report: Report, target: str, methods: Sequence[str], quick: bool = False) -> None:
    """Rows for τ, acceptance by depth, prefill lengths and speed, at both temperatures."""
    target = DEFAULT_VISION_TARGET if target == DEFAULT_TEXT_TARGET else target
    report.where["target"] = target
    asked = held_out()[:: len(held_out()) // QUICK] if quick else held_out()
    bench = Bencher(target, TOKENS)
    for temperature in TEMPERATURES:
        found = dict(arms(report, bench, asked, methods, temperature))
        for row in [*compared(found, temperature), *by_depth(found, temperature)]:
            report.add(row)
    if not methods or "hivis" in methods:
        report.add(layer(partial(_ready, bench, asked[0], "hivis", {}, 0.0), "hivis"))
    for row in [*prefills(bench, asked[0], methods), *speeds(bench, asked[: 2 if quick else 6], methods)]:
        report.add(row)


def arms(
    report: Report, bench: Bencher, asked: Sequence[Asked], methods: Sequence[str], temperature: float
) -> Iterator[tuple[str, Arm]]:
    """Every arm whose method is wanted and at hand, a row of τ as it is known."""
    for name, (method, parameters) in ARMS.items():
        if methods and method not in methods:
            continue
        arm = Arm()
        try:
            for one in asked:
                ready = _ready(bench, one, method, parameters, temperature)
                if name == NO_MIDDLE:
                    ready = _taught_plainly(ready)
                arm.add(bench.once(ready, seed=1))
        except SpecvizError as problem:
            report.add(Row(f"τ of {name}, T = {temperature:g}", None, detail=str(problem)))
            continue
        low, high = min(arm.tau), max(arm.tau)
        detail = f"{low:.2f}–{high:.2f} over {len(arm.tau)} held-out scenes"
        report.add(Row(f"τ of {name}, T = {temperature:g}", statistics.mean(arm.tau), "tokens a pass", detail=detail))
        yield name, arm


def compared(found: dict[str, Arm], temperature: float) -> Iterator[Row]:
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
        if ours in found and theirs in found:
            one, two = found[ours].tau, found[theirs].tau
            better = sum(a > b for a, b in zip(one, two, strict=True))
            worse = sum(a < b for a, b in zip(one, two, strict=True))
            detail = f"{statistics.mean(one):.3f} and {statistics.mean(two):.3f}; more on {better}, less on {worse}"
            ratio = statistics.mean(one) / statistics.mean(two)
            yield Row(f"{name}, T = {temperature:g}", ratio, goal=goal, detail=detail)
    if found:
        best = max(found, key=lambda name: statistics.mean(found[name].tau))
        value = statistics.mean(found[best].tau)
        yield Row(f"best τ, T = {temperature:g}", value, "tokens a pass", 3.5, detail=best)


def by_depth(found: dict[str, Arm], temperature: float) -> Iterator[Row]:
    """Of the steps that came to a depth the share that went on, depth by depth."""
    for name in BY_DEPTH:
        if name in found:
            shares = [found[name].going_on(depth) for depth in range(1, DEPTHS + 1)]
            told = ", ".join(f"{share:.3f}" for share in shares)
            yield Row(f"acceptance by depth of {name}, T = {temperature:g}", shares[0], "", detail=f"depth 1 to {DEPTHS}: {told}")


def prefills(bench: Bencher, asked: Asked, methods: Sequence[str]) -> Iterator[Row]:
    """Tokens that each drafter reads before it starts, as its own note tells, beside the target's."""
    for name, (method, parameters) in ARMS.items():
        if name not in ("language_only", "eagle2", "hivis", "dream") or (methods and method not in methods):
            continue
        try:
            ready = _ready(bench, asked, method, parameters, 0.0)
            step = bench.once(ready, record="tree").steps[0]
        except SpecvizError:
            continue  # said already, with the reason, by its row of τ
        told = next(note.data for note in step.notes if note.type == "visual_tokens")
        text = len(ready.parts.picture.of_text) if ready.parts.picture else 0
        detail = f"{told['drafter']} of the target's {told['target']} tokens; {text} of them are text"
        yield Row(f"drafter prefill of {name}", told["drafter"] / told["target"], detail=detail)


def speeds(bench: Bencher, asked: Sequence[Asked], methods: Sequence[str]) -> Iterator[Row]:
    """Own autoregressive run over each method's, prefill included, interleaved; a goal on the best."""
    found: dict[str, tuple[float, list[float]]] = {}
    for name in FASTEST:
        if methods and name not in methods:
            continue
        try:
            found[name] = _speed(bench, asked, name)
        except SpecvizError:
            continue  # said already, with the reason, by its row of τ
        ratio, ratios = found[name]
        yield Row(f"speed-up of {name} with prefill, T = 0", ratio, detail=spread(ratios))
    if found:
        best = max(found, key=lambda name: found[name][0])
        yield Row("best speed-up with prefill, T = 0", found[best][0], goal=1.8, detail=best)


def _speed(bench: Bencher, asked: Sequence[Asked], name: str) -> tuple[float, list[float]]:
    ratios: list[float] = []
    for one in asked:
        plain, ours = (_ready(bench, one, method, {}, 0.0) for method in ("autoregressive", name))
        for ready in (plain, ours):
            seconds(ready)  # the first run of each also prepares what later ones find
        ratios += paired(lambda plain=plain: seconds(plain), lambda ours=ours: seconds(ours), PAIRS)[1]  # type: ignore[misc]
    return statistics.median(ratios), ratios


def seconds(ready: Prepared) -> float:
    """How long a run takes from its prefill to its end."""
    decoding = ready.decoding(ready.compose(), 0, "off", threading.Event())
    gc.collect()
    started = time.perf_counter()
    for _ in decoding.steps():
        pass
    return time.perf_counter() - started


def _taught_plainly(ready: Prepared) -> Prepared:
    """The same run with the control's network in place of the one that ships."""
    network = plain_crossed(ready.loaded, ready.target)
    ready.parts = ready.parts.using(drafter_weights=lambda kind: network)
    return ready


def _ready(bench: Bencher, asked: Asked, method: str, parameters: dict[str, Any], temperature: float) -> Prepared:
    return bench.prepared(method, asked, temperature, parameters=parameters)
