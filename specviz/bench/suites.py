"""The suites of paired runs, defined in ``suites.toml``: prompts, variants, columns, comparisons and goals.

Speed-up: seconds per token of the target, in runs just before and after, divided by the variant's seconds per token. τ: tokens
per target pass, including the bonus token and excluding steps that were cut short. Means give every kind of prompt equal weight.
"""

from __future__ import annotations

import io
import json
import statistics
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from PIL import Image

from specviz import prompts as held_out
from specviz.bench.kit import Bencher, PictureQuestion, Prompts, Sample, Samples, Variant, gather, in_own_thread
from specviz.bench.quality import quality
from specviz.bench.report import Report, Row
from specviz.errors import BadInput
from specviz.methods.registry import all_methods
from specviz.models.hub.catalog import DEFAULT_TEXT_TARGET
from specviz.paths import SCENES

STATE_SPACE_TARGET = "hybrid-small"


@dataclass(frozen=True)
class Versus:
    """Comparison of two variants: the ratio of their means in one column. ``goal``: lower bound for the ratio; 0: no goal."""

    what: str
    first: str
    second: str
    column: str = "τ"
    goal: float = 1.0


@dataclass(frozen=True)
class Suite:
    """Set of variants that are measured on the same prompts.

    ``prompts(bencher, quick)``: function that returns the prompts, fewer if ``quick``. ``target``: replacement for the default
    text target. ``between`` and ``remember``: as in :func:`~specviz.bench.kit.gather`. ``goals``: goal by column and variant.
    ``fastest``: goal for the fastest exact variant, by temperature and column.
    """

    title: str
    prompts: Callable[[Bencher, bool], Prompts]
    variants: Sequence[Variant]
    columns: Sequence[str] = ("speed-up", "τ")
    temperatures: Sequence[float] = (0.0,)
    target: str = ""
    tokens: int = 96
    between: int = 2
    remember: bool = False
    versus: Sequence[Versus] = ()
    goals: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    fastest: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    def target_of(self, target: str) -> str:
        """Return the target that the suite measures: its own, if any, in the place of the default text target."""
        return self.target if self.target and target == DEFAULT_TEXT_TARGET else target

    def run(self, report: Report, target: str, methods: Sequence[str] = (), quick: bool = False) -> dict[float, Samples]:
        """Measure at every temperature and report every variant, comparison and goal; return the samples by temperature.

        ``methods``: methods to measure; empty for all.
        """
        chosen = [variant for variant in self.variants if not methods or variant.method in methods]
        bench, gathered = Bencher(self.target_of(target), self.tokens), dict[float, Samples]()
        for temperature in self.temperatures if chosen else ():
            texts = self.prompts(bench, quick)
            measure = quality if {"latent distance", "recognised"} & {*self.columns} else None
            work = partial(gather, bench, chosen, texts, temperature, report.say, self.between, self.remember, measure)
            gathered[temperature] = samples = in_own_thread(work)
            for row in (*self._rows(samples, chosen, temperature), *self._best(samples, chosen, temperature)):
                report.add(row)
        return gathered

    def _rows(self, samples: Samples, variants: Sequence[Variant], temperature: float) -> Iterator[Row]:
        where, table = f", T = {temperature:g}", f"{self.title}, T = {temperature:g}"
        for variant in variants:
            if not samples.of(variant.label):
                yield Row(variant.label + where, None, detail=samples.missing.get(variant.label, "not run"))
                continue
            relaxed = ", relaxed" if temperature and all_methods()[variant.method].exactness.output == "relaxed" else ""
            cells = {column: COLUMNS[column](samples, variant.label) for column in self.columns}
            value = _mean(samples, variant.label, self.columns[0])
            yield Row(variant.label + where, value, cells={"arm": variant.label + relaxed, **cells}, table=table)
            for column, goals in self.goals.items():
                if variant.label in goals:
                    unit = "×" if column == "speed-up" else ""
                    yield Row(
                        f"{variant.label}: {column}{where}", _mean(samples, variant.label, column), unit, goals[variant.label]
                    )
        for one in self.versus:
            if samples.of(one.first) and samples.of(one.second):
                of = VALUES[one.column]
                ours, theirs = _mean(samples, one.first, one.column), _mean(samples, one.second, one.column)
                pairs = [(of(a), of(b)) for a, b in zip(samples.of(one.first), samples.of(one.second), strict=False)]
                more, less = sum(a > b for a, b in pairs), sum(a < b for a, b in pairs)
                detail = f"{one.first} {ours:.3f}, {one.second} {theirs:.3f}; higher on {more}, lower on {less} of {len(pairs)}"
                yield Row(
                    f"{one.column}: {one.what}{where}", ours / theirs if theirs else None, goal=one.goal or None, detail=detail
                )

    def _best(self, samples: Samples, variants: Sequence[Variant], temperature: float) -> Iterator[Row]:
        exact = [
            variant.label
            for variant in variants
            if samples.of(variant.label) and all_methods()[variant.method].exactness.output == "exact"
        ]
        for column, goal in self.fastest.get(f"{temperature:g}", {}).items() if exact else ():
            best = max(exact, key=lambda label: _mean(samples, label, "speed-up"))
            yield Row(
                f"the fastest exact variant: {column}, T = {temperature:g}", _mean(samples, best, column), goal=goal, detail=best
            )


VALUES: Mapping[str, Callable[[Sample], float]] = {
    "speed-up": lambda sample: sample.gain,
    "τ": lambda sample: sample.tau,
    "τ of the worst kind": lambda sample: sample.tau,
    "tokens per forward": lambda sample: sample.emitted / max(1, sample.forwards),
    "tokens per pass": lambda sample: sample.emitted / max(1, sample.passes),
    "latent distance": lambda sample: sample.more.get("distance", 0.0),
    "score": lambda sample: sample.more.get("score", 0.0),
    "recognised": lambda sample: sample.more.get("first", 0.0),
}


def _mean(samples: Samples, label: str, column: str) -> float:
    if column == "τ of the worst kind":
        return min(samples.by_kind(label, VALUES[column]).values())
    return samples.mean(label, VALUES[column]) or 0.0


def _number(column: str, form: str = ".2f") -> Callable[[Samples, str], str]:
    return lambda samples, label: f"{_mean(samples, label, column):{form}}" + ("×" if column == "speed-up" else "")


def _by_kind(column: str) -> Callable[[Samples, str], str]:
    return lambda samples, label: ", ".join(
        f"{kind} {value:.2f}" for kind, value in samples.by_kind(label, VALUES[column]).items()
    )


def _per_step(of: Callable[[Sample], float]) -> Callable[[Samples, str], str]:
    return lambda samples, label: f"{samples.total(label, of) / max(1.0, samples.total(label, lambda one: one.steps)):.1f}"


def _same(samples: Samples, label: str) -> str:
    return f"{sum(sample.same for sample in samples.of(label))} of {len(samples.of(label))}"


COLUMNS: Mapping[str, Callable[[Samples, str], str]] = {
    **{column: _number(column) for column in VALUES},
    "latent distance": _number("latent distance", ".3f"),
    "speed-up by kind": _by_kind("speed-up"),
    "τ by kind": _by_kind("τ"),
    "recognised by kind": _by_kind("recognised"),
    "acceptance by depth": lambda samples, label: " ".join(f"{share:.2f} ({steps})" for share, steps in samples.by_depth(label)),
    "same text as target": _same,
    "forwards per step": _per_step(lambda sample: sample.forwards),
    "nodes per step": _per_step(lambda sample: sample.verified),
    "ms of drafting per step": _per_step(lambda sample: 1000 * sample.drafting),
    "seconds": lambda samples, label: f"{statistics.mean(sample.seconds for sample in samples.of(label)):.2f}",
    "repeated": lambda samples, label: f"{100 * (samples.mean(label, lambda sample: sample.repeated) or 0):.0f} %",
    "memory": lambda samples, label: f"{samples.held_bytes.get(label, 0) / 1e6:.1f} MB",
}


def kinds(bench: Bencher, quick: bool, each: int | None = None, few: int = 2, every: int = 1) -> Prompts:
    """Return up to ``each`` prompts per kind (None: all). If ``quick``, return ``few`` prompts of every ``every``-th kind."""
    of_kinds = list(held_out.kinds().items())
    return {kind: texts[: few if quick else each] for kind, texts in of_kinds[:: every if quick else 1]}


def sets(bench: Bencher, quick: bool, names: Sequence[str]) -> Prompts:
    """Return the prompts of the sets ``names``, each set as one kind. With ``quick``, return two prompts per set."""
    return {name: held_out.prompts(name)[: 2 if quick else None] for name in names}


def tries(bench: Bencher, quick: bool) -> Prompts:
    """Return one prompt of every kind, four times over."""
    return dict.fromkeys(("1st try", "2nd try", "3rd try", "4th try"), tuple(texts[0] for texts in held_out.kinds().values()))


def stream(bench: Bencher, quick: bool) -> Prompts:
    """Return a sequence of prompts in which each of five subjects comes up twice, with different prompts."""
    few, subjects = 1 if quick else 3, ("code", "stories", "copying", "translation", "maths")
    return {
        f"{subject}{again}": held_out.prompts(subject)[lap * few : (lap + 1) * few]
        for lap, again in enumerate(("", " again"))
        for subject in subjects
    }


def pictures(bench: Bencher, quick: bool, count: int = 64, few: int = 4) -> Prompts:
    """Return ``count`` prompts for images of held-out concepts; with ``quick``, ``few``."""
    return {"pictures": held_out.pictures(few if quick else count)}


def sprites(bench: Bencher, quick: bool, few: int = 4) -> Prompts:
    """Return the names of 64 concepts of the sprite model, and the same concepts in other words; with ``quick``, ``few``."""
    pairs = list(held_out.table("sprites").items())[: few if quick else None]
    return {"names": [f"{name}, twemoji style" for _, name in pairs], "other words": [words for words, _ in pairs]}


def scenes(bench: Bencher, quick: bool, count: int = 0, few: int = 4) -> Prompts:
    """Return about ``count`` held-out scenes (0: all), evenly spaced, each with a question that asks for a description."""
    everything, wanted = held_out_scenes(), few if quick else count
    return {"scenes": everything[:: max(1, len(everything) // wanted) if wanted else 1]}


def held_out_scenes(folder: Path = SCENES) -> list[PictureQuestion]:
    """Return every held-out scene with a question. Raises BadInput if the files in ``folder`` cannot be read."""
    try:
        index = json.loads((folder / "held-out.json").read_text(encoding="utf-8"))
        sheet = Image.open(folder / "held-out.webp").convert("RGB")
    except (OSError, ValueError) as problem:
        raise BadInput(f"The held-out scenes in {folder} cannot be read ({problem}): restore them from the repository.") from None
    side, questions = index["side"], []
    for at, scene in enumerate(index["scenes"]):
        left, top, out = at % index["columns"] * side, at // index["columns"] * side, io.BytesIO()
        sheet.crop((left, top, left + side, top + side)).save(out, "PNG")
        questions.append(PictureQuestion(out.getvalue(), scene["describe"]))
    return questions


def suite(
    prompts: dict[str, Any], variants: Sequence[Any] = (), versus: Sequence[Any] = (), modality: str = "", **fields: Any
) -> Suite:  # fmt: skip
    """Build a suite from an entry of ``suites.toml``. With ``modality``, the variants are its methods except ``EXCLUDED``."""
    of = dict(prompts)
    make = partial(PROMPTS[of.pop("of")], **of)
    if modality:
        variants = [name for name, method in all_methods().items() if modality in method.modality and name not in EXCLUDED]
    each = [one for entry in variants for one in (GROUPS.get(entry, [entry]) if isinstance(entry, str) else [entry])]
    made = [Variant(one, one) if isinstance(one, str) else Variant(*one) for one in each]
    return Suite(prompts=make, variants=made, versus=[Versus(*one) for one in versus], **fields)


EXCLUDED = ("autoregressive", "stree")
"""Methods that the suites of a modality leave out: the baseline, and a method for state-space targets."""
PROMPTS: Mapping[str, Callable[..., Prompts]] = {
    one.__name__: one for one in (kinds, sets, tries, stream, pictures, sprites, scenes)
}
DATA = tomllib.loads(Path(__file__).with_name("suites.toml").read_text(encoding="utf-8"))
SYSTEMS, GROUPS, DIARY = DATA.pop("systems"), DATA.pop("groups"), DATA.pop("diary")
SUITES: Mapping[str, tuple[Suite, ...]] = {name: tuple(suite(**entry) for entry in entries) for name, entries in DATA.items()}


def run_all(report: Report, target: str, methods: Sequence[str] = (), quick: bool = False) -> None:
    """Run every method on a target of the right modality, then report how many of ``SYSTEMS`` ran."""
    ran: set[str] = set()
    for one in SUITES["all"]:
        for samples in one.run(report, target, methods, quick).values():
            ran |= set(samples.by_variant)
    if not methods:
        missing = [name for name in SYSTEMS if name not in ran]
        detail = f"missing: {', '.join(missing)}" if missing else "all in this run"
        report.add(Row("systems that ran", float(len(SYSTEMS) - len(missing)), f"of {len(SYSTEMS)}", len(SYSTEMS), detail=detail))
