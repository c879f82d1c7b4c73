"""Calibration of a cascade: the acceptance lengths in Polybasic's condition for inserting an intermediate model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specviz.bench.kit import Bencher
from specviz.errors import SpecvizError
from specviz.methods.polybasic import INTERMEDIATES
from specviz.methods.polybasic.forecast import ChainLengths, Lengths
from specviz.methods.registry import TREES
from specviz.prompts import prompts
from specviz.trace.schema import Step

DRAFTER_TREE = {"depth": 2, "width": 3, "nodes": 3}
"""The drafter's tree, whether it drafts for the target or for an intermediate model."""
DRAFTER_ALONE: tuple[str, Mapping[str, Any]] = ("eagle3", DRAFTER_TREE)
COPY_ALONE = ("prompt_lookup", {"longest": 3, "shortest": 2, "copied": 2, "occurrence": "latest", "partial": True})
"""The run without an intermediate model, for models chosen by name: copies of up to two tokens from the context."""
LENGTHS = TREES / "polybasic.json"
TOKENS = 64


@dataclass
class ChainCounts:
    """Counts over several runs, excluding steps that were cut short.

    ``rounds``: target passes. ``emitted``: committed tokens. ``calls``: drafter forwards. ``passes``: passes of the
    intermediate model. ``buffered``: tokens that the intermediate model passed to the target. ``judged`` and ``accepted``:
    draft tokens that the target tested and accepted.
    """

    rounds: int = 0
    emitted: int = 0
    calls: int = 0
    passes: int = 0
    buffered: int = 0
    judged: int = 0
    accepted: int = 0

    def add(self, steps: Sequence[Step]) -> None:
        """Add the steps of one run."""
        for step in steps:
            if step.cut is not None:
                continue
            self.rounds += 1
            self.emitted += len(step.emitted)
            notes = [note.data for note in step.notes if note.type == "cascade"]
            self.calls += (
                sum(middle_pass["calls"] for data in notes for middle_pass in data["passes"]) if notes else step.draft_calls
            )
            self.accepted += len(step.path)
            self.judged += len(step.path) + (len(step.path) < step.verified)
            for data in notes:
                self.passes += len(data["passes"])
                self.buffered += data["length"]

    @property
    def alone(self) -> Lengths:
        """Statistics of target and drafter without an intermediate model: tokens and drafter forwards per target pass."""
        return Lengths(0.0, self.emitted / max(1, self.rounds), self.calls / max(1, self.rounds))

    @property
    def between(self) -> Lengths:
        """Statistics with the intermediate model: token acceptance rate, and tokens and drafter forwards per intermediate
        pass."""
        passes = max(1, self.passes)
        return Lengths(self.accepted / max(1, self.judged), self.buffered / passes, self.calls / passes)


def count_chain(bench: Bencher, texts: Sequence[str], method: str, parameters: Mapping[str, Any]) -> ChainCounts:
    """Decode the prompts greedily and return the counts."""
    counts = ChainCounts()
    for prompt in texts:
        ready = bench.prepared(method, prompt, parameters=dict(parameters))
        counts.add(bench.timed_run(ready, record="tree").steps)
    return counts


def calibrate(
    target: str, tokens: int = TOKENS, report: Callable[[str], None] = print, draft: str = "", out: Path = LENGTHS
) -> Path:
    """Measure one cascade per intermediate model on the calibration prompts, with EAGLE-3 as the drafter, and return ``out``.

    If ``draft`` names a model, the only intermediate model is that one, and prompt lookup is the drafter. Other results in
    ``out`` are kept.
    """
    bench, texts, below = Bencher(target, tokens, {"draft": draft} if draft else {}), prompts("calibration"), "eagle3"
    kinds, without = dict.fromkeys(INTERMEDIATES, ""), DRAFTER_ALONE
    if draft:
        below, kinds, without = "copy", {"draft": draft}, COPY_ALONE
    alone = count_chain(bench, texts, *without).alone
    report(f"target and drafter: {alone.below:.2f} tokens per pass")
    middles = {}
    for kind, name in kinds.items():
        try:
            lengths = count_chain(bench, texts, "polybasic", {"middle": kind, "gathered": 8, **DRAFTER_TREE}).between
        except SpecvizError as problem:
            if draft:
                raise
            report(f"{kind}: {problem}")
            continue
        middles[name or kind] = lengths
        report(f"{name or kind}: acceptance rate {lengths.probability:.3f}; {lengths.below:.2f} tokens per pass of this model")
    source = f"{len(texts)} greedy answers of {tokens} tokens, trees of {DRAFTER_TREE['nodes']} nodes"
    ChainLengths(target, below, source, alone, middles).save(out)
    return out
