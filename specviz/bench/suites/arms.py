"""The arms suite: a stream of prompts that changes its subject, and each way to select among drafters on it.

At temperature 0 every method writes the same text, so passes can be compared one by one; regret is in target passes for 100
tokens, against the arm that would have been best for the whole stream, and against the best one for each subject.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from specviz.bench.kit.measure import Bencher, TimedRun
from specviz.bench.kit.prompts import CODE, MATHS, TRANSLATION
from specviz.bench.kit.report import Report, Row
from specviz.errors import SpecvizError
from specviz.methods.hedgespec.method import ARMS
from specviz.request import Memory

STORIES = (
    "Write a short story about a gardener who finds a letter.",
    "Tell me a story about a whale and a lost child.",
    "Write the beginning of a fairy tale about a baker's daughter.",
    "Tell a story in which an old violin saves a village.",
    "Write a story about two friends who build a raft.",
    "Write a short tale about a lamp that is never switched off.",
)
COPYING = tuple(
    f"Copy the following text word for word:\n{text}"
    for text in (
        "The old clock in the hall struck seven when the twins came down the stairs. On the kitchen table lay a note, a key and "
        "two silver coins. Nobody had seen who put them there, but the back door stood open, and wet footprints led across the "
        "yard to the gate.",
        "Every autumn the river carries leaves from the mountains down to the sea. The children of the village build small boats "
        "of bark and paper, write their names on the sails, and let them go from the wooden bridge. Some boats sink at the first "
        "stone, others travel for days.",
        "The library moved into the former railway station last spring. Shelves stand where travellers once waited, the "
        "ticket office is a reading room, and a model of the last steam engine fills the window towards the empty platform.",
        "Before the storm the fishermen pulled their nets from the water and tied the boats to the harbour wall. The shops "
        "closed early, the streets were quiet, and only the baker left a lamp in his window, as his father had always done.",
        "Mara keeps bees on the roof of her house in the middle of the city. In May they fly to the lime trees along the canal, "
        "in July to the gardens behind the hospital, and in September she carries twelve jars of dark honey down five flights of "
        "stairs.",
        "The map showed a road that no longer existed. They followed it for an hour through tall grass, past a broken fence and "
        "a well without water, until they stood in front of a stone house whose windows had been painted on the wall.",
    )
)
"""Nothing of these can be told by who knows a subject; whoever looks back has it all."""
STREAM: Mapping[str, tuple[str, ...]] = {
    "code": CODE, "stories": STORIES, "copy": COPYING, "translation": TRANSLATION, "maths": MATHS
}  # fmt: skip
"""The subjects, called like their arms, in their order; the stream goes through them twice."""
CHOOSERS: Mapping[str, tuple[str, dict[str, Any]]] = {
    "not_a_bandit": ("not_a_bandit", {}),
    "not_a_bandit, as published": ("not_a_bandit", {"keep": 1.0, "debt": 1000.0}),
    "bandit_ucb": ("bandit_ucb", {}),
    "bandit_exp3": ("bandit_exp3", {}),
    "bandit_ucb, forgetting": ("bandit_ucb", {"keep": 0.98}),
    "bandit_exp3, forgetting": ("bandit_exp3", {"keep": 0.98}),
}
"""Those of full information, which here forget; the bandits as published, and forgetting as well."""
AS_PUBLISHED = "not_a_bandit, as published"
TOKENS = 64


@dataclass
class Stream:
    """One method's way through the stream: passes and tokens by subject, and after how many rounds each change to a subject
    was seen, infinity where it never was."""

    passes: dict[str, int] = field(default_factory=dict)
    tokens: dict[str, int] = field(default_factory=dict)
    noticed_after: dict[str, list[float]] = field(default_factory=dict)

    def add(self, subject: str, timed: TimedRun) -> None:
        """One more prompt."""
        self.passes[subject] = self.passes.get(subject, 0) + len(timed.steps)
        self.tokens[subject] = self.tokens.get(subject, 0) + len(timed.ids)

    @property
    def tau(self) -> float:
        """Tokens a pass over the whole stream."""
        return sum(self.tokens.values()) / max(1, sum(self.passes.values()))


def run(report: Report, target: str, methods: Sequence[str], quick: bool = False) -> None:
    """Every fixed arm, then every chooser, on one stream; then who regrets how much."""
    bench = Bencher(target, tokens=TOKENS)
    few = 1 if quick else 3
    choosers = {label: chooser for label, chooser in CHOOSERS.items() if not methods or chooser[0] in methods}
    ways = {arm: ("not_a_bandit", {"arm": arm, "remember": False}) for arm in ARMS} | choosers
    for temperature in (0.0, 1.0):
        streams: dict[str, Stream] = {}
        for label, (method, values) in ways.items():
            try:
                streams[label] = run_stream(bench, method, values, few, temperature)
            except SpecvizError as problem:
                report.add(Row("arms", None, detail=str(problem)))
                return
            name = f"always {label}" if label in ARMS else label
            report.add(Row(f"{name}: τ, T = {temperature:g}", streams[label].tau, "tokens", detail=_by_subject(streams[label])))
        fixed = {arm: streams[arm] for arm in ARMS}
        for row in rows(fixed, {label: streams[label] for label in choosers}, temperature):
            report.add(row)


def run_stream(bench: Bencher, method: str, values: dict[str, Any], few: int, temperature: float) -> Stream:
    """The method through the stream, with one memory for all of it."""
    memory, stream = Memory(), Stream()
    watched = method == "not_a_bandit" and "arm" not in values
    for lap in range(2):
        for subject, texts in STREAM.items():
            rounds, noticed = 0, math.inf
            for text in texts[lap * few : (lap + 1) * few]:
                ready = bench.prepared(method, text, temperature, memory, parameters=values)
                timed = bench.timed_run(ready, seed=lap, record="tree" if watched else "off")
                stream.add(subject, timed)
                for step in timed.steps:
                    rounds += 1
                    for note in step.notes:
                        if note.type == "arms" and _likeliest(note.data, subject):
                            noticed = min(noticed, rounds)
            if watched:
                stream.noticed_after.setdefault(subject, []).append(noticed)
    return stream


def _likeliest(data: Mapping[str, Any], subject: str) -> bool:
    """Whether the arm of this subject is the likeliest one after the round."""
    after = data.get("after", ())
    return bool(after) and data["names"][max(range(len(after)), key=after.__getitem__)] == subject


def rows(fixed: Mapping[str, Stream], chosen: Mapping[str, Stream], temperature: float) -> list[Row]:
    """Regret of the choosers, and how soon a change is seen."""
    where = f", T = {temperature:g}"
    best = max(fixed, key=lambda arm: fixed[arm].tau)
    table_rows: list[Row] = []
    regret = {label: _regret(stream, fixed[best]) for label, stream in chosen.items()}
    for label, value in regret.items():
        detail = f"against always {best}; against the best arm of each subject {_against_each(chosen[label], fixed):.1f}"
        table_rows.append(Row(f"{label}: regret{where}", value, "passes for 100 tokens", detail=detail))
    for ours, bandit in product(("not_a_bandit", AS_PUBLISHED), regret):
        if ours in regret and bandit.startswith("bandit_"):
            saved = regret[bandit] - regret[ours]
            table_rows.append(Row(f"{ours} regrets less than {bandit}{where}", saved, "passes for 100 tokens", goal=0.0))
    table_rows += [_noticing_row(label, stream, where) for label, stream in chosen.items() if stream.noticed_after]
    return table_rows


def _noticing_row(label: str, stream: Stream, where: str) -> Row:
    """Median rounds until a change is seen. A stretch where it never was counts as later than any round that is known."""
    every = [rounds for stretches in stream.noticed_after.values() for rounds in stretches]
    median = statistics.median(every)
    known = sum(math.isfinite(rounds) for rounds in every)
    each = (f"{subject} {', '.join(map(_rounds_text, stretches))}" for subject, stretches in stream.noticed_after.items())
    detail = f"the subject's own arm became the likeliest one; seen in {known} of {len(every)} stretches: {'; '.join(each)}"
    value = median if math.isfinite(median) else None
    return Row(f"{label}: rounds until a change is seen{where}", value, "rounds", detail=detail)


def _rounds_text(rounds: float) -> str:
    return f"{rounds:g}" if math.isfinite(rounds) else "never"


def _by_subject(stream: Stream) -> str:
    return ", ".join(f"{subject} {stream.tokens[subject] / max(1, stream.passes[subject]):.2f}" for subject in stream.passes)


def _cost(stream: Stream) -> float:
    """Passes for 100 tokens."""
    return 100 * sum(stream.passes.values()) / max(1, sum(stream.tokens.values()))


def _regret(stream: Stream, best: Stream) -> float:
    return _cost(stream) - _cost(best)


def _against_each(stream: Stream, fixed: Mapping[str, Stream]) -> float:
    """Regret against whoever knows each subject's best arm, weighed by this stream's own tokens."""
    total = sum(stream.tokens.values())
    least = sum(
        stream.tokens[subject] * min(arm.passes[subject] / max(1, arm.tokens[subject]) for arm in fixed.values())
        for subject in stream.tokens
    )
    return _cost(stream) - 100 * least / max(1, total)
