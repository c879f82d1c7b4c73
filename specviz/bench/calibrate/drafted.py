"""Calibration of trained drafters: how often each node of EAGLE's and Medusa's trees is accepted, and how much probability a
beam holds level by level, for the threshold of Dynamic Depth Decoding (arXiv 2409.00142).
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy

from specviz.bench.calibrate import depth as calibrate_depth
from specviz.bench.kit.prompts import CALIBRATION
from specviz.bench.suites import chain
from specviz.errors import BadInput
from specviz.methods.ddd.depth import CalibratedDepth
from specviz.methods.resources import TREES
from specviz.models.hub.catalog import DEFAULT_TEXT_TARGET
from specviz.request import Request
from specviz.runner import prepare
from specviz.trace.schema import Step
from specviz.training.feature.medusa import refit
from specviz.trees.calibrated import from_counts

DRAFTER = "eagle3"
"""Whose beams the threshold of Dynamic Depth is calibrated on."""

CANDIDATES = tuple(numpy.round(numpy.arange(-6.0, 0.0001, 0.05), 2).tolist())


@dataclass(frozen=True)
class BeamMasses:
    """One round at full depth: log mass of the beam at each level, how many drafted tokens were accepted, and of how many."""

    mass: tuple[float, ...]
    accepted: int
    nodes: int = 0


def eagle(target: str, tokens: int = 96, report: Callable[[str], None] = print) -> Path:
    """Count on greedy answers how often each node of the published tree is accepted; writes ``assets/trees/eagle.json``."""
    counts: Counter[tuple[int, ...]] = Counter()
    rounds = 0
    for number, steps in enumerate(_decoded_steps("eagle", {"tree": "published"}, target, tokens), start=1):
        whole = [step for step in steps if step.cut is None]
        rounds += len(whole)
        for step in whole:
            path = ranks(step)
            counts.update(path[:depth] for depth in range(1, len(path) + 1))
        report(f"prompt {number} of {len(CALIBRATION)}: {rounds} rounds, {counts.total() / max(1, rounds):.2f} accepted in each")
    out = TREES / "eagle.json"
    from_counts(dict(counts), rounds, f"{len(CALIBRATION)} prompts, {rounds} rounds, {target}").save(out)
    return out


def ranks(step: Step) -> tuple[int, ...]:
    """The accepted path as ranks among siblings."""
    path_ranks = []
    for node in step.path:
        siblings = [other for other, sibling in enumerate(step.nodes) if sibling.parent == step.nodes[node].parent]
        path_ranks.append(siblings.index(node))
    return tuple(path_ranks)


def ddd(target: str, tokens: int = 96, report: Callable[[str], None] = print) -> Path:
    """Draft to full depth on greedy answers, note what each level's beam held; writes ``assets/trees/ddd.json``."""
    rounds: list[BeamMasses] = []
    never = {"drafter": DRAFTER, "threshold": "own", "log_mass": -12.0, "levels": "published"}
    for number, steps in enumerate(_decoded_steps("ddd", never, target, tokens), start=1):
        rounds += [beam for step in steps if step.cut is None for beam in _beam_masses(step)]
        report(f"prompt {number} of {len(CALIBRATION)}: {len(rounds)} rounds")
    rows = by_threshold(rounds)
    for threshold, tokens_a_round, forwards in rows[:: max(1, len(rows) // 8)]:
        report(f"threshold {threshold:.2f}: {tokens_a_round:.2f} tokens and {forwards:.2f} drafter forwards a round")
    out = TREES / "ddd.json"
    nodes = sum(beam.nodes for beam in rounds) / max(1, len(rounds))
    source = f"{len(CALIBRATION)} prompts, {len(rounds)} rounds, {target}"
    CalibratedDepth(rows, nodes, quantiles(rounds), DRAFTER, target, source).save(out)
    return out


def _beam_masses(step: Step) -> Iterator[BeamMasses]:
    for note in step.notes:
        if note.type == "mass":
            yield BeamMasses(tuple(note.data["mass"]), len(step.path), step.verified)


def stop_level(beam: BeamMasses, threshold: float) -> int:
    """The level at which a round would have stopped when every level is tested."""
    below = (level for level, mass in enumerate(beam.mass[:-1], start=1) if mass < threshold)
    return next(below, len(beam.mass))


def by_threshold(rounds: Sequence[BeamMasses]) -> tuple[tuple[float, float, float], ...]:
    """Rows of a threshold, the tokens a round writes with it and its drafter forwards; of equal rows the one of the highest
    threshold. What was accepted deeper than the stop counts as lost. Raises BadInput where no round was whole."""
    if not rounds:
        raise BadInput("No round was whole: calibrate on more tokens.")
    rows: list[tuple[float, float, float]] = []
    for threshold in CANDIDATES:
        ends = [stop_level(beam, threshold) for beam in rounds]
        tokens = sum(1 + min(beam.accepted, end) for beam, end in zip(rounds, ends, strict=True))
        if rows and rows[-1][1:] == (tokens / len(rounds), sum(ends) / len(rounds)):
            rows.pop()
        rows.append((threshold, tokens / len(rounds), sum(ends) / len(rounds)))
    return tuple(rows)


def quantiles(rounds: Sequence[BeamMasses]) -> dict[int, tuple[float, ...]]:
    """Deciles of the log mass at each level."""
    deepest = max((len(beam.mass) for beam in rounds), default=0)
    deciles = {}
    for level in range(1, deepest + 1):
        masses = [beam.mass[level - 1] for beam in rounds if len(beam.mass) >= level]
        deciles[level] = tuple(float(value) for value in numpy.quantile(masses, numpy.linspace(0, 1, 11)))
    return deciles


def _decoded_steps(method: str, parameters: dict[str, Any], target: str, tokens: int) -> Iterator[list[Step]]:
    """The steps of every calibration prompt, greedy, with their notes."""
    for prompt in CALIBRATION:
        ready = prepare(Request(method, prompt, target, max_new_tokens=tokens, parameters=parameters))
        yield list(ready.decoding(ready.compose(), 0, "tree", threading.Event()).steps())


def medusa(target: str, report: Callable[[str], None] = print) -> Path:
    """The rank paths of Medusa's tree, from answers that its heads did not learn from."""
    if target != DEFAULT_TEXT_TARGET:
        raise BadInput(f"The heads that ship, and the tree fitted to them, are for {DEFAULT_TEXT_TARGET}.")
    return refit(report)


RUNS: dict[str, Callable[..., Path]] = {
    "eagle": eagle, "ddd": ddd, "medusa": medusa, "polybasic": chain.calibrate, **calibrate_depth.RUNS
}  # fmt: skip
