"""One row for every method: speed-up, τ, drafter forwards and memory, each with its default settings on held-out prompts.

Methods stand beside those that draft for the same target: text on SmolLM2, a state-space target, pictures in, pictures out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from specviz.bench.kit.measure import Bencher, PictureQuestion, in_own_thread
from specviz.bench.kit.paired_runs import Arm, Samples, gather
from specviz.bench.kit.prompts import KINDS
from specviz.bench.kit.report import Report, Row
from specviz.bench.suites import image_prompts, vision
from specviz.methods.registry import all_methods
from specviz.models.hub.catalog import DEFAULT_IMAGE_TARGET, DEFAULT_TEXT_TARGET, DEFAULT_VISION_TARGET

SYSTEMS = (
    "eagle2", "ddd", "traversal", "gto", "falcon", "polybasic", "easyspec", "stand", "reader", "owl", "not_a_bandit", "deer",
    "diffuspec", "stree", "hivis", "dream", "lantern_pp", "mulo_sd",
)  # fmt: skip
"""The systems that this project is about; all others are what they are measured against."""
STATE_SPACE = ("stree", "prompt_lookup", "token_recycling", "suffix_decoding")
STATE_SPACE_TARGET = "hybrid-small"
BETWEEN = 4
"""Methods from one run of the target alone to the next."""

Prompts = Mapping[str, Sequence[str | PictureQuestion]]


@dataclass(frozen=True)
class Section:
    """Methods of one target. ``prompts`` by kind, fewer when asked for fewer; ``temperatures`` are those of the run."""

    name: str
    target: str
    methods: tuple[str, ...]
    prompts: Callable[[bool], Prompts]
    temperatures: tuple[float, ...] = (0.0, 1.0)
    tokens: int = 96


def run(report: Report, target: str, methods: Sequence[str], quick: bool = False, only: str = "") -> None:
    """Every section, or the one called ``only``; then how many of the systems ran."""
    ran: set[str] = set()
    for section in sections(target):
        if section.name.startswith(only):
            for row, method in in_own_thread(partial(_rows, section, methods, quick, report.say)):
                report.add(row)
                ran |= {method} if row.value is not None else set()
    if not only and not methods:
        missing = ", ".join(name for name in SYSTEMS if name not in ran)
        detail = f"missing: {missing}" if missing else "each for real, in this run"
        report.add(Row("systems that ran", float(len(ran & set(SYSTEMS))), f"of {len(SYSTEMS)}", len(SYSTEMS), detail=detail))


def sections(target: str) -> Iterator[Section]:
    """Which methods are measured on what; ``target`` stands in for the default text target."""
    by_kind: dict[str, list[str]] = {"text": [], "vision_language": [], "image": []}
    for name, method in all_methods().items():
        for modality in method.modality:
            if name != "autoregressive":
                by_kind[modality].append(name)
    text = tuple(name for name in by_kind["text"] if name != "stree")
    yield Section("text", target or DEFAULT_TEXT_TARGET, text, _texts)
    yield Section("text, state-space target", STATE_SPACE_TARGET, STATE_SPACE, _texts)
    yield Section("pictures in", DEFAULT_VISION_TARGET, tuple(by_kind["vision_language"]), _pictures, tokens=160)
    yield Section("pictures out", DEFAULT_IMAGE_TARGET, tuple(by_kind["image"]), _images, temperatures=(1.0,))


def _texts(quick: bool) -> Prompts:
    """A prompt of every second kind where it should be quick, four of every kind otherwise."""
    kinds = list(KINDS)[:: 2 if quick else 1]
    return {kind: KINDS[kind][: 1 if quick else 4] for kind in kinds}


def _pictures(quick: bool) -> Prompts:
    questions = vision.held_out()
    return {"scenes": questions[:: max(1, len(questions) // (2 if quick else 8))]}


def _images(quick: bool) -> Prompts:
    return {"prompts": image_prompts.prompts(2 if quick else 8)}


def _rows(section: Section, methods: Sequence[str], quick: bool, say: Callable[[str], None]) -> list[tuple[Row, str]]:
    names = [name for name in section.methods if not methods or name in methods]
    if not names:
        return []
    bench = Bencher(section.target, min(section.tokens, 64) if quick and section.tokens == 96 else section.tokens)
    arms = [Arm(name, name) for name in names]
    prompts = section.prompts(quick)
    samples = {temperature: gather(bench, arms, prompts, temperature, say, BETWEEN) for temperature in section.temperatures}
    return [(row(section.name, name, samples), name) for name in names]


def row(section: str, name: str, samples: Mapping[float, Samples]) -> Row:
    """Speed-up at the first temperature; the rest is detail."""
    temperatures = list(samples)
    first = samples[temperatures[0]]
    if not first.of(name):
        return Row(f"{name} · {section}", None, detail=first.missing.get(name, "not run"))
    relaxed = ", relaxed" if all_methods()[name].exactness == "relaxed" else ""
    cells = {"method": f"`{name}`{relaxed}"}
    for temperature in temperatures:
        if samples[temperature].of(name):
            cells[f"T = {temperature:g}"] = f"{_mean(samples[temperature], name, 'gain'):.2f}×"
            cells[f"τ, T = {temperature:g}"] = f"{_mean(samples[temperature], name, 'tau'):.2f}"
    steps = max(1.0, first.total(name, lambda sample: sample.steps))
    cells["drafter forwards a step"] = f"{first.total(name, lambda sample: sample.forwards) / steps:.1f}"
    cells["holds"] = f"{first.held_bytes.get(name, 0) / 1e6:.1f} MB"
    entries = [f"{column} {cell}" for column, cell in cells.items() if column not in {"method", f"T = {temperatures[0]:g}"}]
    detail = "; ".join([*entries, *filter(None, [relaxed.removeprefix(", ")])])
    return Row(f"{name} · {section}", _mean(first, name, "gain"), detail=detail, cells=cells, table=section)


def _mean(samples: Samples, name: str, what: str) -> float:
    return samples.mean(name, lambda sample: float(getattr(sample, what))) or 0.0
