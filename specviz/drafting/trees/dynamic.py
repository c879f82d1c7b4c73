"""Dynamic draft trees (EAGLE-2): expand the best nodes level by level by the drafter's confidence, then rerank all candidates.

EAGLE-2 (Li et al., arXiv 2406.16858). A node's value is the product of the drafter's probabilities along its path, here as a sum
of logarithms. *Expand*: the ``width`` best nodes of a level form the beam, and each offers its ``width`` best children. A tree of
depth d has width + (d - 1) * width**2 candidates. *Rerank*: the candidates with the highest values are kept. The choice is
deterministic, so each child is a point mass, and the acceptance rule receives no distribution.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import numpy
import torch
from torch import Tensor

from specviz.drafting.levels import LevelDrafter, Levels
from specviz.engine.cost import DRAFT_COST, CostCurve
from specviz.engine.interfaces import Context, Draft
from specviz.engine.tiers import padded_width
from specviz.engine.tree import DraftTree
from specviz.trace.notes.drafts import GrowthNote, TreeDepth
from specviz.trace.schema import MAX_PRUNED, Note

MIN_LOG_PROBABILITY = math.log(1e-3)
"""Minimum log-probability at which a node can be worth its row in a pass."""

LOOKAHEAD = 3
"""Number of levels drafted on an accelerator before a stop rule is evaluated."""

MAX_NODES = 255
"""Maximum size of a tree whose size a policy chooses."""

MIN_CONFIDENCE_TEMPERATURE = 0.8
"""Minimum temperature of the drafter's confidence when it determines a tree's size.

A drafter trained on the target's distribution estimates the probability that the target samples a token. This is lower than the
probability that the token is the top one. On 34 held-out prompts, EAGLE-3's trees were predicted to gain 4 % with 0.8 instead of
1, and 3 % with 0.9 or 0.7. Timed on 18 other prompts, the gain was 1.5 %.
"""


def ahead_on(device: torch.device) -> int:
    """Return the number of levels drafted before a stop rule is evaluated."""
    return 1 if device.type == "cpu" else LOOKAHEAD


class Stop(Protocol):
    """Stop rule: decides after each level whether the tree goes deeper."""

    def tests(self, level: int) -> bool:
        """Whether the beam of this level is tested."""

    def met(self, beams: Sequence[Sequence[float]]) -> bool:
        """Whether to stop, given the log values of the beams so far, level 1 first."""

    def stop_note(self, beams: Sequence[Sequence[float]], stopped: bool, limit: int) -> Note:
        """Return the note on the decision; ``limit`` is the deepest possible level."""


class SizePolicy(Protocol):
    """Size policy: decides in each round how many candidates are kept."""

    def __call__(self, probabilities: Sequence[float], forwards: int) -> int:
        """Return the number of candidates to keep, from their acceptance probabilities, best first, and the number of drafter
        forwards."""


@dataclass(frozen=True)
class SpeedupPolicy:
    """Size policy ``argmax_n (1 + probability[0] + … + probability[n-1]) / (cost[n] + forwards * forward)``.

    ``cost[n]``: time of a target pass over the root and n drafted nodes. ``forward``: time of a drafter forward.
    """

    cost: numpy.ndarray
    forward: float

    @staticmethod
    def on(curve: CostCurve, tier: str = "eager", forward: float = DRAFT_COST, rows: int = 1) -> SpeedupPolicy:
        """Return the policy for a machine's cost curve. The graph tier pads a pass to the next of a few widths.

        ``forward``: cost of a drafter forward in one-token passes. ``rows``: rows of a pass per node.
        """
        row_counts = [rows * (1 + nodes) for nodes in range(MAX_NODES + 1)]
        widths = [padded_width(width) if tier == "graph" else width for width in row_counts]
        return SpeedupPolicy(numpy.array([curve.at(width) for width in widths]), forward * curve.at(1))

    def now(self) -> SpeedupPolicy:
        """Return the policy itself, since its costs are constant."""
        return self

    def __call__(self, probabilities: Sequence[float], forwards: int) -> int:
        return self._most(probabilities, self.forward * forwards)

    def fixed(self, depths: Sequence[int], probabilities: Sequence[float]) -> int:
        """Return the size for nodes in a fixed order, at these depths; a smaller tree may take fewer forwards."""
        forwards = numpy.maximum.accumulate([0, *depths])
        return self._most(probabilities[: len(forwards) - 1], self.forward * forwards[: len(self.cost)])

    def _most(self, probabilities: Sequence[float], drafting: float | numpy.ndarray) -> int:
        nodes = min(len(probabilities) + 1, len(self.cost))
        expected = numpy.cumsum([1.0, *probabilities[: nodes - 1]])
        spent = drafting[:nodes] if isinstance(drafting, numpy.ndarray) else drafting
        return int((expected / (self.cost[:nodes] + spent)).argmax())


class CurrentCosts:
    """Policy :class:`SpeedupPolicy` with costs updated in each round from the run's earlier steps.

    ``curve``: function that returns the cost of a pass by number of rows. ``forward``: function that returns the milliseconds of
    a drafter forward. ``tier``, ``rows``: as for :meth:`SpeedupPolicy.on`. ``once``: whether one forward yields all levels.
    """

    def __init__(
        self, curve: Callable[[], CostCurve], forward: Callable[[], float], tier: str = "eager", rows: int = 1, once: bool = False
    ) -> None:  # fmt: skip
        self._curve, self._forward, self._tier, self._rows, self._once = curve, forward, tier, rows, once
        self._known: tuple[CostCurve, float, SpeedupPolicy] | None = None

    def now(self) -> SpeedupPolicy:
        """Return the policy for the current costs; the same object until the costs change."""
        curve, forward = self._curve(), self._forward()
        if self._known is None or self._known[0] is not curve or self._known[1] != forward:
            costs = SpeedupPolicy.on(curve, self._tier, forward / curve.at(1), self._rows)
            self._known = curve, forward, SpeedupPolicy(costs.cost + costs.forward, 0.0) if self._once else costs
        return self._known[2]

    def __call__(self, probabilities: Sequence[float], forwards: int) -> int:
        return self.now()(probabilities, forwards)


@dataclass
class _Candidates:
    """Candidates of a round, in the order of expansion; entry 0 is the root."""

    tokens: list[int]
    parents: list[int] = field(default_factory=lambda: [-1])
    values: list[float] = field(default_factory=lambda: [0.0])
    probabilities: list[float] = field(default_factory=lambda: [1.0])
    beams: list[list[int]] = field(default_factory=lambda: [[0]])

    def expand(self, rows: Sequence[Sequence[float]], offers: Sequence[Sequence[int]], width: int) -> bool:
        """Append the children of the last beam's nodes, and choose the next beam. Returns whether there are children.

        ``rows``: log-probabilities [node, child] of the children. ``offers``: their tokens. Tokens of probability 0 are left out.
        """
        first = len(self.tokens)
        for parent, row, offered in zip(self.beams[-1], rows, offers, strict=False):
            above = self.values[parent]
            for child_log_q, token in zip(row, offered, strict=True):
                if child_log_q > -math.inf:
                    self.tokens.append(int(token))
                    self.parents.append(parent)
                    self.values.append(above + child_log_q)
                    self.probabilities.append(math.exp(child_log_q))
        if len(self.tokens) > first:
            self.beams.append(self.ranked(first)[:width])
        return len(self.tokens) > first

    def ranked(self, first: int = 1) -> list[int]:
        """Return the candidates from ``first`` on by value; the earlier one wins ties.

        A parent precedes its children, because its value is at least theirs and it was added earlier.
        """
        return sorted(range(first, len(self.tokens)), key=self.values.__getitem__, reverse=True)

    def beam_values(self) -> list[list[float]]:
        """Return the log values of each level's beam, level 1 first."""
        return [[self.values[node] for node in beam] for beam in self.beams[1:]]


@dataclass(frozen=True)
class _Beam:
    """A level on the device.

    ``found`` float64 [2, row, child]: log-probabilities and tokens of the children. The best children are the rows of the next
    level: ``tokens``, ``parents`` (rows of this level) and log ``values``. ``held``: keeps alive what a captured step reads.
    """

    found: Tensor
    tokens: Tensor
    parents: Tensor
    values: Tensor
    held: object


def likeliest(logits: Tensor, support: Tensor | None, width: int, temperature: float) -> tuple[Tensor, Tensor]:
    """Return log-probabilities, float64, and token ids of the top ``width`` tokens of each row, both [row, child].

    ``temperature``: that of the distribution. A log-probability rounded above 0 is clamped, so that no node's value exceeds its
    parent's.
    """
    wide = logits if logits.dtype == torch.float64 else logits.float()
    best = (wide if temperature == 1 else wide / temperature).log_softmax(-1).topk(min(width, wide.shape[-1]), dim=-1)
    ids = best.indices if support is None else support[best.indices]
    log_q = best.values.double().clamp_max(0.0).nan_to_num(-math.inf, 0.0, -math.inf)
    return log_q, ids


def _level(levels: Levels, above: _Beam | None, support: Tensor | None, width: int, temperature: float) -> _Beam:
    """Return the best children below each row of a beam, and the best of these as the next beam, on the device.

    Probabilities are the drafter's at ``temperature``. Rows are in the order of :meth:`_Candidates.expand`, which makes the same
    choice on the host.
    """
    logits = levels.first() if above is None else levels.below(above.tokens, above.parents)
    log_q, ids = likeliest(logits, support, width, temperature)
    values = (log_q if above is None else above.values[:, None] + log_q).flatten()
    ordered = values.sort(stable=True, descending=True)
    order = ordered.indices[:width]
    parents = order.div(log_q.shape[1], rounding_mode="floor")
    found = torch.stack((log_q, ids.double()))  # ids are exact in float64
    return _Beam(found, ids.flatten()[order], parents, ordered.values[:width], support)


class Dynamic:
    """Tree builder of EAGLE-2.

    ``depth``: deepest level, and number of drafter forwards per round unless ``stop`` ends a tree earlier. ``size``: number of
    nodes kept without the root, or a policy that chooses it. ``temperature_floor``: minimum temperature of the drafter's
    probabilities; 0 uses them unchanged, as published; by default 0 for a given number of nodes, else
    :data:`MIN_CONFIDENCE_TEMPERATURE`. ``chosen``: note on an optimised depth.

    ``read(found, tokens)``: function that copies the children of levels, each [2, row, child], to the host as nested lists. With
    the ``tokens`` of the beams, another model's pass over them can share the copy.
    """

    def __init__(
        self, depth: int, width: int, size: int | SizePolicy, stop: Stop | None = None, temperature_floor: float | None = None,
        chosen: TreeDepth | None = None
    ) -> None:  # fmt: skip
        self.depth, self.width, self.size, self.stop, self.chosen = depth, width, size, stop, chosen
        self.read: Callable[..., Any] = lambda found, tokens: torch.cat(found, dim=1).tolist()
        self.temperature_floor = (
            temperature_floor if temperature_floor is not None else 0.0 if isinstance(size, int) else MIN_CONFIDENCE_TEMPERATURE
        )

    def build(self, drafter: LevelDrafter, context: Context) -> Draft:
        limit = min(self.depth, context.max_depth - 1)
        candidates, stopped = self._grow(drafter, context, limit)
        ranked, calls, size = candidates.ranked(), drafter.calls(), self.size
        if not isinstance(size, int):
            worth = [
                math.exp(candidates.values[node]) for node in ranked[:MAX_NODES] if candidates.values[node] > MIN_LOG_PROBABILITY
            ]
            size = size(worth, len(candidates.beams) - 1)
        kept, pruned_nodes = [0, *sorted(ranked[:size])], list[int]()
        if context.record_notes:
            with context.untimed:  # nodes of beams first: only they have children, so parents are never missing
                beam_nodes = {node for nodes in candidates.beams for node in nodes}
                pruned_nodes = sorted(sorted(ranked[size:], key=lambda node: node not in beam_nodes)[:MAX_PRUNED])
        place = {node: number for number, node in enumerate([*kept, *pruned_nodes])}

        def make_notes() -> list[Note]:
            growth = GrowthNote(
                beams=[[place[node] for node in beam if node in place] for beam in candidates.beams],
                value=[candidates.values[node] for node in place],
                kept=len(kept),
                considered=len(candidates.tokens) - 1,
                depth=self.chosen,
            )
            notes = [growth.to_note(), *drafter.draft_notes(())]
            if self.stop and len(candidates.beams) > 1:
                notes.append(self.stop.stop_note(candidates.beam_values(), stopped, limit))
            return notes

        notes = context.notes(make_notes)
        placed = getattr(drafter, "placed", None)  # a drafter that reads its own outputs after the round
        if placed is not None:
            row_of = {node: (level, row) for level, beam in enumerate(candidates.beams) for row, node in enumerate(beam)}
            placed({place[node]: row_of[node] for node in kept if node in row_of})
        tokens, parents = candidates.tokens, [place.get(parent, -1) for parent in candidates.parents]
        confidence = [None, *(candidates.probabilities[node] for node in kept[1:])]
        tree = DraftTree.of([tokens[node] for node in kept], [parents[node] for node in kept], context.device)
        pruned = [(parents[node], tokens[node], candidates.probabilities[node]) for node in pruned_nodes]
        return Draft(tree, confidence=confidence, calls=calls, pruned=pruned, notes=notes)

    @torch.inference_mode()
    def _grow(self, drafter: LevelDrafter, context: Context, limit: int) -> tuple[_Candidates, bool]:
        """Return the candidates down to level ``limit``, and whether ``stop`` ended the tree.

        The candidates are copied to the host at the end, and before ``stop`` is evaluated. On an accelerator, drafting a level
        takes less time than copying it. A few levels are therefore drafted ahead, and dropped if the tree should have stopped.
        """
        candidates = _Candidates([context.ids[-1]])
        temperature = max(self.temperature_floor, context.warp.temperature) if self.temperature_floor else 1.0
        levels, ahead = drafter.levels(context) if limit > 0 else None, ahead_on(context.device)
        if levels is None:
            return candidates, False
        beam: _Beam | None = None
        waiting: list[_Beam] = []
        for level in range(1, 1 + min(limit, levels.deepest)):
            work = partial(_level, levels, beam, drafter.support, self.width, temperature)
            beam = levels.step((self.width, temperature), work)
            waiting.append(beam)
            if self.stop and level < limit and (self.stop.tests(level) if ahead == 1 else not level % ahead):
                ended, stopped = self._take(candidates, waiting, limit)
                if ended:
                    return candidates, stopped
                waiting = []
        return candidates, self._take(candidates, waiting, limit)[1]

    def _take(self, candidates: _Candidates, beams: Sequence[_Beam], limit: int) -> tuple[bool, bool]:
        """Add the drafted levels to the candidates. Returns whether the tree ends with one of them, and whether ``stop`` ended
        it."""
        log_q, tokens = self.read([beam.found for beam in beams], [beam.tokens for beam in beams]) if beams else ((), ())
        row = 0
        for beam in beams:
            if not candidates.expand(log_q[row:], tokens[row:], self.width):
                return True, False
            row += beam.found.shape[1]
            deeper = len(candidates.beams) <= limit
            if self.stop and deeper and self.stop.met(candidates.beam_values()):
                return True, True
        return False, False
