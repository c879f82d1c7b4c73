"""The suites of paired runs, as data: prompts, arms, columns, comparisons and goals.

A speed-up is the target's own seconds a token, of runs just before and after, over the arm's. Means are over the kinds of
prompts. τ counts the bonus token and leaves out steps that were cut.
"""

from __future__ import annotations

import io
import json
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from PIL import Image

from specviz.bench.kit import Arm, Bencher, Measure, PictureQuestion, Prompts, Sample, Samples, gather, in_own_thread
from specviz.bench.report import Report, Row
from specviz.errors import BadInput
from specviz.methods.hedgespec.method import ARMS
from specviz.methods.polybasic.method import INTERMEDIATES
from specviz.methods.registry import all_methods
from specviz.models.hub.catalog import DEFAULT_IMAGE_TARGET, DEFAULT_TEXT_TARGET, DEFAULT_VISION_TARGET
from specviz.prompts import kinds, pictures, prompts

SCENES = Path(__file__).resolve().parents[2] / "assets" / "images" / "scenes"
STATE_SPACE_TARGET = "hybrid-small"
SYSTEMS = (
    "eagle2", "ddd", "traversal", "gto", "falcon", "polybasic", "easyspec", "stand", "reader", "owl", "not_a_bandit", "deer",
    "diffuspec", "stree", "hivis", "dream", "lantern_pp", "mulo_sd",
)  # fmt: skip


@dataclass(frozen=True)
class Versus:
    """One arm's mean over another's in one column, prompt by prompt."""

    what: str
    first: str
    second: str
    column: str = "τ"
    goal: float | None = 1.0


@dataclass(frozen=True)
class Suite:
    """Arms on prompts. ``goals`` are of arms by their label and column, ``fastest`` of the best exact arm by temperature.

    ``prompts`` makes them for the bencher, fewer of them where the flag says quick. ``target`` stands in for the default text
    target; with ``remember`` an arm keeps one memory over all prompts.
    """

    title: str
    prompts: Callable[[Bencher, bool], Prompts]
    arms: Sequence[Arm]
    columns: Sequence[str] = ("speed-up", "τ")
    temperatures: Sequence[float] = (0.0,)
    target: str = ""
    tokens: int = 96
    between: int = 2
    remember: bool = False
    versus: Sequence[Versus] = ()
    goals: Mapping[tuple[str, str], float] = field(default_factory=dict)
    fastest: Mapping[float, Mapping[str, float]] = field(default_factory=dict)
    measure: Measure | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)

    def run(self, report: Report, target: str, methods: Sequence[str] = (), quick: bool = False) -> dict[float, Samples]:
        """Gather at every temperature and report each arm, comparison and goal; all arms where ``methods`` is empty."""
        chosen = [arm for arm in self.arms if not methods or arm.method in methods]
        name = self.target if self.target and target == DEFAULT_TEXT_TARGET else target
        bench, gathered = Bencher(name, self.tokens, dict(self.settings)), dict[float, Samples]()
        for temperature in self.temperatures if chosen else ():
            texts = self.prompts(bench, quick)
            work = partial(gather, bench, chosen, texts, temperature, report.say, self.between, self.remember, self.measure)
            gathered[temperature] = samples = in_own_thread(work)
            for row in (*self._rows(samples, chosen, temperature), *self._best(samples, chosen, temperature)):
                report.add(row)
        return gathered

    def _rows(self, samples: Samples, arms: Sequence[Arm], temperature: float) -> Iterator[Row]:
        where, table = f", T = {temperature:g}", f"{self.title}, T = {temperature:g}"
        for arm in arms:
            if not samples.of(arm.label):
                yield Row(arm.label + where, None, detail=samples.missing.get(arm.label, "not run"))
                continue
            relaxed = ", relaxed" if temperature and all_methods()[arm.method].exactness == "relaxed" else ""
            cells = {column: COLUMNS[column](samples, arm.label) for column in self.columns}
            value = _mean(samples, arm.label, self.columns[0])
            yield Row(arm.label + where, value, cells={"arm": arm.label + relaxed, **cells}, table=table)
            for (label, column), goal in self.goals.items():
                if label == arm.label:
                    reached = _mean(samples, label, column)
                    yield Row(f"{label}: {column}{where}", reached, "" if column != "speed-up" else "×", goal)
        for one in self.versus:
            if samples.of(one.first) and samples.of(one.second):
                of = VALUES[one.column]
                ours, theirs = _mean(samples, one.first, one.column), _mean(samples, one.second, one.column)
                pairs = samples.pairs(one.first, one.second, of)
                more, less = sum(a > b for a, b in pairs), sum(a < b for a, b in pairs)
                detail = (
                    f"{one.first} {ours:.3f}, {one.second} {theirs:.3f}; more on {more}, less on {less} of {len(pairs)} prompts"
                )
                yield Row(f"{one.column}: {one.what}{where}", ours / theirs if theirs else None, goal=one.goal, detail=detail)

    def _best(self, samples: Samples, arms: Sequence[Arm], temperature: float) -> Iterator[Row]:
        exact = [arm.label for arm in arms if samples.of(arm.label) and all_methods()[arm.method].exactness == "exact"]
        for column, goal in self.fastest.get(temperature, {}).items() if exact else ():
            best = max(exact, key=lambda label: _mean(samples, label, "speed-up"))
            yield Row(
                f"the fastest exact arm: {column}, T = {temperature:g}", _mean(samples, best, column), goal=goal, detail=best
            )


VALUES: Mapping[str, Callable[[Sample], float]] = {
    "speed-up": lambda sample: sample.gain,
    "τ": lambda sample: sample.tau,
    "τ of the worst kind": lambda sample: sample.tau,
    "tokens a forward": lambda sample: sample.emitted / max(1, sample.forwards),
    "fewer passes": lambda sample: sample.emitted / max(1, sample.passes),
    "latent distance": lambda sample: sample.more.get("distance", 0.0),
    "score": lambda sample: sample.more.get("score", 0.0),
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


def _a_step(of: Callable[[Sample], float]) -> Callable[[Samples, str], str]:
    return lambda samples, label: f"{samples.total(label, of) / max(1.0, samples.total(label, lambda one: one.steps)):.1f}"


def _same(samples: Samples, label: str) -> str:
    return f"{sum(sample.same for sample in samples.of(label))} of {len(samples.of(label))}"


COLUMNS: Mapping[str, Callable[[Samples, str], str]] = {
    **{column: _number(column) for column in VALUES},
    "latent distance": _number("latent distance", ".3f"),
    "speed-up by kind": _by_kind("speed-up"),
    "τ by kind": _by_kind("τ"),
    "acceptance by depth": lambda samples, label: " ".join(
        f"{share:.2f} ({steps})" for share, steps in zip(samples.by_depth(label), samples.reaching(label), strict=True)
    ),
    "own text": _same,
    "forwards a step": _a_step(lambda sample: sample.forwards),
    "nodes a step": _a_step(lambda sample: sample.verified),
    "ms of drafting a step": _a_step(lambda sample: 1000 * sample.drafting),
    "seconds": lambda samples, label: f"{statistics.mean(sample.seconds for sample in samples.of(label)):.2f}",
    "repeated": lambda samples, label: f"{100 * (samples.mean(label, lambda sample: sample.repeated) or 0):.0f} %",
    "holds": lambda samples, label: f"{samples.held_bytes.get(label, 0) / 1e6:.1f} MB",
}


def of_kinds(each: int | None = None, few: int = 2, every: int = 1) -> Callable[[Bencher, bool], Prompts]:
    """``each`` prompts of each kind, all where it is None; where it should be quick ``few`` of every ``every``-th kind."""

    def make(bench: Bencher, quick: bool) -> Prompts:
        return {kind: texts[: few if quick else each] for kind, texts in list(kinds().items())[:: every if quick else 1]}

    return make


def several(*names: str) -> Callable[[Bencher, bool], Prompts]:
    """Named sets of prompts, a kind each."""
    return lambda bench, quick: {name: prompts(name)[: 2 if quick else None] for name in names}


def scenes(count: int = 0, few: int = 4) -> Callable[[Bencher, bool], Prompts]:
    """Held-out scenes, evenly from all, each with the question for a description; all where ``count`` is 0."""

    def make(bench: Bencher, quick: bool) -> Prompts:
        everything, wanted = held_out_scenes(), few if quick else count
        return {"scenes": everything[:: max(1, len(everything) // wanted) if wanted else 1]}

    return make


def held_out_scenes(folder: Path = SCENES) -> list[PictureQuestion]:
    """Every held-out scene with its question. Raises BadInput where the sheet is missing."""
    try:
        index = json.loads((folder / "held-out.json").read_text(encoding="utf-8"))
        sheet = Image.open(folder / "held-out.webp").convert("RGB")
    except (OSError, ValueError) as problem:
        raise BadInput(f"The held-out scenes in {folder} cannot be read ({problem}): get them with the project.") from None
    side, questions = index["side"], []
    for at, scene in enumerate(index["scenes"]):
        left, top, out = at % index["columns"] * side, at // index["columns"] * side, io.BytesIO()
        sheet.crop((left, top, left + side, top + side)).save(out, "PNG")
        questions.append(PictureQuestion(out.getvalue(), scene["describe"]))
    return questions


def drawn(count: int = 64, few: int = 4) -> Callable[[Bencher, bool], Prompts]:
    """Prompts for pictures of held-out concepts."""
    return lambda bench, quick: {"pictures": pictures(few if quick else count)}


# Text: EAGLE's line and the other trained drafters.
TREE = {"depth": 5, "width": 10, "nodes": 25}
CHAIN = {"depth": 8, "width": 1, "nodes": 8}
LINE = tuple(
    Arm(name, name)
    for name in ("eagle", "eagle2", "eagle3", "ddd", "gto", "falcon", "medusa", "traversal", "speculative_sampling")
)
TREES = (
    *(Arm(f"{name}, 25 nodes", name, TREE) for name in ("eagle2", "eagle3", "gto")),
    Arm("ddd, 25 nodes", "ddd", {"nodes": 25}),
    *(Arm(f"{name}, 25 nodes", name, {"nodes": 25}) for name in ("medusa", "falcon")),
    Arm("small draft model, chains of 4", "speculative_sampling", {"gamma": 4}),
)
TAUS = {
    "eagle": 2.1, "eagle2, 25 nodes": 2.35, "eagle3, 25 nodes": 2.6, "medusa, 25 nodes": 1.8, "falcon, 25 nodes": 2.1,
    "small draft model, chains of 4": 2.0,
}  # fmt: skip
"""Least τ of each drafter at temperature 0; of the kind it is worst at 1.7."""
SPEED_GOALS = {0.0: {"speed-up": 2.0, "τ": 3.0}, 1.0: {"speed-up": 1.5}}
LIKELIEST = {**TREE, "rule": "match"}
FIXED_DEPTHS = tuple(
    Arm(f"ddd's tree, always {depth} levels", "eagle3", {"depth": depth, "width": 10, "nodes": 25, "rule": "match"})
    for depth in (3, 4, 8)
)
EAGLE = (
    Suite(
        "trained drafters on trees of one size", of_kinds(), (*LINE, *TREES, Arm("ddd, paper's threshold, 25 nodes", "ddd", {
            "threshold": "paper", "levels": "published", "nodes": 25}), *FIXED_DEPTHS,
            Arm("eagle, chains", "eagle2", CHAIN), Arm("eagle3, chains", "eagle3", CHAIN)),
        ("speed-up", "τ", "τ by kind", "acceptance by depth", "forwards a step", "tokens a forward", "repeated", "own text"),
        goals={**{(label, "τ"): goal for label, goal in TAUS.items()}},
        fastest={0.0: SPEED_GOALS[0.0]},
        versus=(
            Versus("a tree that follows confidence over a fixed one, same drafter", "eagle2, 25 nodes", "eagle"),
            Versus("EAGLE-3's drafter over EAGLE's", "eagle3, 25 nodes", "eagle2, 25 nodes"),
            Versus("GTO's drafter over EAGLE-3's", "gto, 25 nodes", "eagle3, 25 nodes"),
            Versus("Dynamic Depth over always 4 levels", "ddd, 25 nodes", "ddd's tree, always 4 levels", "speed-up", None),
            Versus("Falcon over EAGLE", "falcon", "eagle", "tokens a forward"),
        ),
    ),
    Suite(
        "trained drafters, drawn tokens and searched trees", of_kinds(), (*LINE, *TREES[:4],
            Arm("eagle, likeliest tokens", "eagle", {"rule": "rejection"}),
            *(Arm(f"{name}, 25 nodes, likeliest tokens", name, LIKELIEST) for name in ("eagle2", "eagle3"))),
        ("speed-up", "τ", "τ by kind", "forwards a step", "repeated"), (1.0,), fastest={1.0: SPEED_GOALS[1.0]},
        versus=(Versus("drawn tokens over the likeliest ones", "eagle2, 25 nodes", "eagle2, 25 nodes, likeliest tokens"),),
    ),
)  # fmt: skip
ACCEPTANCE = Suite(
    "τ of every trained drafter", of_kinds(),
    (LINE[0], *TREES, *(Arm(name, name) for name in ("owl", "diffuspec", "deer"))),
    ("τ", "τ by kind", "τ of the worst kind"), between=99,
    goals={(label, "τ"): least for label, least in TAUS.items()} | {(label, "τ of the worst kind"): 1.7 for label in TAUS},
)  # fmt: skip
SPEED = Suite(
    "EAGLE's line as a visitor gets it", of_kinds(), LINE,
    ("speed-up", "τ", "speed-up by kind", "repeated", "own text"), (0.0, 1.0), fastest=SPEED_GOALS,
)  # fmt: skip
DIFFUSION = (
    Suite(
        "masked-diffusion drafters", of_kinds(few=1, every=2),
        (
            Arm("deer", "deer"), Arm("deer, blocks of 16", "deer", {"block": 16}),
            Arm("deer before its stages", "deer", {"block": 16, "aligned": False}), Arm("eagle, chains of 8", "eagle2", CHAIN),
            Arm("diffuspec", "diffuspec"), Arm("diffuspec, no search", "diffuspec", {"weight": 1.0}),
            *(Arm(f"diffuspec, always {n}", "diffuspec", {"adaptive": False, "longest": n}) for n in (3, 4, 6)),
        ),
        ("speed-up", "τ", "nodes a step", "acceptance by depth", "speed-up by kind", "repeated", "own text"),
        versus=(
            Versus("DEER's two stages", "deer, blocks of 16", "deer before its stages"),
            Versus("searched path over each place's likeliest token", "diffuspec", "diffuspec, no search"),
            Versus("adapting the length over always 6", "diffuspec", "diffuspec, always 6", "speed-up"),
        ),
    ),
    Suite("masked-diffusion drafters", of_kinds(few=1, every=2), (Arm("deer", "deer"), Arm("diffuspec", "diffuspec")),
          temperatures=(1.0,)),
)  # fmt: skip

# Drafts from memory, and choices among drafters.
OPEN = of_kinds(1, 1)
TRIES = ("1st try", "2nd try", "3rd try", "4th try")
MEMORY = (
    Suite("drafts from memory, prompts to copy from", several("grounded"), (Arm("prompt_lookup", "prompt_lookup"),),
          ("speed-up", "τ"), goals={("prompt_lookup", "speed-up"): 1.5}),
    Suite("six kinds", OPEN, tuple(Arm(name, name) for name in ("prompt_lookup", "token_recycling", "speculative_sampling")),
          ("speed-up", "τ", "speed-up by kind"), (0.0, 1.0)),
    Suite("four tries of each prompt", lambda bench, quick: dict.fromkeys(TRIES, tuple(texts[0] for texts in kinds().values())),
          (Arm("stand", "stand"),), ("τ", "τ by kind", "speed-up by kind"), (0.6,), tokens=160, remember=True),
)  # fmt: skip
SUBJECTS = {"code": "code", "stories": "stories", "copy": "copying", "translation": "translation", "maths": "maths"}


def stream(bench: Bencher, quick: bool) -> Prompts:
    """Five subjects, called like their arms, gone through twice."""
    few = 1 if quick else 3
    return {
        f"{subject}{again}": prompts(name)[lap * few : (lap + 1) * few]
        for lap, again in enumerate(("", " again"))
        for subject, name in SUBJECTS.items()
    }


CHOICE = Suite(
    "a stream that changes its subject", stream,
    (
        *(Arm(f"always {arm}", "not_a_bandit", {"arm": arm, "remember": False}) for arm in ARMS),
        Arm("not_a_bandit", "not_a_bandit"),
        Arm("not_a_bandit, as published", "not_a_bandit", {"keep": 1.0, "debt": 1000.0}),
        *(Arm(name, name) for name in ("bandit_ucb", "bandit_exp3")),
        *(Arm(f"{name}, forgetting", name, {"keep": 0.98}) for name in ("bandit_ucb", "bandit_exp3")),
    ),
    ("τ", "speed-up", "τ by kind"), (0.0, 1.0), tokens=64, remember=True,
    versus=tuple(Versus(f"full information over {name}", "not_a_bandit", name) for name in ("bandit_ucb", "bandit_exp3")),
)  # fmt: skip

# Several models, several layers at once.
CASCADE = (
    Suite(
        "a cascade of three against target and drafter", of_kinds(2, 1),
        (
            Arm("drafter alone", "eagle3", {"depth": 2, "width": 3, "nodes": 3}),
            *(Arm(f"polybasic, {kind}", "polybasic", {"middle": kind, "depth": 2, "width": 3, "nodes": 3})
              for kind in INTERMEDIATES),
        ),
        ("speed-up", "τ", "forwards a step"), tokens=64,
        versus=tuple(Versus(f"{kind} in the middle over none", f"polybasic, {kind}", "drafter alone", "speed-up", None)
                     for kind in INTERMEDIATES),
    ),
    Suite(
        "layers side by side", of_kinds(2, 1),
        tuple(
            Arm(f"easyspec, {drafter}, {size} a group{'' if repaired else ', never repaired'}", "easyspec",
                {"drafter": drafter, "group": size, "calibrated": repaired})
            for drafter in ("small_draft", "copy") for size in (1, 2, 3, 4) for repaired in (True, False)[: 1 if size == 1 else 2]
        ),
        ("speed-up", "τ", "acceptance by depth", "ms of drafting a step"), tokens=192,
    ),
)  # fmt: skip

# Other targets: state space, pictures in, pictures out.
MODEL_FREE = ("prompt_lookup", "token_recycling", "suffix_decoding")
STATE_SPACE = Suite(
    "trees and chains on a state-space target", of_kinds(1, 1),
    (
        Arm("stree", "stree"),
        *(Arm(f"tree of {nodes}", "stree", {"depth": nodes, "width": 3, "nodes": nodes}) for nodes in (4, 8, 12)),
        *(Arm(f"chain of {nodes}", "stree", {"depth": nodes, "width": 1, "nodes": nodes}) for nodes in (4, 8, 12)),
        *(Arm(name, name) for name in MODEL_FREE),
    ),
    ("speed-up", "τ", "forwards a step", "own text"), (0.0, 0.8), STATE_SPACE_TARGET, 128,
    versus=tuple(Versus(f"a tree over a chain of {size} nodes", f"tree of {size}", f"chain of {size}") for size in (4, 8, 12)),
)  # fmt: skip
SEEING = {"depth": 5, "width": 6, "nodes": 24}
VISION = Suite(
    "drafters of descriptions, trees of one size", scenes(),
    (
        *(Arm(name, name) for name in (*MODEL_FREE, "language_only")),
        *(Arm(name, name, SEEING) for name in ("eagle2", "hivis", "dream")),
        Arm("hivis, residuals zeroed", "hivis", {**SEEING, "residuals": "off"}),
        Arm("dream without cross-attention", "dream", {**SEEING, "cross_attention": False}),
        Arm("dream shown every patch", "dream", {**SEEING, "keep": 1.0}),
    ),
    ("τ", "speed-up", "acceptance by depth"), (0.0, 1.0), DEFAULT_VISION_TARGET, 160,
    versus=(
        Versus("HiViS over EAGLE-2 with visual rows", "hivis", "eagle2"),
        Versus("DREAM over EAGLE-2 with visual rows", "dream", "eagle2"),
        Versus("HiViS over itself with residuals zeroed", "hivis", "hivis, residuals zeroed", goal=None),
        Versus("DREAM over itself without cross-attention", "dream", "dream without cross-attention", goal=None),
        Versus("DREAM over itself shown every patch", "dream", "dream shown every patch", goal=None),
    ),
    fastest={0.0: {"speed-up": 1.8, "τ": 3.5}},
)  # fmt: skip


def setting(method: str, **parameters: Any) -> Arm:
    """An arm that is called by its parameters."""
    return Arm(" ".join([method, *(f"{name}={value}" for name, value in parameters.items())]), method, parameters)


def of_size(nodes: int) -> tuple[Arm, ...]:
    """EAGLE-2 by rejection, LANTERN and LANTERN++ on trees of as many nodes."""
    pairs = ((5.0, {}), (10.0, {"k": 5}), (20.0, {"k": 5}))
    return (
        setting("eagle2", nodes=nodes, rule="rejection"),
        setting("lantern", delta=0.1, nodes=nodes),
        *(setting("lantern_pp", factor=factor, **more, tree=str(nodes)) for factor, more in pairs),
    )


STATIC, DYNAMIC = setting("eagle", tree="published", rule="match"), setting("eagle2", nodes=25, rule="match")
RELAXED = (
    *(setting("lantern", delta=delta, nodes=25) for delta in (0.05, 0.1, 0.3)),
    *(setting("lantern_pp", factor=factor, tree="25") for factor in (1.5, 2.0, 5.0)),
    *(setting("mulo_sd", tau=tau) for tau in (0.02, 0.05, 0.1, 0.2)),
)
_OF_25 = of_size(25)
IMAGE_COLUMNS = ("speed-up", "τ", "seconds", "forwards a step", "latent distance", "score")


def image(measure: Measure, sweeps: bool = False) -> Suite:
    """Settings of the methods that draw, all on the same prompts with the same seeds."""
    arms = (STATIC, DYNAMIC, setting("eagle", tree="published", rule="without_replacement"), *_OF_25,
            setting("speculative_jacobi"), *RELAXED)  # fmt: skip
    if sweeps:
        arms = (
            *(arm for nodes in (12, 25, 57) for arm in of_size(nodes)), setting("lantern_pp", factor=5.0, tree="chain"),
            *(setting("mulo_sd", tau=0.05, pool=pool) for pool in (8, 16, 64)),
            *(setting("mulo_sd", tau=0.05, radius=radius) for radius in (0, 2)), setting("mulo_sd", tau=0.05, cache="stale"),
        )  # fmt: skip
    ahead = [Versus("LANTERN over EAGLE-2", _OF_25[1].label, _OF_25[0].label)]
    ahead += [Versus("LANTERN++ over LANTERN", arm.label, _OF_25[1].label) for arm in _OF_25[2:]]
    ahead += [Versus("a static tree over a dynamic one", STATIC.label, DYNAMIC.label, column) for column in ("τ", "speed-up")]
    unique = tuple({arm.label: arm for arm in arms}.values())
    return Suite(
        "methods that draw", drawn(), unique, IMAGE_COLUMNS, (1.0,), DEFAULT_IMAGE_TARGET, between=99,
        versus=[one for one in ahead if {one.first, one.second} <= {arm.label for arm in unique}],
        measure=measure,
    )  # fmt: skip


# Every method as a visitor gets it.
ALL_COLUMNS = ("speed-up", "τ", "forwards a step", "holds")


def every_method(only: str = "") -> list[Suite]:
    """A suite a kind of target, with all methods of the registry that run there; or the one whose title begins with ``only``."""
    by_kind: dict[str, list[Arm]] = {"text": [], "vision_language": [], "image": []}
    for name, method in all_methods().items():
        for modality in method.modality if name not in ("autoregressive", "stree") else ():
            by_kind[modality].append(Arm(name, name))
    hybrid = [Arm(name, name) for name in ("stree", *MODEL_FREE)]
    some = of_kinds(4, 1, 2)
    return [
        suite
        for suite in (
            Suite("text", some, by_kind["text"], ALL_COLUMNS, (0.0, 1.0), between=4),
            Suite("state-space target", some, hybrid, ALL_COLUMNS, (0.0, 1.0), STATE_SPACE_TARGET, between=4),
            Suite("pictures in", scenes(8, 2), by_kind["vision_language"], ALL_COLUMNS, (0.0, 1.0), DEFAULT_VISION_TARGET,
                  160, 4),
            Suite("pictures out", drawn(8, 2), by_kind["image"], ALL_COLUMNS, (1.0,), DEFAULT_IMAGE_TARGET, between=4),
        )
        if suite.title.startswith(only)
    ]  # fmt: skip


def run_all(report: Report, target: str, methods: Sequence[str] = (), quick: bool = False, only: str = "") -> None:
    """Every method on its kind of target; then how many of the systems ran."""
    ran: set[str] = set()
    for suite in every_method(only):
        for samples in suite.run(report, target, methods, quick).values():
            ran |= set(samples.by_arm)
    if not only and not methods:
        missing = [name for name in SYSTEMS if name not in ran]
        detail = f"missing: {', '.join(missing)}" if missing else "each in this run"
        report.add(Row("systems that ran", float(len(SYSTEMS) - len(missing)), f"of {len(SYSTEMS)}", len(SYSTEMS), detail=detail))
