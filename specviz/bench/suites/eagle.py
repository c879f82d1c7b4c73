"""The eagle suite: trained drafters on held-out prompts of six kinds, and whether each does what its paper says.

Speed-ups are against the target's own runs just before and after; τ counts the bonus token; every mean is over the kinds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

from specviz.bench.kit.measure import Bencher
from specviz.bench.kit.paired_runs import Arm, Sample, Samples, gather
from specviz.bench.kit.prompts import KINDS
from specviz.bench.kit.report import Report, Row
from specviz.bench.suites import falcon, gto, traversal
from specviz.errors import SpecvizError
from specviz.methods.parameters import describe
from specviz.methods.registry import all_methods

QUICK = 2
"""Prompts a kind of the short suite."""

LINE = ("eagle", "eagle2", "eagle3", "ddd", "gto", "falcon", "medusa", "traversal", "speculative_sampling")
"""Each as a user gets it; ``traversal`` drafts EAGLE's fixed tree with EAGLE-3's heads."""

TREE = {"depth": 5, "width": 10, "nodes": 25}
"""The depth and the size of the fixed tree that ``eagle`` drafts by default, for a fair comparison with it."""

CHAIN = {"depth": 8, "width": 1, "nodes": 8}
DDD, PAPERS, FIXED = "ddd, 25 nodes", "ddd, paper's threshold, 25 nodes", "ddd's tree, fixed depth, 25 nodes"
"""Trees of one size: where what pays may choose it, a tree that stops early is smaller as well, and less of it is accepted."""
STUDIES = (
    Arm("eagle2, 25 nodes", "eagle2", TREE),
    Arm("eagle3, 25 nodes", "eagle3", TREE),
    Arm("gto, 25 nodes", "gto", TREE),
    Arm(DDD, "ddd", {"nodes": 25}),
    Arm(PAPERS, "ddd", {"threshold": "paper", "levels": "published", "nodes": 25}),
)

GREEDY_STUDIES = (
    Arm("eagle, chains", "eagle2", CHAIN),
    Arm("eagle3, chains", "eagle3", CHAIN),
    Arm("medusa, 25 nodes", "medusa", {"nodes": 25}),
    Arm("falcon, 25 nodes", "falcon", {"nodes": 25}),
    Arm("small draft model, chains of 4", "speculative_sampling", {"gamma": 4}),
)
"""Acceptance by depth, and of whole trees, where agreement with the target is all there is to it."""
LIKELIEST = {"rule": "match"}
SAMPLED_STUDIES = (
    Arm("eagle, likeliest tokens", "eagle", {"rule": "rejection"}),
    Arm("eagle2, 25 nodes, likeliest tokens", "eagle2", {**TREE, **LIKELIEST}),
    Arm("eagle3, 25 nodes, likeliest tokens", "eagle3", {**TREE, **LIKELIEST}),
)
"""Trees searched as at temperature 0, where those of the line are drawn."""
SHALLOW = (3, 4)
"""Depths, about as many as ``ddd`` takes forwards: does stopping at the right moment bring more than always stopping there?"""
GOALS = {0.0: (2.0, 3.0), 1.0: (1.5, None)}
"""Least speed-up and τ of the best method by temperature."""
LENGTHS = {
    "eagle": 2.1, "eagle2, 25 nodes": 2.35, "eagle3, 25 nodes": 2.6, "medusa, 25 nodes": 1.8, "falcon, 25 nodes": 2.1,
    "small draft model, chains of 4": 2.0,
}  # fmt: skip
"""Least τ of each drafter at temperature 0."""
OTHERS = tuple(Arm(name, name) for name in ("owl", "diffuspec", "deer"))
"""Trained drafters that are no part of EAGLE's line."""
EVERY_KIND = 1.7
"""Least τ of a drafter that has a goal, on the kind it is worst at."""


def run(report: Report, target: str, methods: Sequence[str], quick: bool = False) -> None:
    """Every comparison whose methods were asked for (all when ``methods`` is empty)."""
    bench = Bencher(target)
    prompts = {kind: texts[:QUICK] if quick else texts for kind, texts in KINDS.items()}
    for temperature in (0.0, 1.0):
        arms = [arm for arm in arms_at(temperature) if not methods or arm.method in methods]
        samples = gather(bench, arms, prompts, temperature, report.say)
        for row in rows(samples, arms, temperature):
            report.add(row)
    proofs = [(name, partial(proof, temperature=temperature)) for temperature in (0.0, 1.0)
              for name, proof in (("gto", gto.compare), ("falcon", falcon.compare))]  # fmt: skip
    for name, proof in [*proofs, ("traversal", partial(traversal.run, temperature=1.0))]:  # at 0 both its rules are one
        if not methods or name in methods:
            _proof(report, bench, prompts, name, proof)


def acceptance(report: Report, target: str, methods: Sequence[str], quick: bool = False) -> None:
    """τ alone, of every trained drafter at temperature 0: it does not depend on the hour, so that all sixty prompts can be run
    beside other work."""
    prompts = {kind: texts[:QUICK] if quick else texts for kind, texts in KINDS.items()}
    judged = [arm for arm in (*arms_at(0.0), *OTHERS) if arm.label in (*LENGTHS, "gto, 25 nodes", DDD) or arm in OTHERS]
    arms = [arm for arm in judged if not methods or arm.method in methods]
    samples = gather(Bencher(target), arms, prompts, 0.0, report.say, between=max(1, len(arms)))
    for row in _lengths(samples, [arm.label for arm in arms]):
        report.add(row)


def speed(report: Report, target: str, methods: Sequence[str], quick: bool = False) -> None:
    """The line as a visitor gets it, beside the target's own run, on all sixty prompts: one kind tells little of another,
    and twelve prompts little of sixty."""
    bench = Bencher(target)
    prompts = {kind: texts[:QUICK] if quick else texts for kind, texts in KINDS.items()}
    for temperature in (0.0, 1.0):
        arms = [arm for arm in arms_at(temperature) if arm.label in LINE and (not methods or arm.method in methods)]
        samples = gather(bench, arms, prompts, temperature, report.say)
        for row in (*(_speed(samples, arm, f", T = {temperature:g}") for arm in arms), *_best(samples, temperature)):
            report.add(row)


Proof = Callable[[Report, Bencher, Mapping[str, Sequence[str]]], None]


def _proof(report: Report, bench: Bencher, prompts: Mapping[str, Sequence[str]], name: str, proof: Proof) -> None:
    """A comparison that a method brings itself, where its parts are here."""
    try:
        proof(report, bench, prompts)
    except SpecvizError as problem:
        report.add(Row(f"{name}: its own comparison", None, detail=str(problem)))


def arms_at(temperature: float) -> list[Arm]:
    """Everything that runs at this temperature."""
    known = all_methods()
    line = [Arm(name, name) for name in LINE if name in known]
    studies = (*STUDIES, fixed_depth(), *map(fixed_depth, SHALLOW))
    return [*line, *studies, *(SAMPLED_STUDIES if temperature else GREEDY_STUDIES)]


def fixed_depth(depth: int | None = None) -> Arm:
    """The tree of ``ddd`` with its own width, but always ``depth`` levels deep; None: as deep as it may go."""
    own = {parameter.name: parameter.default for parameter in describe(all_methods()["ddd"].parameters)}
    label = FIXED if depth is None else f"ddd's tree, always {depth} levels, 25 nodes"
    return Arm(label, own["drafter"] if own["drafter"] == "eagle3" else "eagle2", {
        "depth": depth or own["depth"], "width": own["width"], "nodes": 25, **LIKELIEST,
    })  # fmt: skip


def rows(samples: Samples, arms: Sequence[Arm], temperature: float) -> list[Row]:
    """What was gathered at one temperature, as rows."""
    where = f", T = {temperature:g}"
    speed_rows = [_speed(samples, arm, where) for arm in arms if arm.label in LINE]
    speed_rows += _best(samples, temperature)
    speed_rows += _line_steps(samples, where)
    speed_rows += [] if temperature else _lengths(samples)
    return [*speed_rows, *_flatness(samples), *_depth(samples, where), *_forwards(samples, where)]


def _speed(samples: Samples, arm: Arm, where: str) -> Row:
    """Speed-up of one method, with what a reader needs to weigh it."""
    arm_samples = samples.of(arm.label)
    if not arm_samples:
        return Row(arm.label + where, None, detail=samples.missing.get(arm.label, "not run"))
    kinds = ", ".join(
        f"{kind} {gain:.2f}" for kind, gain in samples.by_kind(arm.label, lambda prompt_sample: prompt_sample.gain).items()
    )
    same = sum(sample.same for sample in arm_samples)
    detail = (
        f"τ {_mean(samples, arm.label, _tau):.2f}; {kinds}; {100 * _mean(samples, arm.label, _repeated):.0f} % of the 4-grams "
        f"repeat earlier ones; the target's own text in {same} of {len(arm_samples)}"
    )
    return Row(arm.label + where, _mean(samples, arm.label, _gain), detail=detail)


def _best(samples: Samples, temperature: float) -> list[Row]:
    """The fastest method of the line, held against the goals; one that is relaxed at this temperature is told apart."""
    rows = []
    for kind, goals in (("exact", GOALS[temperature]), ("relaxed", (None, None))):
        ran = [label for label in LINE if samples.of(label) and (kind == "relaxed") == relaxes(label, temperature)]
        if ran:
            fastest = max(ran, key=lambda label: _mean(samples, label, _gain))
            name = f"the fastest, {kind}"
            speed, length = goals
            rows += [
                Row(f"{name}, T = {temperature:g}", _mean(samples, fastest, _gain), goal=speed, detail=fastest),
                Row(f"{name}, τ at T = {temperature:g}", _mean(samples, fastest, _tau), "tokens", length, detail=fastest),
            ]
    return rows


def relaxes(method: str, temperature: float) -> bool:
    """Whether a method changes the target's distribution at this temperature; at 0 all of the line are exact."""
    return bool(temperature) and all_methods()[method].exactness == "relaxed"


def _lengths(samples: Samples, labels: Iterable[str] = LENGTHS) -> list[Row]:
    """τ of each drafter at temperature 0, and by kind."""
    rows = []
    for label in labels:
        if not samples.of(label):
            continue
        tau_by_kind = samples.by_kind(label, _tau)
        kinds = ", ".join(f"{kind} {tau:.2f}" for kind, tau in tau_by_kind.items())
        rows.append(Row(f"{label}: τ at T = 0", _mean(samples, label, _tau), "tokens", LENGTHS.get(label), detail=kinds))
        if label in LENGTHS:
            worst = min(tau_by_kind, key=tau_by_kind.__getitem__)
            rows.append(Row(f"{label}: τ of the worst kind", tau_by_kind[worst], "tokens", EVERY_KIND, detail=worst))
    return rows


def _line_steps(samples: Samples, where: str) -> list[Row]:
    """Each step of the line on trees of the same size: dynamic over fixed, then the better drafter."""
    likeliest = ", likeliest tokens" if samples.of("eagle3, 25 nodes, likeliest tokens") else ""
    steps = (
        ("a tree that follows confidence over a fixed one, same drafter", "eagle2, 25 nodes", "eagle"),
        ("the same of the likeliest tokens", "eagle2, 25 nodes, likeliest tokens", "eagle, likeliest tokens"),
        ("EAGLE-3's drafter over EAGLE's, same kind of tree", "eagle3, 25 nodes", "eagle2, 25 nodes"),
        ("GTO's drafter over EAGLE-3's, same tree", "gto, 25 nodes", f"eagle3, 25 nodes{likeliest}"),
        ("drawn tokens over the likeliest ones, same drafter", "eagle2, 25 nodes", "eagle2, 25 nodes, likeliest tokens"),
    )
    return [
        _versus(samples, f"τ: {what}{where}", first, second) for what, first, second in steps if _both_ran(samples, first, second)
    ]


def _both_ran(samples: Samples, first: str, second: str) -> bool:
    return bool(samples.of(first) and samples.of(second))


def _versus(samples: Samples, name: str, first: str, second: str, goal: float | None = 1.0) -> Row:
    """τ of one arm over another's on the same prompts."""
    pairs = samples.pairs(first, second, _tau)
    ours, theirs = _mean(samples, first, _tau), _mean(samples, second, _tau)
    better = sum(our_tau > their_tau for our_tau, their_tau in pairs)
    detail = f"{first} {ours:.3f}, {second} {theirs:.3f}; more on {better} of {len(pairs)} prompts"
    return Row(name, ours / theirs, goal=goal, detail=detail)


def _flatness(samples: Samples) -> list[Row]:
    """How much of the first depth's acceptance is left below it, both drafters drafting chains."""
    if not _both_ran(samples, "eagle, chains", "eagle3, chains"):
        return []
    curves = {label: samples.by_depth(label) for label in ("eagle, chains", "eagle3, chains")}
    retention = {label: _retention(curve, samples.reaching(label)) for label, curve in curves.items()}
    detail = "; ".join(f"{label} {_curve_text(curve, samples.reaching(label))}" for label, curve in curves.items())
    gain = retention["eagle3, chains"] / retention["eagle, chains"] if retention["eagle, chains"] else None
    return [Row("acceptance at depths 2 to 6 ÷ at depth 1, EAGLE-3 over EAGLE", gain, goal=1.0, detail=detail)]


def _curve_text(curve: Sequence[float], reaching: Sequence[int]) -> str:
    """Each depth's acceptance and how many steps it rests on."""
    return " ".join(f"{share:.2f} ({count})" for share, count in zip(curve, reaching, strict=True))


def _retention(curve: Sequence[float], reaching: Sequence[int]) -> float:
    """Acceptance at depths 2 to 6 over that at depth 1. Every step that got to a depth counts the same: few get to the last."""
    below = list(zip(curve, reaching, strict=True))[1:6]
    steps = sum(count for _, count in below)
    return sum(share * count for share, count in below) / steps / curve[0] if steps and curve[0] else 0.0


def _depth(samples: Samples, where: str) -> list[Row]:
    """Dynamic depth against a fixed one: drafter forwards, τ, time."""
    rows: list[Row] = []
    for label, goals in ((DDD, True), (PAPERS, False)):
        if not _both_ran(samples, label, FIXED):
            continue
        label_at = f"{label}{where}"
        forwards = _per_step(samples, label, _forwards_of) / _per_step(samples, FIXED, _forwards_of)
        gain = _mean(samples, label, _gain) / _mean(samples, FIXED, _gain)
        detail = f"{_per_step(samples, label, _forwards_of):.2f} a round instead of {_per_step(samples, FIXED, _forwards_of):.2f}"
        rows += [
            Row(f"{label_at}: drafter forwards over fixed depth", forwards, goal=1.0 if goals else None, at_most=True,
                detail=detail),
            _versus(samples, f"{label_at}: τ over fixed depth", label, FIXED, 0.99),
            Row(f"{label_at}: speed over fixed depth", gain, goal=1.0 if goals else None),
        ]  # fmt: skip
    for shallow in (fixed_depth(depth).label for depth in SHALLOW):
        if _both_ran(samples, DDD, shallow):
            gain = _mean(samples, DDD, _gain) / _mean(samples, shallow, _gain)
            rows += [
                _versus(samples, f"{DDD}{where}: τ over {shallow}", DDD, shallow, None),
                Row(f"{DDD}{where}: speed over {shallow}", gain),
            ]
    return rows


def _forwards(samples: Samples, where: str) -> list[Row]:
    """Tokens a drafter forward: where two levels come of one forward against one each."""
    arms = ("falcon", "eagle")
    if not _both_ran(samples, *arms):
        return []
    ours, theirs = (_per_forward(samples, label) for label in arms)
    detail = f"falcon {ours:.2f}, EAGLE's 25 nodes {theirs:.2f}"
    return [Row(f"tokens a drafter forward, falcon over EAGLE{where}", ours / theirs, goal=1.0, detail=detail)]


def _per_forward(samples: Samples, label: str) -> float:
    return samples.total(label, lambda sample: sample.emitted) / max(1.0, samples.total(label, _forwards_of))


def _per_step(samples: Samples, label: str, of: Callable[[Sample], float]) -> float:
    return samples.total(label, of) / max(1.0, samples.total(label, lambda sample: sample.steps))


def _mean(samples: Samples, label: str, of: Callable[[Sample], float]) -> float:
    return samples.mean(label, of) or 0.0


def _tau(sample: Sample) -> float:
    return sample.tau


def _gain(sample: Sample) -> float:
    return sample.gain


def _repeated(sample: Sample) -> float:
    return sample.repeated


def _forwards_of(sample: Sample) -> float:
    return sample.forwards
