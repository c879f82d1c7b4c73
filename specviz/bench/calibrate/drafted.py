"""Calibration of trained drafters: acceptance per node in EAGLE's and Medusa's trees, and beam probability mass per level.

The threshold of Dynamic Depth Decoding (arXiv 2409.00142) is chosen from the beam masses.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from specviz.bench.calibrate import cascade
from specviz.bench.calibrate import depth as calibrate_depth
from specviz.drafting.trees.calibrated import from_counts
from specviz.errors import BadInput
from specviz.methods.ddd import CalibratedDepth
from specviz.methods.registry import TREES
from specviz.models.hub.catalog import DEFAULT_TEXT_TARGET
from specviz.pipeline.request import Request
from specviz.pipeline.runner import prepare
from specviz.prompts import prompts
from specviz.trace.schema import Step
from specviz.training.families.medusa import refit

CALIBRATION = prompts("calibration")

DRAFTER = "eagle3"
"""Drafter used to calibrate Dynamic Depth Decoding."""

DEPTH = 8
"""Number of levels that ``DRAFTER`` drafts in a round."""


def eagle(target: str, tokens: int = 96, report: Callable[[str], None] = print) -> Path:
    """Count how often each node of EAGLE's published tree is accepted on greedy answers; write ``assets/trees/eagle.json``.

    Returns the path of the file.
    """
    counts: Counter[tuple[int, ...]] = Counter()
    rounds = 0
    for number, steps in enumerate(_decoded_steps("eagle", {"tree": "published"}, target, tokens), start=1):
        whole = [step for step in steps if step.cut is None]
        rounds += len(whole)
        for step in whole:
            path = ranks(step)
            counts.update(path[:depth] for depth in range(1, len(path) + 1))
        report(
            f"prompt {number} of {len(CALIBRATION)}: {rounds} rounds, {counts.total() / max(1, rounds):.2f} accepted per round"
        )
    out = TREES / "eagle.json"
    from_counts(dict(counts), rounds, f"{len(CALIBRATION)} prompts, {rounds} rounds, {target}").save(out)
    return out


def ranks(step: Step) -> tuple[int, ...]:
    """Return the rank of each accepted node among its siblings."""
    path_ranks = []
    for node in step.path:
        siblings = [other for other, sibling in enumerate(step.nodes) if sibling.parent == step.nodes[node].parent]
        path_ranks.append(siblings.index(node))
    return tuple(path_ranks)


def ddd(target: str, tokens: int = 96, report: Callable[[str], None] = print) -> Path:
    """Draft to full depth on greedy answers and write the beam mass of every level to ``assets/trees/ddd.json``.

    Returns the path of the file. Raises BadInput if every round was cut short.
    """
    rounds: list[tuple[float, ...]] = []
    nodes = 0
    never = {"drafter": DRAFTER, "threshold": "own", "log_mass": -12.0, "levels": "published", "depth": DEPTH}
    for number, steps in enumerate(_decoded_steps("ddd", never, target, tokens), start=1):
        whole = [(step, note) for step in steps if step.cut is None for note in step.notes if note.type == "beam_mass"]
        rounds += [(len(step.path), *note.data["mass"]) for step, note in whole]
        nodes += sum(step.verified for step, _ in whole)
        report(f"prompt {number} of {len(CALIBRATION)}: {len(rounds)} rounds")
    if not rounds:
        raise BadInput("Every round was cut short: calibrate with more tokens.")
    source = f"{len(CALIBRATION)} prompts, {len(rounds)} rounds, {target}"
    found = CalibratedDepth(tuple(rounds), nodes / len(rounds), DRAFTER, target, source)
    for threshold in (-4.0, -3.0, -2.0, -1.0, -0.5):
        written, forwards = found.brings(threshold, DEPTH)
        report(f"threshold {threshold:g}: {written:.2f} tokens and {forwards:.2f} drafter forwards per round")
    out = TREES / "ddd.json"
    found.save(out)
    return out


def _decoded_steps(method: str, parameters: dict[str, Any], target: str, tokens: int) -> Iterator[list[Step]]:
    """Decode every calibration prompt greedily and yield the steps, with trees and notes."""
    for prompt in CALIBRATION:
        ready = prepare(Request(method, prompt, target, max_new_tokens=tokens, parameters=parameters))
        yield list(ready.decoding(ready.compose(), 0, "tree").steps())


def medusa(target: str, report: Callable[[str], None] = print) -> Path:
    """Fit the rank paths of Medusa's tree on answers outside the heads' training data.

    Raises BadInput unless ``target`` is the default text target.
    """
    if target != DEFAULT_TEXT_TARGET:
        raise BadInput(f"The included heads and their tree are for {DEFAULT_TEXT_TARGET}; choose that target.")
    return refit(report)


RUNS: dict[str, Callable[..., Path]] = {
    "eagle": eagle, "ddd": ddd, "medusa": medusa, "polybasic": cascade.calibrate, **calibrate_depth.RUNS
}  # fmt: skip
