"""Comparisons within the image suite: who is ahead of whom, what a looser bound brings, what is quick enough. A row stands
only where both its sides were run.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from specviz.bench.kit.report import Row
from specviz.bench.suites.image_settings import ORDER, ORDER_BY_SIZE, SWEPT, TREES, Setting
from specviz.methods.registry import all_methods

PASSES, WALL = 2.5, 1.5
"""Goals: target passes of the autoregressive run over ours, and the same of wall time, of one and the same relaxed setting."""
MORE = 1.0 + 1e-9
"""A goal for what should be ahead, and not only level."""
MINUTE = 60.0
"""Most seconds a picture may take."""


@dataclass(frozen=True)
class Result:
    """What one setting measured: how many times fewer passes in all, and in the median less wall time, than the baseline; and of
    each picture, in the order of the prompts, codes a pass and ``seconds``."""

    setting: Setting
    taus: Sequence[float]
    fewer: float
    faster: float
    seconds: Sequence[float]

    @property
    def tau(self) -> float:
        """Codes a pass, the mean over the pictures."""
        return statistics.mean(self.taus)


def verdicts(alone: Result, results: Sequence[Result]) -> list[Row]:
    """All rows; ``alone`` is the autoregressive run on the same prompts."""
    known = {result.setting.label: result for result in results}
    rows = [*_fastest(results), *_ordered(known), *_trees(known)]
    for method, bound in SWEPT:
        rows += _rising(results, method, bound)
    return [*rows, *_quick_enough(alone, results)]


def _fastest(results: Sequence[Result]) -> Iterator[Row]:
    """Passes and time of the relaxed setting that takes the least time."""
    relaxed = [result for result in results if all_methods()[result.setting.method].exactness == "relaxed"]
    if relaxed:
        best = max(relaxed, key=lambda result: result.faster)
        yield Row("fewer target passes, fastest relaxed setting", best.fewer, goal=PASSES, detail=best.setting.label)
        yield Row("less wall time, fastest relaxed setting", best.faster, goal=WALL, detail=best.setting.label)


def _ordered(known: Mapping[str, Result]) -> Iterator[Row]:
    for better, worse in ORDER + ORDER_BY_SIZE:
        name = f"{better.label} over {worse.label}, T = 1"
        yield from _ahead(known, better, worse, name)


def _trees(known: Mapping[str, Result]) -> Iterator[Row]:
    for static, dynamic in TREES:
        rule = "sample-and-match" if dynamic.parameters["rule"] == "match" else "rejection"
        name = f"static over dynamic tree, 25 nodes, both by {rule}, T = 1"
        yield from _ahead(known, static, dynamic, name, f", {static.label} and {dynamic.label}")


def _ahead(known: Mapping[str, Result], better: Setting, worse: Setting, name: str, sides: str = "") -> Iterator[Row]:
    """Codes a pass of one over those of the other, and the other's time over its own, picture by picture. ``sides`` tells
    who they are where ``name`` does not."""
    if better.label not in known or worse.label not in known:
        return
    ours, theirs = known[better.label], known[worse.label]
    apart = uncertain([mine - other for mine, other in zip(ours.taus, theirs.taus, strict=True)])
    codes = f"{ours.tau:.3f} and {theirs.tau:.3f}, {apart} apart{sides}"
    yield Row(f"{name}: τ", ours.tau / theirs.tau, goal=MORE, detail=codes)
    ratios = [slow / quick for quick, slow in zip(ours.seconds, theirs.seconds, strict=True)]
    seconds = f"{statistics.mean(ours.seconds):.2f} and {statistics.mean(theirs.seconds):.2f} s a picture{sides}"
    yield Row(f"{name}: wall time", statistics.median(ratios), goal=MORE, detail=seconds)


def uncertain(differences: Sequence[float]) -> str:
    """A mean with its standard error, if there are two or more: pictures differ more than settings do."""
    mean = statistics.mean(differences)
    if len(differences) < 2:
        return f"{mean:+.3f}"
    return f"{mean:+.3f} ± {statistics.stdev(differences) / len(differences) ** 0.5:.3f}"


def _rising(results: Sequence[Result], method: str, bound: str) -> Iterator[Row]:
    """The smallest step of τ from one value of ``bound`` to the next, among settings that differ in nothing else."""
    alike: dict[str, list[Result]] = {}
    for result in results:
        if result.setting.method == method and bound in result.setting.parameters:
            fixed = {name: value for name, value in result.setting.parameters.items() if name != bound}
            alike.setdefault(Setting(method, fixed).label, []).append(result)
    for label, group in alike.items():
        if len(group) > 1:
            ordered = sorted(group, key=lambda result: result.setting.parameters[bound])
            before, after = min(pairwise(ordered), key=lambda neighbours: neighbours[1].tau - neighbours[0].tau)
            sure = uncertain([more - less for less, more in zip(before.taus, after.taus, strict=True)])
            detail = ", ".join(f"{result.setting.parameters[bound]:g}: τ {result.tau:.3f}" for result in ordered)
            detail = f"{sure} in the smallest step; {detail}"
            step = after.tau - before.tau
            yield Row(f"{label}: smallest step of τ as {bound} grows", step, "codes a pass", 0.0, detail=detail)


def _quick_enough(alone: Result, results: Sequence[Result]) -> Iterator[Row]:
    """The slowest picture, of the baseline and of all settings. Loading and the prompt's pass are not counted."""
    slowest = max([alone, *results], key=lambda result: max(result.seconds))
    for name, result in (("baseline", alone), ("slowest setting", slowest)):
        detail = f"slowest of {len(result.seconds)}, mean {statistics.mean(result.seconds):.2f} s, {result.setting.label}"
        yield Row(f"seconds a picture, {name}", max(result.seconds), "s", MINUTE, True, detail)
