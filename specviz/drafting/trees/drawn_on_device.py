"""Trees of drawn tokens decided where the drafter is: as ``drawn`` grows them, with one copy to the host.

Same trees from the same noise: each level is drawn from, and what it gets of the tree's places decided, by tensors of one shape
in every round. Rows that stand for nothing are asked and not used, and so are levels that the tree turns out not to reach. Axis
names: ``row`` (of a level), ``child`` (of a row, in draw order), ``offer`` (a child that may be drawn, best first), ``place`` (of
the tree, the root not counted), ``support``.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from heapq import heappop, heappush
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from specviz.drafting.levels import Levels
from specviz.drafting.trees.gains import UNSEEN, decay, gain_of_each, gains, gains_of_rows
from specviz.drafting.trees.sampled import Growing, NodeNoise
from specviz.engine.interfaces import Context, Pick, Proposal
from specviz.engine.sampling import DRAFT, Warp, counters, exponentials_of
from specviz.engine.to_device import to_device

if TYPE_CHECKING:
    from specviz.drafting.trees.dynamic import SpeedupMaximising


@lru_cache(maxsize=64)
def expected_below(levels: int, width: int, most: int) -> tuple[list[float], list[int]]:
    """What may be expected of a node that is reached for certain and has so many levels below it: the probabilities that it and
    its descendants are reached, the ``most`` likeliest, best first, and how far below it each is."""
    typical, waiting = gains(UNSEEN, width), [(-1.0, 0)]
    values: list[float] = []
    depths: list[int] = []
    while waiting and len(values) < most:
        value, depth = heappop(waiting)
        values.append(-value)
        depths.append(depth)
        if depth < levels:
            for share in typical:
                heappush(waiting, (value * share, depth + 1))
    return values, depths


@dataclass(frozen=True)
class _Constants:
    """The same in every round: by level (from 1) :func:`expected_below` it, float64 and int64 [descendant]; each child's factor
    of :func:`gains_of_rows` [child]; and numbers from 0."""

    below: Sequence[tuple[Tensor, Tensor]]
    decay: Tensor
    numbers: Tensor


@dataclass(frozen=True)
class _Beam:
    """Rows to be asked: tokens, parents (rows of the level above), nodes, probabilities that they are reached, and whether a row
    stands for a node at all."""

    tokens: Tensor
    parents: Tensor
    nodes: Tensor
    reach: Tensor
    alive: Tensor


@dataclass(frozen=True)
class _Places:
    """The tree so far: probabilities that its nodes are reached, and their depths [place + 1], of which ``count`` [] count; the
    last entry is for whatever is in no place."""

    values: Tensor
    depths: Tensor
    count: Tensor


@dataclass(frozen=True)
class _Level:
    """A level as it was drawn. ``host_facts`` [row, 2 * child + 3] is what the host has to know: tokens, the drafter's
    probabilities, how many of the children are in the tree, which node the row is, and whether it is any. ``held`` is what a
    recorded step reads and nobody else keeps."""

    q: Tensor
    perturbed: Tensor
    order: Tensor
    host_facts: Tensor
    places: _Places
    beam: _Beam
    held: Tensor


@dataclass
class DrawnOnDevice:
    """At most ``depth`` levels, each node's children at most ``width``, ``places`` nodes in all, or as many of these as pay for
    themselves."""

    depth: int
    width: int
    places: int
    _known: dict[Hashable, _Constants] = field(default_factory=dict)
    _costs: tuple[SpeedupMaximising, Tensor] | None = None

    @torch.inference_mode()
    def grow(
        self, levels: Levels | None, support: Tensor | None, context: Context, pays: SpeedupMaximising | None
    ) -> tuple[Growing, list[list[int]], list[float]]:  # fmt: skip
        """The tree, the nodes of the beam at each of its levels, and the probability that each node is reached. ``pays`` weighs
        its size, None makes it as large as there are places."""
        growing, deepest = Growing([context.ids[-1]]), min(self.depth, context.max_depth - 1)
        if levels is None or deepest < 1:
            return growing, [[0]], [1.0]
        constants, keys = self._constants(deepest, context.device), levels.given("drawn", self._keys(context))
        # Costs change from run to run and within one: they are an input of what is captured, no part of it.
        costs = None if pays is None else levels.given("costs", self._paid(pays, context.device))
        name = ("drawn", context.warp, self.width, self.places, deepest, pays is None)
        drawn: list[_Level] = []
        for level in range(1, 1 + min(deepest, levels.deepest)):
            above = drawn[-1] if drawn else None
            work = partial(self._level, levels, level, above, support, context.warp, constants, keys, costs)
            drawn.append(levels.step(name, work))
        return growing, *_hang(growing, drawn, support)

    def _keys(self, context: Context) -> Tensor:
        """What the noise of each node starts from, and last that of the block which nodes share, int64 [place + 2]."""
        nodes = [(context.round, node) for node in range(1 + self.places)]
        return context.noise.keys(DRAFT, [*nodes, (context.round,)], context.device)

    def _constants(self, deepest: int, device: torch.device) -> _Constants:
        if (deepest, device) not in self._known:
            below = [expected_below(deepest - level, self.width, self.places) for level in range(1, 1 + deepest)]
            self._known[deepest, device] = _Constants(
                [(to_device(values, device, torch.float64), to_device(depths, device)) for values, depths in below],
                to_device(decay(self.width), device, torch.float64),
                torch.arange(max(self.places, self.width), device=device),
            )
        return self._known[deepest, device]

    def _paid(self, pays: SpeedupMaximising, device: torch.device) -> Tensor:
        """What a tree of so many nodes costs, and last a drafter forward, float64 [place + 2]."""
        if self._costs is None or self._costs[0] is not pays:
            numbers = [*pays.cost[: self.places + 1].tolist(), pays.forward]
            self._costs = pays, to_device(numbers, device, torch.float64)
        return self._costs[1]

    def _level(
        self, levels: Levels, level: int, above: _Level | None, support: Tensor | None, warp: Warp, constants: _Constants,
        keys: Tensor, costs: Tensor | None,
    ) -> _Level:  # fmt: skip
        """The next level: children drawn from each row's distribution, those that the tree has places for, and the beam of
        these. How many of a row's children are in the tree depends on distributions and on what was drawn above, never on which
        they are."""
        if above is None:
            nodes = keys.new_zeros(1)
            values = torch.zeros(self.places + 1, dtype=torch.float64, device=keys.device)
            beam = _Beam(nodes, nodes, nodes, values.new_ones(1), nodes == 0)
            places = _Places(values, keys.new_zeros(self.places + 1), keys.new_zeros(()))
            logits = levels.first()
        else:
            beam, places = above.beam, above.places
            logits = levels.below(beam.tokens, beam.parents)
        q = warp.log_probabilities(logits).exp()
        noise, held = _noise(keys, beam.nodes, q.shape[1])
        perturbed = q.double().log() + noise
        order = perturbed.topk(min(self.width, q.shape[1])).indices
        shares = gains_of_rows(q.amax(1).double(), constants.decay[: order.shape[1]])
        offered = constants.numbers[: order.shape[1]] < (q > 0).sum(1, keepdim=True)
        offers = torch.where(offered & beam.alive[:, None], beam.reach[:, None] * shares, -1.0).flatten()
        best = offers.sort(stable=True, descending=True)
        wanted, deeper = self._planned(best.values, places, level, constants, costs)
        chosen = torch.zeros_like(wanted).scatter(0, best.indices, wanted)
        tokens = order if support is None else support[order]
        confidence = q.gather(1, order).double()  # as ids are exact in a double
        facts = torch.stack((chosen.view_as(order).sum(1), beam.nodes, beam.alive.long()), dim=1)
        host_facts = torch.cat((tokens.double(), confidence, facts.double()), dim=1)
        places, below = self._placed(offers.view_as(order), chosen, confidence, tokens, beam, places, level)
        below = replace(below, alive=below.alive & deeper)
        return _Level(q, perturbed, order, host_facts, places, below, held)

    def _planned(
        self, best: Tensor, places: _Places, level: int, constants: _Constants, costs: Tensor | None
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """Which of the ``best`` offers [offer] are to be drawn, and whether to go deeper: as the host's ``Drawn._planned``, whose
        queue of offers and what may be expected below them comes out in the order of their values."""
        below, further = constants.below[level - 1]
        together = (best[: self.places, None] * below).flatten()
        most = min(self.places, len(together))
        queue = together.topk(most)
        place = constants.numbers[: self.places]
        queued = (place - places.count).clamp(0, most - 1)
        own, old = queue.indices % len(below) == 0, place < places.count
        values = torch.where(old, places.values[:-1], queue.values[queued])
        exists = old | ((place - places.count < most) & (values > 0))
        if costs is not None:
            depths = torch.where(old, places.depths[:-1], level + further[queue.indices[queued] % len(below)])
            expected = 1 + values.cumsum(0)
            paid = costs[1:-1] + costs[-1] * depths.cummax(0).values
            ratios = torch.where(exists, expected / paid, -1.0)
            size = torch.cat((1 / costs[:1], ratios)).argmax()
            exists = exists & (place < size)
        fresh = exists & ~old
        drawn = fresh & own[queued]
        count = drawn.sum()
        wanted = torch.arange(len(best), device=best.device) < count
        return wanted, fresh.sum() > count

    def _placed(
        self, offers: Tensor, chosen: Tensor, confidence: Tensor, tokens: Tensor, beam: _Beam, places: _Places, level: int
    ) -> tuple[_Places, _Beam]:  # fmt: skip
        """The tree with the ``chosen`` children [row * child], numbered row by row, and the likeliest of them as the next beam.
        One that was drawn first is worth what its own probability says, known by now."""
        first = beam.reach[:, None] * gain_of_each(confidence[:, :1])
        reach = torch.cat((first, offers[:, 1:]), dim=1).flatten()
        place = places.count + chosen.cumsum(0) - 1
        entry = torch.where(chosen, place, self.places)
        values = places.values.scatter(0, entry, reach)
        depths = places.depths.index_fill(0, entry, level)
        kept = _Places(values, depths, places.count + chosen.sum())
        ranked = torch.where(chosen, reach, -1.0).sort(stable=True, descending=True)
        none = len(reach)
        slots = torch.where(ranked.values > 0, ranked.indices, none)[: self.width].sort().values
        alive, slots = slots < none, slots.clamp_max(none - 1)
        parents = slots.div(offers.shape[1], rounding_mode="floor")
        return kept, _Beam(tokens.flatten()[slots], parents, (place[slots] + 1).clamp_max(self.places), reach[slots], alive)


def _noise(keys: Tensor, nodes: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Gumbel noise [row, support] of these nodes, the numbers that :class:`NodeNoise` gives them, and what it was made from."""
    if size > NodeNoise.WIDTH:
        counts = counters(size, keys.device)
        return exponentials_of(keys[nodes], counts).log_().neg_(), counts
    counts = counters((len(keys) - 1) * NodeNoise.WIDTH, keys.device)
    block = exponentials_of(keys[-1:], counts).log_().neg_().view(-1, NodeNoise.WIDTH)
    return block[nodes, :size], counts


def _hang(growing: Growing, drawn: Sequence[_Level], support: Tensor | None) -> tuple[list[list[int]], list[float]]:
    """Take over what was drawn, in one copy."""
    last = drawn[-1]
    waiting = last.beam.nodes * last.beam.alive  # where a drafter can go no further, a beam that nobody asked for
    parts = [*(level.host_facts.flatten() for level in drawn), last.places.values, waiting.double()]
    *host_facts, reach, unasked = torch.cat(parts).cpu().split([len(part) for part in parts])
    beams: list[list[int]] = []
    for level, numbers in zip(drawn, host_facts, strict=True):
        rows, children, beam = numbers.view(len(level.q), -1).tolist(), level.order.shape[1], []
        for row, (*listed, count, node, alive) in enumerate(rows):
            if alive:
                beam.append(int(node))
            if count:
                picked = int(count)
                pick = Pick(int(node), Proposal(level.q[row], support), level.perturbed[row], level.order[row], picked)
                tokens = [int(token) for token in listed[:picked]]
                growing.add(int(node), pick, tokens, listed[children : children + picked], greedy=False)
        beams.append(beam)
    beams.append([int(node) for node in unasked.tolist() if node])
    return [beam for beam in beams if beam], [1.0, *reach.tolist()[: len(growing.tokens) - 1]]
