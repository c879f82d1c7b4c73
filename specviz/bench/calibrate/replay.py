"""Calibration of STAND's and Token Recycling's trees: counts of correct rank paths in a replay of the target's own texts.

STAND (arXiv 2506.04708) decodes with a tree of 625 nodes and keeps the 80 accepted most often; Token Recycling
(arXiv 2408.08696) searches similarly. Here the target decodes autoregressively, and the top tokens of every position are stored.
A drafter that has seen only the text so far then ranks the following tokens. The ranks give the counts of all paths at once,
without verifying a wide tree.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from specviz.acceptance.match import Match
from specviz.drafting.runtimes.null import NullDrafter
from specviz.drafting.trees.calibrated import CalibratedTree, from_counts
from specviz.drafting.trees.root import RootOnly
from specviz.engine.interfaces import Composition, Round, SingleDrafter
from specviz.engine.sampling import DRAFT, Noise, Warp
from specviz.errors import BadInput
from specviz.methods.resources import TREES
from specviz.methods.stand.ngram_store import NgramStore, best_tokens, warped
from specviz.methods.token_recycling.successors import SuccessorMatrix, top_successors
from specviz.pipeline.request import Request
from specviz.pipeline.runner import Prepared, prepare
from specviz.prompts import prompts

CALIBRATION = prompts("calibration")

MOST_PATHS = 80
TRAJECTORIES = 3
STAND_HEAT = 0.6
DEEPEST = {"stand": 16, "token_recycling": 8}
RankPath = tuple[int, ...]


@dataclass(frozen=True)
class MatchedRanks:
    """Ranks of the tokens after a position.

    ``evidence``: number of context tokens that the drafter matched at the position; 0: unknown.
    """

    path: RankPath
    evidence: int = 0


@dataclass
class Tally:
    """Counts of correct rank paths over ``places`` positions."""

    counts: Counter[RankPath] = field(default_factory=Counter)
    places: int = 0

    def add(self, path: RankPath) -> None:
        """Count one position, and the correct ``path`` with all prefixes."""
        self.places += 1
        self.counts.update(path[:depth] for depth in range(1, len(path) + 1))

    def tree(self, source: str) -> CalibratedTree:
        """Return the tree of the most likely paths."""
        tree = from_counts(dict(self.counts), self.places, f"{source}, {self.places} positions")
        return CalibratedTree(tree.paths[:MOST_PATHS], tree.probability[:MOST_PATHS], tree.source)


@dataclass
class Text:
    """One text by the target.

    ``rows`` [position]: probabilities of the most likely tokens, by token. ``successors`` [position]: the most likely tokens.
    """

    prompt: list[int]
    output: list[int]
    rows: list[dict[int, float]]
    successors: list[list[int]]


class RowRecorder(NullDrafter):
    """Drafter that proposes nothing and stores the target's top tokens at every position."""

    def __init__(self) -> None:
        self.rows: list[dict[int, float]] = []
        self.successors: list[list[int]] = []

    def observe(self, finished: Round) -> None:
        self.rows += best_tokens(finished.target.logits[:1])
        self.successors += top_successors(finished.target.logits[:1]).tolist()


def run(name: str, target: str, tokens: int = 96, report: Callable[[str], None] = print) -> Path:
    """Calibrate the method ``name`` on ``target``; write ``assets/trees/NAME.json`` and return the path.

    Raises BadInput if ``name`` has no tree to calibrate.
    """
    if name not in DEEPEST:
        raise BadInput(f"{name} has no tree to calibrate; choose {' or '.join(DEEPEST)}.")
    tallies: defaultdict[int, Tally] = defaultdict(Tally)
    replay = replay_stand if name == "stand" else replay_recycling
    temperature, tries = (STAND_HEAT, TRAJECTORIES) if name == "stand" else (0.0, 1)
    for number, prompt in enumerate(CALIBRATION, start=1):
        ready = prepare(Request("autoregressive", prompt, target, max_new_tokens=tokens, temperature=temperature))
        for followed in replay([_write(ready, seed) for seed in range(tries)]):
            if followed is not None:  # None: the drafter had no match, so every tree would draft nothing
                tallies[0].add(followed.path)
                if followed.evidence:
                    tallies[followed.evidence].add(followed.path)
        whole = tallies[0]
        reached = whole.counts.total() / max(1, whole.places)
        report(f"prompt {number} of {len(CALIBRATION)}: {whole.places} positions, {reached:.2f} tokens matched at each")
    source = f"{len(CALIBRATION)} prompts, {target}"
    trees = {evidence: tally.tree(source) for evidence, tally in sorted(tallies.items())}
    out = TREES / f"{name}.json"
    trees.pop(0).save(out, trees)
    return out


def _write(ready: Prepared, seed: int) -> Text:
    listener = RowRecorder()
    composition = Composition(SingleDrafter(listener, RootOnly()), Match())
    decoding = ready.decoding(composition, seed)
    for _ in decoding.steps():
        pass
    return Text(ready.prompt_ids, decoding.outcome.output_ids, listener.rows, listener.successors)


def replay_recycling(texts: Sequence[Text]) -> Iterator[MatchedRanks | None]:
    """Yield the ranks of the following tokens at every position, in a matrix built from the same text up to that position.

    Yields None where the matrix has no row for the last token.
    """
    for text in texts:
        matrix = SuccessorMatrix(1 + max(max(row) for row in [text.prompt, text.output, *text.successors]))
        last = text.prompt[-1]
        for place, row in enumerate(text.successors):
            yield MatchedRanks(_recycled_path(text.output[place:], last, matrix)) if matrix.read(last) else None
            matrix.write([last], torch.tensor([row]))
            last = text.output[place]


def _recycled_path(following: Sequence[int], token: int, matrix: SuccessorMatrix) -> RankPath:
    path: list[int] = []
    for expected in following[: DEEPEST["token_recycling"]]:
        ranked = matrix.read(token)
        if expected not in ranked:
            break
        path.append(ranked.index(expected))
        token = expected
    return tuple(path)


def replay_stand(texts: Sequence[Text]) -> Iterator[MatchedRanks | None]:
    """Like :func:`replay_recycling`, for STAND's n-gram store; the first half of the first trajectory only fills the store.

    The rank of a token is the place in the order of sampling without replacement (Gumbel-top-k).
    """
    store, warp = NgramStore(), Warp(STAND_HEAT)
    for number, text in enumerate(texts):
        for place, row in enumerate(text.rows):
            before = [*text.prompt, *text.output[:place]]
            if number or place >= len(text.output) // 2:  # a nearly empty store says nothing about tree shapes
                known, noise = store.order_at(before), Noise(number * 100_003 + place)
                yield MatchedRanks(_drawn_path(text.output[place:], before, store, warp, noise), known) if known else None
            store.learn(before, row)


def _drawn_path(following: Sequence[int], before: list[int], store: NgramStore, warp: Warp, noise: Noise) -> RankPath:
    path: list[int] = []
    text = list(before[-8:])
    for depth, expected in enumerate(following[: DEEPEST["stand"]]):
        entry = store.lookup(text)
        if entry is None:
            break
        distribution = entry[1].distribution
        perturbed = torch.tensor(warped(distribution, warp), dtype=torch.float64).log() + noise.gumbel(
            len(distribution), DRAFT, depth
        )
        order = [list(distribution)[rank] for rank in perturbed.argsort(descending=True).tolist()]
        if expected not in order:
            break
        path.append(order.index(expected))
        text.append(expected)
    return tuple(path)
