"""The length suite: τ by prompt length, for prompts that consist of a diary and a question.

In the suite ``answers`` every day of the diary is different; in ``copies`` the diary repeats each week. Trees have at most 16
nodes; those of the trained drafters also share one depth and width.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from specviz.bench.kit import Bencher, Prompts, Variant
from specviz.bench.report import Report
from specviz.bench.suites import DIARY, VALUES, Suite
from specviz.prompts import prompts
from specviz.trace.lengths import Curve, LengthCurves

LENGTHS = (64, 256, 1024, 4096)
LENGTH_TREE = {"depth": 4, "width": 6, "nodes": 16}
WEEK = 7


def diary(question: str, length: int, count: Callable[[str], int], every: int) -> str:
    """Return a prompt of at least ``length`` tokens: a diary that repeats after ``every`` days, then the question.

    ``count``: function that returns the number of tokens of a text.
    """

    def day(number: int) -> str:
        words = {
            name: several[(number * stride + number // len(several)) % len(several)] for name, (stride, *several) in DIARY.items()
        }
        return f"Day {number}: {words['sky']}, and {words['who']} {words['what']} {words['thing']} {words['where']}."

    whole, days = question, 0
    while count(whole) < length:
        days += max(1, (length - count(whole)) // 40)
        whole = "\n".join(day(1 + number % every) for number in range(days)) + f"\n\n{question}"
    return whole


def by_length(name: str, every: int) -> Callable[[Bencher, bool], Prompts]:
    """Return the ``prompts`` function of a suite: each question of the set ``name`` after a diary of each length. The kinds of
    prompts are the lengths.
    """

    def make(bench: Bencher, quick: bool) -> Prompts:
        loaded: Any = bench.prepared("autoregressive", "a").loaded
        questions = prompts(name)[: 2 if quick else None]

        def with_diary(length: int) -> list[str]:
            return [diary(question, length, lambda whole: len(loaded.text.encode(whole, False)), every) for question in questions]

        return {str(length): with_diary(length) for length in LENGTHS}

    return make


LENGTH_ARMS = (
    *(Variant(name, name, LENGTH_TREE) for name in ("owl", "eagle2", "eagle3")),
    Variant("howl", "howl", {**LENGTH_TREE, "most": 16}), Variant("suffix_decoding", "suffix_decoding", {"most": 16}),
)  # fmt: skip
LENGTH = {
    "answers": Suite("τ by text length, answers", by_length("questions", 1 << 20), LENGTH_ARMS, ("τ", "τ by kind"), between=99),
    "copies": Suite("τ by text length, copies", by_length("copies", WEEK), LENGTH_ARMS, ("τ", "τ by kind"), between=99),
}


def run_length(report: Report, target: str, methods: Sequence[str] = (), quick: bool = False, keep: bool = False) -> None:
    """Measure τ of every method by prompt length. ``keep``: save the curves for the app."""
    curves = []
    for kind, suite in LENGTH.items():
        for samples in suite.run(report, target, methods, quick).values():
            for label in samples.by_variant:
                taus = samples.by_kind(label, VALUES["τ"])
                curves.append(Curve(label, kind, tuple(round(taus[str(length)], 3) for length in LENGTHS)))
    if keep:
        loaded = Bencher(target).prepared("autoregressive", "a").loaded.name
        tree = "trees of at most {nodes} nodes; for trained drafters, depth {depth} and width {width}".format(**LENGTH_TREE)
        asked = f"{len(prompts('questions'))} questions and {len(prompts('copies'))} copies"
        source = f"{asked} after a diary, 96 greedy tokens each, {tree}"
        measured = LengthCurves(loaded, source, report.where["date"], LENGTHS, tuple(curves))
        report.say(f"Wrote {measured.save()}.")
