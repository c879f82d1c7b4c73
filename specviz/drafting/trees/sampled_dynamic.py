"""Sampled dynamic trees: grown by the drafter's confidence like EAGLE-2's trees, but with sampled children.

The target verifies the children against the distribution that they were sampled from. Under sampling, it accepts far more of
them than of the drafter's top tokens. Rejection sampling without replacement (SpecInfer, arXiv 2305.09781; EAGLE, arXiv
2401.15077) requires that offering a child does not depend on the sampled token. The number of a node's children is therefore
fixed before sampling, from distributions and the tokens above; children are never pruned, and trees are not reranked.

Each level is sampled and numbered on the drafter's device, with one copy to the host at the end. On an accelerator, a level has
the same shape in each round, padding included. Levels beyond the tree are computed too, which is cheaper than a copy to the host.
A CPU computes only the rows it needs.

Axis names: ``row`` (of a level), ``child`` (of a row, in sampling order), ``offer`` (possible child, best first), ``place``
(index in the tree without the root), ``support``.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from heapq import heappop, heappush
from typing import NamedTuple

import torch
from torch import Tensor

from specviz.drafting.levels import LevelDrafter, Levels
from specviz.drafting.networks.head_config import CERTAINTY
from specviz.drafting.trees.dynamic import CurrentCosts, SpeedupPolicy
from specviz.drafting.trees.sampled import NodeNoise, TreeInProgress
from specviz.engine.interfaces import Context, Draft, Pick, Proposal
from specviz.engine.sampling import DRAFT, Warp, counters, exponentials_of, keys_below
from specviz.engine.to_device import to_device
from specviz.engine.tree import DraftTree
from specviz.trace.notes.drafts import GrowthNote

MOST = 64
"""Maximum number of nodes of a tree whose size is not given."""
_FIRST, _LATER, _DECAY, _OWN = (0.26, 0.66), (0.09, 0.33), 0.62, (0.22, 0.72)


def decay(width: int) -> list[float]:
    """Return each child's factor in :func:`expected_acceptance`, [child]."""
    return [1.0, *(_DECAY ** (rank - 1) for rank in range(1, width))]


def expected_acceptance(likeliest: Tensor, decayed: Tensor) -> Tensor:
    """Return the probability that a node's first, second, … sampled child is the accepted one, float64 [row, child].

    ``likeliest`` [row]: the drafter's probability of its top token. ``decayed``: :func:`decay` [child].

    A linear fit to measurements of EAGLE's and EAGLE-3's heads at temperature 1 on sixty held-out answers. The first child is
    accepted with probability 0.30 if the top token's is below 0.1, and 0.94 if it is above 0.9. For the second child, after the
    first was rejected, these are 0.08 and 0.37. The values affect only the size of trees.
    """
    first, later = (start + slope * likeliest[:, None] for start, slope in (_FIRST, _LATER))
    accepted = torch.cat((first, later.expand(-1, len(decayed) - 1)), dim=1) * decayed
    left = (1 - accepted).cumprod(1)
    return accepted * torch.cat((torch.ones_like(first), left[:, :-1]), dim=1)


def first_acceptance(probability: Tensor) -> Tensor:
    """Return the acceptance probability, float64, of a first child with this drafter ``probability``; measured as in
    :func:`expected_acceptance`.
    """
    return (_OWN[0] + _OWN[1] * probability.sqrt()).clamp_max(1.0)


@lru_cache(maxsize=64)
def expected_below(levels: int, width: int, most: int, certainty: float) -> tuple[list[float], list[int]]:
    """Return the probabilities, best first, that a node and its expected descendants are reached, given that the node is reached.

    Returns at most ``most`` values, the node itself first, and their depths below the node, at most ``levels``. ``certainty``:
    assumed probability of each descendant's top token.
    """
    decayed = torch.tensor(decay(width), dtype=torch.float64)
    typical = expected_acceptance(decayed.new_tensor([certainty]), decayed)[0].tolist()
    waiting = [(-1.0, 0)]
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
    """Constants of all rounds.

    ``below``: :func:`expected_below` for each level from 1, float64 and int64 [descendant]. ``decay``: :func:`decay` [child].
    ``numbers``: the integers from 0.
    """

    below: Sequence[tuple[Tensor, Tensor]]
    decay: Tensor
    numbers: Tensor


class _Beam(NamedTuple):
    """Rows of a level: tokens, parents (rows of the level above), nodes, probabilities of being reached, and whether a row is
    not padding.
    """

    tokens: Tensor
    parents: Tensor
    nodes: Tensor
    reach: Tensor
    alive: Tensor


@dataclass(frozen=True)
class _Places:
    """Tree so far: probabilities ``values`` that its nodes are reached, and ``depths``, both [place + 1].

    The first ``count`` [] entries are valid; the last entry receives children outside the tree.
    """

    values: Tensor
    depths: Tensor
    count: Tensor


@dataclass(frozen=True)
class _Level:
    """Sampled level, and the ``beam`` below it.

    ``host_facts`` [row, 2 * child + 3], copied to the host: tokens, drafter probabilities, number of children in the tree, the
    row's node, and whether the row is a node rather than padding. ``held``: keeps alive what a captured step reads.
    """

    q: Tensor
    perturbed: Tensor
    order: Tensor
    host_facts: Tensor
    places: _Places
    beam: _Beam
    held: object


class SampledDynamicTree:
    """Tree builder that samples up to ``width`` children per node without replacement, in up to ``depth`` levels.

    ``size``: total number of nodes without the root, or a policy that chooses the numbers of nodes and levels in each round.
    ``certainty``: assumed probability of the top token where the drafter has not been run yet.
    """

    def __init__(
        self, depth: int, width: int, size: int | SpeedupPolicy | CurrentCosts, certainty: float = CERTAINTY
    ) -> None:  # fmt: skip
        self.depth, self.width, self._size, self._certainty = depth, width, size, certainty
        self.places = size if isinstance(size, int) else MOST
        self._known: dict[Hashable, _Constants] = {}
        self._costs: tuple[SpeedupPolicy, Tensor] | None = None

    def build(self, drafter: LevelDrafter, context: Context) -> Draft:
        growing = TreeInProgress([context.ids[-1]])
        beams, reach = self._grow(growing, drafter, context)
        tree, calls = DraftTree.of(growing.tokens, growing.parents, context.device), drafter.calls()
        growth = GrowthNote(beams, [math.log(value) for value in reach], kept=len(reach), considered=len(reach) - 1)
        notes = context.notes(lambda: (growth.to_note(), *drafter.draft_notes(growing.picks)))
        return Draft(tree, growing.proposals, growing.confidence, calls, notes=notes)

    @torch.inference_mode()
    def _grow(self, growing: TreeInProgress, drafter: LevelDrafter, context: Context) -> tuple[list[list[int]], list[float]]:
        """Grow the tree. Returns the nodes of each level's beam, and the probability that each node is reached."""
        deepest, policy = min(self.depth, context.max_depth - 1), None if isinstance(self._size, int) else self._size.now()
        levels = drafter.levels(context) if deepest > 0 else None
        if levels is None:
            return [[0]], [1.0]
        constants = self._constants(deepest, context.device)
        key = levels.given("drawn", context.noise.keys(DRAFT, [(context.round,)], context.device))
        # Costs change between and within runs, so a captured step takes them as an input.
        costs = None
        if policy:  # cost of a tree by number of nodes, then the cost of a drafter forward, float64 [place + 2]
            if not self._costs or self._costs[0] is not policy:
                numbers = [*policy.cost[: self.places + 1].tolist(), policy.forward]
                self._costs = policy, to_device(numbers, context.device, torch.float64)
            costs = levels.given("costs", self._costs[1])
        name = ("drawn", context.warp, self.width, self.places, deepest, policy is None)
        drawn: list[_Level] = []
        for level in range(1, 1 + min(deepest, levels.deepest)):
            above = drawn[-1] if drawn else None
            work = partial(self._level, levels, level, above, drafter.support, context.warp, constants, key, costs)
            drawn.append(levels.step(name, work))
            if context.device.type == "cpu":
                drawn[-1] = replace(drawn[-1], beam=_without_padding(drawn[-1].beam))
            if not len(drawn[-1].beam.nodes):
                break
        return _hang(growing, drawn, drafter.support)

    def _constants(self, deepest: int, device: torch.device) -> _Constants:
        if (deepest, device) not in self._known:
            below = [expected_below(left, self.width, self.places, self._certainty) for left in reversed(range(deepest))]
            self._known[deepest, device] = _Constants(
                [(to_device(values, device, torch.float64), to_device(depths, device)) for values, depths in below],
                to_device(decay(self.width), device, torch.float64),
                torch.arange(max(self.places, self.width), device=device),
            )
        return self._known[deepest, device]

    def _level(
        self, levels: Levels, level: int, above: _Level | None, support: Tensor | None, warp: Warp, constants: _Constants,
        key: Tensor, costs: Tensor | None,
    ) -> _Level:  # fmt: skip
        """Return the next level: children sampled from each row's distribution, and the beam of those in the tree.

        How many children of a row enter the tree depends on distributions and on the tokens above, never on the sampled children.
        """
        if above is None:
            nodes = key.new_zeros(1)
            values = torch.zeros(self.places + 1, dtype=torch.float64, device=key.device)
            beam = _Beam(nodes, nodes, nodes, values.new_ones(1), nodes == 0)
            places = _Places(values, key.new_zeros(self.places + 1), key.new_zeros(()))
            logits = levels.first()
        else:
            beam, places = above.beam, above.places
            logits = levels.below(beam.tokens, beam.parents)
        q = warp.log_probabilities(logits).exp()
        perturbed, order, held = _perturb(q, key, beam.nodes, self.width, self.places)
        shares = expected_acceptance(q.amax(1).double(), constants.decay[: order.shape[1]])
        offered = constants.numbers[: order.shape[1]] < (q > 0).sum(1, keepdim=True)
        offers = torch.where(offered & beam.alive[:, None], beam.reach[:, None] * shares, -1.0).flatten()
        best = offers.sort(stable=True, descending=True)
        wanted, deeper = self._select_offers(best.values, places, level, constants, costs)
        chosen = torch.zeros_like(wanted).scatter(0, best.indices, wanted)
        tokens = order if support is None else support[order]
        confidence = q.gather(1, order).double()  # float64, in which ids are exact
        facts = torch.stack((chosen.view_as(order).sum(1), beam.nodes, beam.alive.long()), dim=1)
        host_facts = torch.cat((tokens.double(), confidence, facts.double()), dim=1)
        places, below = self._add_to_tree(offers.view_as(order), chosen, confidence, tokens, beam, places, level)
        below = below._replace(alive=below.alive & deeper)
        return _Level(q, perturbed, order, host_facts, places, below, (held, support, constants))

    def _select_offers(
        self, best: Tensor, places: _Places, level: int, constants: _Constants, costs: Tensor | None
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """Return a mask of the ``best`` offers [offer] that enter the tree, and whether to grow another level.

        Offers and the nodes expected below them compete for the free places by value. With ``costs``, the tree has the size
        with the largest expected length per unit of time.
        """
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

    def _add_to_tree(
        self, offers: Tensor, chosen: Tensor, confidence: Tensor, tokens: Tensor, beam: _Beam, places: _Places, level: int
    ) -> tuple[_Places, _Beam]:  # fmt: skip
        """Return the tree with the ``chosen`` children [row * child], numbered row by row, and the most probable of them as a
        beam.

        The probability of a first sampled child is updated from the drafter's probability of its token.
        """
        first = beam.reach[:, None] * first_acceptance(confidence[:, :1])
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


def _without_padding(beam: _Beam) -> _Beam:
    """Return the beam without the padding rows, which come last."""
    rows = int(beam.alive.sum())
    return _Beam(*(part[:rows] for part in beam))


def _perturb(q: Tensor, key: Tensor, nodes: Tensor, width: int, places: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return log q [row, support] plus Gumbel noise, the indices of the ``width`` largest, and the counters that generated the
    noise.

    The largest are samples without replacement, in sampling order. ``key`` [1]: key of the round. Small supports share a block of
    noise for all ``places``.
    """
    size = q.shape[1]
    if size > NodeNoise.WIDTH:
        counts = counters(size, key.device)
        noise = exponentials_of(keys_below(key, nodes), counts).log_().neg_()
    else:
        counts = counters((1 + places) * NodeNoise.WIDTH, key.device)
        noise = exponentials_of(key, counts).log_().neg_().view(-1, NodeNoise.WIDTH)[nodes, :size]
    perturbed = q.double().log() + noise
    return perturbed, perturbed.topk(min(width, size)).indices, counts


def _hang(growing: TreeInProgress, drawn: Sequence[_Level], support: Tensor | None) -> tuple[list[list[int]], list[float]]:
    """Append the sampled levels to the tree, with one copy to the host. Returns the nodes of each beam and their reach
    probabilities."""
    last = drawn[-1]
    waiting = last.beam.nodes * last.beam.alive  # a beam below which the drafter cannot continue
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
                tokens = list(map(int, listed[:picked]))
                growing.add(int(node), pick, tokens, listed[children : children + picked], greedy=False)
        beams.append(beam)
    beams.append([int(node) for node in unasked.tolist() if node])
    return [beam for beam in beams if beam], [1.0, *reach.tolist()[: len(growing.tokens) - 1]]
