"""The diffusion suite: masked-diffusion drafters, sampled or searched, and an ablation of their parts.

Acceptance by depth is over all steps of all prompts; a gain is the target's own seconds a token over the method's.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from specviz.bench.kit.measure import Bencher
from specviz.bench.kit.paired_runs import Arm, Sample, Samples, gather
from specviz.bench.kit.prompts import KINDS
from specviz.bench.kit.report import Report, Row
from specviz.bench.suites import synthetic_code
from specviz.drafters.networks.weights import read_weights
from specviz.errors import ModelUnavailable
from specviz.models.drafters.drafts import WEIGHTS

QUICK = 1
"""Prompts a kind of the short suite, which asks every other kind."""
BLOCK = 16
"""Masks of the arms that show how far blocks get."""

DEER, BEFORE = "deer, blocks of 16", "before its two stages, blocks of 16"
CHAINS = "eagle, chains of 8"
LONGEST = 6
"""Masks of a block whose length adapts, at most."""
FIXED = {length: f"diffuspec, always {length}" for length in (3, 4, LONGEST)}
ARMS = (
    Arm("deer", "deer"),
    Arm(DEER, "deer", {"block": BLOCK}),
    Arm(BEFORE, "deer", {"block": BLOCK, "aligned": False}),
    Arm(CHAINS, "eagle2", {"depth": 8, "width": 1, "nodes": 8}),
    Arm("diffuspec", "diffuspec"),
    Arm("diffuspec, no search", "diffuspec", {"weight": 1.0}),
    *(Arm(label, "diffuspec", {"adaptive": False, "longest": length}) for length, label in FIXED.items()),
    Arm("diffuspec, neither", "diffuspec", {"weight": 1.0, "adaptive": False, "longest": LONGEST}),
)
"""All at temperature 0, where acceptance is agreement and every arm writes the same text."""
WARM = (Arm("deer", "deer"), Arm("diffuspec", "diffuspec"))


def run(report: Report, target: str, methods: Sequence[str], quick: bool = False) -> None:
    """Every row whose methods were asked for (all when ``methods`` is empty); DEER's go with a proof on synthetic code."""
    bench = Bencher(target)
    kinds = list(KINDS)[:: 2 if quick else 1]
    prompts = {kind: KINDS[kind][: QUICK if quick else None] for kind in kinds}
    for temperature, arms in ((0.0, ARMS), (1.0, WARM)):
        chosen = [arm for arm in arms if not methods or arm.method in methods]
        if not chosen:
            continue
        samples = gather(bench, chosen, prompts, temperature, report.say)
        for row in [_speed(samples, arm, temperature) for arm in chosen] + ([] if temperature else proofs(samples)):
            report.add(row)
    if not methods or "deer" in methods:
        report.add(second_stage(WEIGHTS / "deer.safetensors"))
        for row in synthetic_code.rows():
            report.add(row)


def _speed(samples: Samples, arm: Arm, temperature: float) -> Row:
    arm_samples, name = samples.of(arm.label), f"{arm.label}, T = {temperature:g}"
    if not arm_samples:
        return Row(name, None, detail=samples.missing.get(arm.label, "not run"))
    same = sum(sample.same for sample in arm_samples)
    detail = (
        f"τ {_mean(samples, arm.label, _tau):.2f}; {_nodes(samples, arm.label):.1f} nodes a step; {_kinds(samples, arm.label)}; "
        f"{100 * _mean(samples, arm.label, _repeated):.0f} % of the 4-grams repeat earlier ones"
    )
    if not temperature or arm.method == "diffuspec":
        detail += f"; the target's own text in {same} of {len(arm_samples)}"
    return Row(name, _mean(samples, arm.label, _gain), detail=detail)


def _kinds(samples: Samples, label: str) -> str:
    return ", ".join(f"{kind} {gain:.2f}" for kind, gain in samples.by_kind(label, _gain).items())


def proofs(samples: Samples) -> list[Row]:
    """What each part is worth: the two stages, the search, the length; and how acceptance falls with depth."""
    rows = [*_stages(samples), *_flatness(samples)]
    best = max(FIXED.values(), key=lambda label: _mean(samples, label, _gain))
    versus: tuple[tuple[str, str, str, Callable[[Sample], float]], ...] = (
        ("τ: searched path over each place's likeliest token", "diffuspec", "diffuspec, no search", _tau),
        ("τ: the same at a fixed length", FIXED[LONGEST], "diffuspec, neither", _tau),
        ("speed: adapting the length over the best fixed one", "diffuspec", best, _gain),
        (f"speed: adapting the length over always {LONGEST}", "diffuspec", FIXED[LONGEST], _gain),
        ("speed: the same without search", "diffuspec, no search", "diffuspec, neither", _gain),
        ("τ: adapting the length over the best fixed one", "diffuspec", best, _tau),
    )
    for name, first, second, of in versus:
        if samples.of(first) and samples.of(second):
            rows.append(_versus(samples, name, first, second, of))
    return rows


def _stages(samples: Samples) -> list[Row]:
    """DEER's two stages: what they did for the first place and for τ, and the longest block that was accepted."""
    if not samples.of(DEER):
        return []
    lengths = [length for label in ("deer", DEER) for sample in samples.of(label) for length in sample.lengths]
    rows = [Row("longest accepted block", float(max(lengths, default=0)), "tokens", detail=_histogram(samples, DEER))]
    if samples.of(BEFORE):
        after, before = samples.by_depth(DEER), samples.by_depth(BEFORE)
        detail = f"{_curve(after[:6])} after, {_curve(before[:6])} before, by place"
        gain = after[0] / before[0] if after and before and before[0] else None
        rows.append(Row("acceptance of the first place, after DEER's stages over before", gain, goal=1.0, detail=detail))
        rows.append(_versus(samples, "τ: after DEER's stages over before", DEER, BEFORE, _tau))
    return rows


def second_stage(path: Path) -> Row:
    """What the second of DEER's stages did for the first place, by the card of the weights in ``path``: held-out places of
    the arms that training measured. The control spent the second stage's time on more of the first."""
    name = "acceptance of the first place, after DEER's second stage over after its first"
    try:
        arms = json.loads(read_weights(path)[1].get("metrics", "{}"))
    except ModelUnavailable as problem:
        return Row(name, None, detail=str(problem))
    if not {"first_stage", "deer"} <= set(arms):
        return Row(name, None, detail=f"the card of {path.name} does not tell the stages apart")
    gain, shares = _ratio(arms["deer"], arms["first_stage"])
    others = f"; the control {_ratio(arms['control'], arms['first_stage'])[1]}" if "control" in arms else "; no control there"
    return Row(name, gain, goal=1.0, detail=f"{shares}{others}; from the card of {path.name}, {arms['deer']['steps']} places")


def _ratio(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> tuple[float | None, str]:
    """The first place's acceptance of one arm over another's, and in words with its standard error: both are shares of so
    many steps, taken as independent."""
    share, their_share = ours["by_place"][0], theirs["by_place"][0]
    if not share or not their_share:
        return None, f"{share:.3f} and {their_share:.3f}"
    error = (
        share
        / their_share
        * math.sqrt((1 - share) / (share * ours["steps"]) + (1 - their_share) / (their_share * theirs["steps"]))
    )
    return share / their_share, f"{share:.3f} and {their_share:.3f}, {share / their_share:.3f} ± {error:.3f}"


def _flatness(samples: Samples) -> list[Row]:
    """How much of the first depth's acceptance is left deeper down, for a block and for a chain that builds on itself."""
    if not (samples.of(DEER) and samples.of(CHAINS)):
        return []
    ours, theirs = samples.by_depth(DEER), samples.by_depth(CHAINS)
    gain = _retention(ours) / _retention(theirs) if _retention(theirs) else None
    detail = f"{DEER} {_curve(ours[:8])}; {CHAINS} {_curve(theirs[:8])}"
    return [Row("acceptance at depths 2 to 4 ÷ at depth 1, DEER over EAGLE", gain, goal=1.0, detail=detail)]


def _retention(curve: Sequence[float]) -> float:
    """Mean acceptance at depths 2 to 4 over that at depth 1. A depth that was never reached counts as 0."""
    return sum(curve[1:4]) / 3 / curve[0] if curve and curve[0] else 0.0


def _curve(shares: Sequence[float]) -> str:
    return " ".join(f"{share:.2f}" for share in shares)


def _histogram(samples: Samples, label: str) -> str:
    """How many steps accepted how many tokens."""
    lengths = [length for sample in samples.of(label) for length in sample.lengths]
    return "steps by length: " + ", ".join(f"{size}: {lengths.count(size)}" for size in sorted(set(lengths)))


def _versus(samples: Samples, name: str, first: str, second: str, of: Callable[[Sample], float]) -> Row:
    """One arm over another on the same prompts."""
    pairs = samples.pairs(first, second, of)
    ours, theirs = _mean(samples, first, of), _mean(samples, second, of)
    more = sum(our_value > their_value for our_value, their_value in pairs)
    less = sum(our_value < their_value for our_value, their_value in pairs)
    detail = f"{ours:.3f} and {theirs:.3f} ({second}); more on {more}, less on {less} of {len(pairs)} prompts"
    return Row(name, ours / theirs if theirs else None, goal=1.0, detail=detail)


def _nodes(samples: Samples, label: str) -> float:
    return samples.total(label, lambda sample: sample.verified) / max(1.0, samples.total(label, lambda sample: sample.steps))


def _mean(samples: Samples, label: str, of: Callable[[Sample], float]) -> float:
    return samples.mean(label, of) or 0.0


def _tau(sample: Sample) -> float:
    return sample.tau


def _gain(sample: Sample) -> float:
    return sample.gain


def _repeated(sample: Sample) -> float:
    return sample.repeated
