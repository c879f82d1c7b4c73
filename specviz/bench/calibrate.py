"""Finds the trees of STAND and Token Recycling: decode with a large tree, count which rank paths are accepted, keep the best.

STAND (arXiv 2506.04708) starts from 625 nodes of depth 20 and keeps 80; Token Recycling (arXiv 2408.08696) likewise.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from specviz.bench.prompts import CALIBRATION
from specviz.drafters.ngram_store import NgramDrafter, NgramStore
from specviz.drafters.successors import Recycler, SuccessorMatrix
from specviz.engine.controller import Steady
from specviz.engine.interfaces import Composition, Draft
from specviz.engine.tree import TreeShape, shape_from_paths
from specviz.errors import BadInput
from specviz.growth.calibrated import CalibratedTree, from_counts
from specviz.methods.parts import TREES
from specviz.acceptance.match import Match
from specviz.acceptance.rejection import Rejection
from specviz.growth.sampled import Sampled
from specviz.growth.static import Static
from specviz.request import Request
from specviz.run import Prepared, prepare
from specviz.trace.schema import Step

KEPT = 80
TRAJECTORIES = 3
NAMES = ("stand", "token_recycling")
Path_ = tuple[int, ...]


def wide_shape(nodes: int, depth: int, width: int = 8) -> TreeShape:
    """A large tree to start from: rank paths in order of a falling prior (each rank halves, each level costs a tenth)."""
    found: list[tuple[float, Path_]] = [(0.0, ())]
    for _ in range(depth):
        longer = [(cost + 0.6 * rank + 0.1, (*path, rank)) for cost, path in found for rank in range(width)]
        found = sorted({*found, *longer})[: nodes + 1]
    return shape_from_paths([path for _, path in found if path])


def rank_paths(shape: TreeShape) -> dict[int, Path_]:
    """Each node's path of sibling ranks from the root."""
    found: dict[int, Path_] = {0: ()}
    for node in range(len(shape)):
        for rank, child in enumerate(shape.children[node]):
            found[child] = (*found[node], rank)
    return found


def run(name: str, target: str, nodes: int = 320, tokens: int = 128, report: Callable[[str], None] = print) -> Path:
    """Calibrate ``name`` on ``target`` and write ``assets/trees/NAME.json``; the path of that file."""
    if name not in NAMES:
        raise BadInput(f"{name} has no tree to calibrate; choose {' or '.join(NAMES)}.")
    counts: Counter[Path_] = Counter()
    rounds = 0
    shape = wide_shape(nodes, 20 if name == "stand" else 8)
    for number, steps in enumerate(_runs(name, target, shape, tokens)):
        for draft_shape, step in steps:
            rounds += 1
            paths = rank_paths(draft_shape)
            counts.update(paths[node] for node in step.path)
        report(f"run {number + 1}: {rounds} rounds, {sum(counts.values()) / max(1, rounds):.2f} accepted a round")
    source = f"{len(CALIBRATION)} prompts, {rounds} rounds of {nodes} nodes on {target}"
    tree = from_counts(dict(counts), rounds, source)
    out = TREES / f"{name}.json"
    CalibratedTree(tree.paths[:KEPT], tree.chance[:KEPT], source).save(out)
    return out


class _Watched(Steady):
    """Remembers the shape of the last draft, which may be smaller than the static one."""

    shape: TreeShape

    def draft(self, context: object) -> Draft:
        drafted = super().draft(context)  # type: ignore[arg-type]
        self.shape = drafted.tree.shape
        return drafted


def _runs(name: str, target: str, shape: TreeShape, tokens: int) -> Iterator[list[tuple[TreeShape, Step]]]:
    """Decoded trajectories, each as (drafted shape, step) pairs."""
    matrix: SuccessorMatrix | None = None
    heat = 0.6 if name == "stand" else 0.0
    for prompt in CALIBRATION:
        ready = prepare(Request(name, prompt, target, max_new_tokens=tokens, temperature=heat, record="off"))
        store = NgramStore()
        matrix = matrix or SuccessorMatrix(ready.target.vocab_size)
        for seed in range(TRAJECTORIES if name == "stand" else 1):
            if name == "stand":
                controller = _Watched(NgramDrafter(store), Sampled(shape))
                yield _decode(ready, Composition(controller, Rejection()), controller, seed)
            else:
                controller = _Watched(Recycler(matrix), Static(shape))
                yield _decode(ready, Composition(controller, Match()), controller, seed)


def _decode(ready: Prepared, composition: Composition, controller: _Watched, seed: int) -> list[tuple[TreeShape, Step]]:
    decoding = ready.decoding(composition, seed, "tree", threading.Event())
    return [(controller.shape, step) for step in decoding.steps()]
