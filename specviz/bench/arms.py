"""The arms suite: a stream of prompts that changes its subject, and what each way to choose among drafters makes of it.

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

from specviz.bench.measure import Bencher, Timed
from specviz.bench.prompts import CODE, MATHS, TRANSLATION
from specviz.bench.report import Report, Row
from specviz.errors import SpecvizError
from specviz.methods.not_a_bandit import ARMS
from specviz.request import Memory

STORIES = (
    "Write a short story about a gardener who finds a letter.",
    "Tell me a story about a whale and a lost child.",
    "Write the beginning of a fairy tale about a baker's daughter.",
    "Tell a story in which an old violin saves a village.",
    "Write a story about two friends who build a raft.",
    "Write a short tale about a lamp that is never switched off.",
)
STREAM: Mapping[str, tuple[str, ...]] = {
    "code": CODE, "stories": STORIES, "translation": TRANSLATION, "maths": MATHS
}  # fmt: skip
"""The subjects in their order; the stream goes through them twice."""
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
    """One method's way through the stream: passes and tokens by subject, and how soon a change was seen, in rounds; of
    stretches where it never was, how long they are."""

    passes: dict[str, int] = field(default_factory=dict)
    tokens: dict[str, int] = field(default_factory=dict)
    noticed: list[int] = field(default_factory=list)
    unseen: list[int] = field(default_factory=list)

    def add(self, subject: str, timed: Timed) -> None:
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
    choosers = {label: one for label, one in CHOOSERS.items() if not methods or one[0] in methods}
    ways = {arm: ("not_a_bandit", {"arm": arm, "remember": False}) for arm in ARMS} | choosers
    for heat in (0.0, 1.0):
        found: dict[str, Stream] = {}
        for label, (method, values) in ways.items():
            try:
                found[label] = flown(bench, method, values, few, heat)
            except SpecvizError as problem:
                report.add(Row("arms", None, detail=str(problem)))
                return
            name = f"always {label}" if label in ARMS else label
            report.add(Row(f"{name}: τ, T = {heat:g}", found[label].tau, "tokens", detail=_by_subject(found[label])))
        fixed = {arm: found[arm] for arm in ARMS}
        for row in rows(fixed, {label: found[label] for label in choosers}, heat):
            report.add(row)


def flown(bench: Bencher, method: str, values: dict[str, Any], few: int, heat: float) -> Stream:
    """The method through the stream, with one memory for all of it."""
    memory, made = Memory(), Stream()
    watched = method == "not_a_bandit" and "arm" not in values
    for lap in range(2):
        for subject, texts in STREAM.items():
            rounds, seen = 0, False
            for text in texts[lap * few : (lap + 1) * few]:
                ready = bench.prepared(method, text, heat, memory, parameters=values)
                timed = bench.once(ready, seed=lap, record="tree" if watched else "off")
                made.add(subject, timed)
                for step in timed.steps:
                    rounds += 1
                    for note in step.notes:
                        if note.type == "arms" and not seen:
                            seen = _sees(note.data, subject)
                            made.noticed += [rounds] if seen else []
            made.unseen += [rounds] if watched and not seen else []
    return made


def _sees(data: Mapping[str, Any], subject: str) -> bool:
    """Whether the arm of this subject is the likeliest one after the round."""
    after = data.get("after", ())
    return bool(after) and data["names"][max(range(len(after)), key=after.__getitem__)] == subject


def rows(fixed: Mapping[str, Stream], chosen: Mapping[str, Stream], heat: float) -> list[Row]:
    """Regret of the choosers, and how soon a change is seen."""
    where = f", T = {heat:g}"
    best = max(fixed, key=lambda arm: fixed[arm].tau)
    made: list[Row] = []
    regret = {label: _regret(one, fixed[best]) for label, one in chosen.items()}
    for label, value in regret.items():
        detail = (
            f"against always {best}; against the best arm of each subject {_against_each(chosen[label], fixed):.1f}"
        )
        made.append(Row(f"{label}: regret{where}", value, "passes for 100 tokens", detail=detail))
    for ours, bandit in product(("not_a_bandit", AS_PUBLISHED), regret):
        if ours in regret and bandit.startswith("bandit_"):
            saved = regret[bandit] - regret[ours]
            made.append(Row(f"{ours} regrets less than {bandit}{where}", saved, "passes for 100 tokens", goal=0.0))
    made += [_noticing(label, one, where) for label, one in chosen.items() if one.noticed or one.unseen]
    return made


def _noticing(label: str, one: Stream, where: str) -> Row:
    """Median rounds until a change is seen. A stretch where it never was counts as later than any round that is known."""
    median = statistics.median([*one.noticed, *(math.inf for _ in one.unseen)])
    detail = f"the subject's own arm became the likeliest one; seen in {len(one.noticed)} of {len(one.noticed) + len(one.unseen)}"
    detail += " stretches"
    if math.isinf(median):
        detail += f": in half of them or more not within their {min(one.unseen)} to {max(one.unseen)} rounds"
    value = None if math.isinf(median) else median
    return Row(f"{label}: rounds until a change is seen{where}", value, "rounds", detail=detail)


def _by_subject(one: Stream) -> str:
    return ", ".join(f"{subject} {one.tokens[subject] / max(1, one.passes[subject]):.2f}" for subject in one.passes)


def _cost(one: Stream) -> float:
    """Passes for 100 tokens."""
    return 100 * sum(one.passes.values()) / max(1, sum(one.tokens.values()))


def _regret(one: Stream, best: Stream) -> float:
    return _cost(one) - _cost(best)


def _against_each(one: Stream, fixed: Mapping[str, Stream]) -> float:
    """Regret against whoever knows each subject's best arm, weighed by this stream's own tokens."""
    total = sum(one.tokens.values())
    least = sum(
        one.tokens[subject] * min(arm.passes[subject] / max(1, arm.tokens[subject]) for arm in fixed.values())
        for subject in one.tokens
    )
    return _cost(one) - 100 * least / max(1, total)
