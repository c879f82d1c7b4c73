"""The length suite: acceptance by text length, for OWL, and for HOWL on texts that repeat themselves.

Every text is a diary of as many days as fill the length and then a question: each day different, but for copies, where
the same week comes again and again. Trees of one depth and size throughout, so that only the drafter differs; τ counts the
bonus token. Answers are many and long enough that τ of each length is known to about 3 %: the least of four equal ones then
lies some 5 % below the most by chance alone.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence

from specviz.bench.kit.measure import Bencher, TimedRun
from specviz.bench.kit.report import Report, Row
from specviz.errors import SpecvizError
from specviz.trace.lengths import Curve, LengthCurves, measured_on

LENGTHS = (64, 256, 1024, 4096)
TREE = {"depth": 4, "width": 6, "nodes": 16}
METHODS = ("owl", "eagle2", "eagle3", "howl", "suffix_decoding")
QUESTIONS = (
    "Tell me a short story about a lighthouse keeper.",
    "Why do people like to travel? Give three reasons.",
    "How do I make a good tomato soup?",
    "Explain to a child what a shadow is.",
    "What would you pack for a week in the mountains?",
    "Describe a busy market in the morning.",
    "Write a letter to a friend who has moved away.",
    "What are the advantages of riding a bicycle to work?",
)
COPIES = (
    "Write out the last five days of the diary again, word for word.",
    "Copy the diary's last five days exactly, one day a line.",
)
WEEK = 7
"""Days after which the diary that is copied begins again."""
SHORT = 2
MOST = 1 << 20
TOKENS = 96

_WHO = (
    "Maria",
    "Tom",
    "Aunt Ruth",
    "the postman",
    "our neighbour",
    "Dr. Bell",
    "little Sam",
    "the baker",
    "Nora",
    "a sailor",
)
_WHAT = ("bought", "repaired", "lost", "painted", "borrowed", "found", "sold", "cleaned", "carried", "hid")
_THING = ("a green bicycle", "two wooden chairs", "an old radio", "a basket of pears", "the garden gate", "a blue coat",
          "three candles", "a map of the coast", "a small boat", "the kitchen clock", "a box of nails")  # fmt: skip
_WHERE = ("by the river", "behind the church", "at the station", "in the attic", "near the harbour", "under the bridge",
          "on the hill")  # fmt: skip
_SKY = ("It rained", "The sun shone", "A cold wind blew", "Snow fell", "Fog lay over the fields")


def day(number: int) -> str:
    """One entry of the diary; no two of the first few thousand say the same."""

    def pick(words: Sequence[str], step: int) -> str:
        return words[(number * step + number // len(words)) % len(words)]

    return f"Day {number}: {pick(_SKY, 3)}, and {pick(_WHO, 7)} {pick(_WHAT, 3)} {pick(_THING, 5)} {pick(_WHERE, 2)}."


def prompt(question: str, length: int, count: Callable[[str], int]) -> str:
    """The question behind as many days as make the whole, which ``count`` counts, at least ``length`` tokens long."""
    every = WEEK if question in COPIES else MOST
    whole, days = question, 0
    while count(whole) < length:
        days += max(1, (length - count(whole)) // 40)
        diary = "\n".join(day(1 + number % every) for number in range(days))
        whole = f"{diary}\n\n{question}"
    return whole


def run(report: Report, target: str, methods: Sequence[str], quick: bool = False, keep: bool = False) -> None:
    """τ of every method by length, on answers of their own and on copies; then what the papers say of them. ``keep`` writes
    the curves to where the app draws them from, beside those of methods that were not asked for now."""
    bench = Bencher(target, tokens=TOKENS)
    chosen = [name for name in METHODS if not methods or name in methods]
    curves_by_name: dict[tuple[str, str], dict[int, float]] = {}
    for kind, questions in (("answers", QUESTIONS), ("copies", COPIES)):
        texts = questions[:SHORT] if quick else questions
        for name in chosen:
            try:
                curves_by_name[kind, name] = tau_by_length(bench, name, texts)
            except SpecvizError as problem:
                report.add(Row(f"{name}, {kind}", None, detail=str(problem)))
                continue
            curve = curves_by_name[kind, name]
            detail = "τ at " + ", ".join(f"{length}: {tau:.2f}" for length, tau in curve.items())
            report.add(Row(f"{name}, {kind}: τ at {LENGTHS[-1]} over τ at {LENGTHS[0]}", retention(curve), detail=detail))
    for row in proofs(curves_by_name):
        report.add(row)
    if keep:
        loaded = bench.prepared("autoregressive", QUESTIONS[0]).loaded.name
        length_curves = curves(curves_by_name, loaded, report.where["date"])
        report.say(f"Wrote {length_curves.after(measured_on(loaded)).save()}.")


def curves(curves_by_name: Mapping[tuple[str, str], Mapping[int, float]], target: str, date: str) -> LengthCurves:
    """What was measured, as the app draws it."""
    tree = f"trees of depth {TREE['depth']}, width {TREE['width']} and {TREE['nodes']} nodes"
    source = f"{len(QUESTIONS)} questions and {len(COPIES)} copies behind a diary, {TOKENS} greedy tokens each, {tree}"
    drawn_curves = tuple(
        Curve(name, kind, tuple(round(curve[length], 3) for length in LENGTHS)) for (kind, name), curve in curves_by_name.items()
    )
    return LengthCurves(target, source, date, LENGTHS, drawn_curves)


def retention(curve: dict[int, float]) -> float:
    """What is left of the drafted tokens a pass, the free one not counted, at the longest text of those at the shortest."""
    return (curve[LENGTHS[-1]] - 1) / max(1e-9, curve[LENGTHS[0]] - 1)


def tau_by_length(bench: Bencher, method: str, questions: Sequence[str]) -> dict[int, float]:
    """Mean τ by length. Every question has a memory of its own, so that no run knows another's text."""
    taus_by_length: dict[int, float] = {}
    for length in LENGTHS:
        length_taus = [_timed_run(bench, method, question, length).tau for question in questions]
        taus_by_length[length] = statistics.mean(length_taus)
    return taus_by_length


def _timed_run(bench: Bencher, method: str, question: str, length: int) -> TimedRun:
    probe = bench.prepared("autoregressive", question)
    whole = prompt(question, length, lambda text: len(probe.text.encode(text, False)))
    values = {"most": 16} if method == "suffix_decoding" else {**TREE, **({"most": 16} if method == "howl" else {})}
    return bench.timed_run(bench.prepared(method, whole, parameters=values))


def proofs(curves_by_name: dict[tuple[str, str], dict[int, float]]) -> list[Row]:
    """What should come out, where both sides were measured."""
    rows: list[Row] = []
    level = curves_by_name.get(("answers", "owl"))
    if level:
        spread = min(level.values()) / max(level.values())
        rows.append(Row("OWL is level: least τ over most, 64 to 4096 tokens", spread, goal=0.9))
    for other in ("eagle2", "eagle3"):
        curve = curves_by_name.get(("answers", other))
        if level and curve:
            detail = f"{retention(level):.2f} and {retention(curve):.2f} of the drafted tokens are left"
            rows.append(Row(f"OWL keeps more than {other}", retention(level) - retention(curve), "", 0.0, detail=detail))
    hybrid = curves_by_name.get(("copies", "howl"))
    for other in ("owl", "eagle3", "suffix_decoding"):
        curve = curves_by_name.get(("copies", other))
        if hybrid and curve:
            gains = [hybrid[length] / curve[length] for length in LENGTHS[2:]]
            detail = ", ".join(f"{hybrid[length]:.2f} and {curve[length]:.2f} at {length}" for length in LENGTHS[2:])
            rows.append(Row(f"HOWL over {other} on long copies, τ", statistics.mean(gains), goal=1.0, detail=detail))
    return rows
