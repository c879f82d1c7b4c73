"""Sampled trees: chains, and siblings sampled without replacement by Gumbel-Top-K from the drafter's distribution.

The top k of log q + Gumbel noise are k samples without replacement, in sampling order (Kool et al., arXiv 1903.06059). STAND
samples in parallel in this way (arXiv 2506.04708). The noise is keyed by round, so rounds do not share noise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol, cast

import torch
from torch import Tensor

from specviz.drafting.levels import LevelDrafter, Levels
from specviz.engine.interfaces import Context, Draft, Pick, Proposal
from specviz.engine.sampling import DRAFT, Warp, counters, exponentials_of
from specviz.engine.to_device import device_cache, to_device
from specviz.engine.tree import DraftTree, TreeShape
from specviz.trace.schema import Note

SHOWN = 12
WIDE = 1024
"""Maximum support size at which the nodes of a level share one block of noise."""


class Rows(Protocol):
    """Drafter that reads the tree's tokens on the host and returns the distributions of its nodes' children."""

    def rows(
        self, context: Context, tokens: Sequence[int], parents: Sequence[int], nodes: Sequence[int]
    ) -> list[Proposal | None]:
        """Return, for each of ``nodes`` in the tree so far, the warped distribution of its children, or None."""

    def calls(self) -> int:
        """Return the number of drafter forwards since the last call."""

    def draft_notes(self, picks: Sequence[Pick]) -> tuple[Note, ...]:
        """Return notes on the picked children."""


@dataclass
class TreeInProgress:
    """Tree under construction."""

    tokens: list[int]
    parents: list[int] = field(default_factory=lambda: [-1])
    confidence: list[float | None] = field(default_factory=lambda: [None])
    proposals: dict[int, Proposal] = field(default_factory=dict)
    picks: list[Pick] = field(default_factory=list)

    def add(self, node: int, pick: Pick, tokens: Sequence[int], shares: Sequence[float], greedy: bool) -> list[int]:
        """Append the picked children of ``node``, given as tokens and probabilities on the host. Returns their indices."""
        fresh = list(range(len(self.tokens), len(self.tokens) + len(tokens)))
        self.tokens += [int(token) for token in tokens]
        self.parents += [node] * len(tokens)
        self.confidence += [float(q) for q in shares]
        self.picks.append(pick)
        if not greedy:
            # The acceptance rule may use only distributions that children were sampled from.
            self.proposals[node] = pick.proposal
        return fresh


class NodeNoise:
    """Gumbel noise of one round. Nodes with small supports share one block, because a call per node would cost more than the
    noise."""

    WIDTH = 16

    def __init__(self, context: Context, nodes: int) -> None:
        self._context = context
        self._nodes = nodes
        self._block: Tensor | None = None

    def at(self, node: int, size: int, device: torch.device) -> Tensor:
        """Return noise for ``node``, float64 [size], independent between nodes and rounds."""
        context = self._context
        if size > self.WIDTH:
            return context.noise.gumbel(size, DRAFT, context.round, node, device=device)
        if self._block is None:
            noise = context.noise.gumbel(self._nodes * self.WIDTH, DRAFT, context.round, device=device)
            self._block = noise.view(self._nodes, self.WIDTH)
        return self._block[node, :size]


def level_noise(keys: Tensor, nodes: Sequence[int], total: int, size: int) -> tuple[Tensor, Tensor]:
    """Return Gumbel noise for the ``nodes`` of a level with one support, float64 [node, size], and the counters that generated
    it.

    ``keys``: for blocks of the default width, for blocks of this ``size``, and for each node. ``total``: number of nodes of the
    tree. A node's noise has its own key, or is a slice of a block shared by all nodes.
    """
    if size > WIDE or (len(nodes) == 1 and size > NodeNoise.WIDTH):
        counts, chosen = counters(size, keys.device)[None], keys[2:]
    else:
        width, place = (NodeNoise.WIDTH, 0) if size <= NodeNoise.WIDTH else (size, 1)
        counts, chosen = _block(tuple(nodes), total, width, keys.device), keys[place : place + 1]
    return exponentials_of(chosen, counts)[:, :size].log_().neg_(), counts


@device_cache(64)
def _block(nodes: tuple[int, ...], total: int, width: int, device: torch.device) -> Tensor:
    """Return the counters of these nodes' slices of a block of ``total`` slices, int64 [node, width]."""
    with torch.inference_mode(False):
        return counters(total * width, device).view(total, width)[to_device(nodes, device)]


@dataclass(frozen=True)
class _Level:
    """A level of the tree.

    ``q`` [row, support]: distributions over the drafter's vocabulary. ``perturbed``: log q plus noise, None unless children are
    sampled. ``order`` (indices into the support) and ``tokens`` [row, child]: children of each row, best first. ``host_facts``
    [row * (2 * child + 1)]: data for the host: tokens, probabilities, and size of the support. ``held``: keeps alive what a
    captured step reads.
    """

    q: Tensor
    perturbed: Tensor | None
    order: Tensor
    tokens: Tensor
    host_facts: Tensor
    held: object


@device_cache(256)
def _slots(
    shape: TreeShape, above: tuple[int, ...], nodes: tuple[int, ...], children: int, device: torch.device
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return two int64 [node]: each node's index among the flattened children [row, child] of the level above, and its parent's
    row."""
    rows = [above.index(shape.parents[node]) for node in nodes]
    ranks = [shape.children[shape.parents[node]].index(node) for node in nodes]
    with torch.inference_mode(False):
        slots = to_device([row * children + rank for row, rank in zip(rows, ranks, strict=True)], device)
        return slots, to_device(rows, device)


class Sampled:
    """Tree builder that fills a shape level by level with samples, or at temperature 0 with top tokens as point masses.

    ``shape``: fixed, or chosen in each round from the context, never from the samples, which would bias the output. ``ranked``:
    whether children are top tokens within the run's warped support, as point masses, at any temperature. ``unwarped``: whether a
    level drafter's distributions stay unwarped, so that a ranked tree is the same at each temperature.
    """

    def __init__(
        self, shape: TreeShape | Callable[[Context], TreeShape], ranked: bool = False, unwarped: bool = False
    ) -> None:  # fmt: skip
        self._shape = shape
        self._ranked = ranked
        self._unwarped = unwarped

    def build(self, drafter: Rows | LevelDrafter, context: Context) -> Draft:
        shape = self._shape if isinstance(self._shape, TreeShape) else self._shape(context)
        if getattr(drafter, "levels", None) is not None:
            level_drafter = cast("LevelDrafter", drafter)
            levels = level_drafter.levels(context) if context.max_depth > 1 else None
            growing = self._by_levels(levels, shape, context, level_drafter.support)
            return self._draft(growing, drafter, context)
        drafter = cast("Rows", drafter)
        growing, place, noise = TreeInProgress([context.ids[-1]]), {0: 0}, NodeNoise(context, len(shape))
        greedy = context.warp.greedy or self._ranked
        for depth, level in enumerate(shape.levels):
            inner_nodes = [node for node in level if node in place and shape.children[node]]
            if not inner_nodes or depth >= context.max_depth - 1:
                break
            distributions = drafter.rows(context, growing.tokens, growing.parents, [place[node] for node in inner_nodes])
            for node, distribution in zip(inner_nodes, distributions, strict=True):
                if distribution is None:
                    continue
                q, count, perturbed = distribution.probability, len(shape.children[node]), None
                # A single sample from a wide distribution needs no support size, whose count would wait for a GPU.
                if count > 1 or q.numel() <= NodeNoise.WIDTH:
                    count = min(count, int((q > 0).sum()))
                if not greedy:
                    perturbed = q.double().log() + noise.at(place[node], q.numel(), q.device)
                order = (q if perturbed is None else perturbed).topk(count).indices
                ids = order if distribution.ids is None else distribution.ids[order]
                pick = Pick(place[node], distribution, perturbed, order, count)
                fresh = growing.add(place[node], pick, ids.tolist(), q[order].tolist(), greedy)
                place.update(zip(shape.children[node], fresh, strict=False))
        return self._draft(growing, drafter, context)

    @staticmethod
    def _draft(growing: TreeInProgress, drafter: Rows | LevelDrafter, context: Context) -> Draft:
        tree = DraftTree.of(growing.tokens, growing.parents, context.device)
        notes = context.notes(lambda: drafter.draft_notes(growing.picks[:SHOWN]))
        return Draft(tree, growing.proposals, growing.confidence, drafter.calls(), notes=notes)

    @torch.inference_mode()
    def _by_levels(
        self, levels: Levels | None, shape: TreeShape, context: Context, support: Tensor | None
    ) -> TreeInProgress:  # fmt: skip
        """Fill the shape on the drafter's device, with one copy to the host at the end.

        Children beyond the drafter's support are then dropped, with the nodes below them. Noise is keyed by the nodes of the
        shape.
        """
        growing, turn, place = TreeInProgress([context.ids[-1]]), context.round, {0: 0}
        drawn: list[tuple[tuple[int, ...], _Level]] = []
        greedy = context.warp.greedy or self._ranked
        deepest = 0 if levels is None else min(levels.deepest, context.max_depth - 1)
        for nodes in shape.levels[: max(0, deepest)]:
            inner_nodes = tuple(node for node in nodes if shape.children[node])
            if not inner_nodes:
                break
            assert levels is not None
            above = drawn[-1] if drawn else None
            size = above[1].q.shape[1] if above else 0
            keys = None
            if not greedy:
                places = [(turn,), (turn, len(shape), size), *((turn, node) for node in inner_nodes)]
                keys = levels.given(("noise", len(drawn)), context.noise.keys(DRAFT, places, context.device))
            work = partial(self._next_level, levels, shape, above, inner_nodes, support, context.warp, keys)
            drawn.append((inner_nodes, levels.step(("sampled", shape, context.warp, self._unwarped, greedy), work)))
        numbers = torch.cat([level.host_facts for _, level in drawn]).tolist() if drawn else []
        start = 0
        for inner_nodes, level in drawn:
            count = level.order.shape[1]
            noisy = [None] * len(inner_nodes) if level.perturbed is None else level.perturbed.unbind()
            for node, q, scores, order in zip(inner_nodes, level.q.unbind(), noisy, level.order.unbind(), strict=True):
                facts = numbers[start : start + 2 * count + 1]
                start += 2 * count + 1
                if node not in place:
                    continue
                picked = min(len(shape.children[node]), int(facts[-1]), count)
                pick = Pick(place[node], Proposal(q, support), scores, order, picked)
                fresh = growing.add(place[node], pick, facts[:picked], facts[count : count + picked], greedy)
                place.update(zip(shape.children[node], fresh, strict=False))
        return growing

    def _next_level(
        self, levels: Levels, shape: TreeShape, above: tuple[tuple[int, ...], _Level] | None, nodes: tuple[int, ...],
        support: Tensor | None, warp: Warp, keys: Tensor | None,
    ) -> _Level:  # fmt: skip
        """Sample the children of ``nodes``, which are children of the level ``above``; without ``keys``, take top tokens."""
        held: tuple[Tensor, ...] = ()
        if above is None:
            logits = levels.first()
        else:
            held = _slots(shape, above[0], nodes, above[1].tokens.shape[1], above[1].tokens.device)
            logits = levels.below(above[1].tokens.flatten()[held[0]], held[1])
        q, perturbed = (Warp() if self._unwarped else warp).log_probabilities(logits).exp(), None
        if keys is not None:
            noise, counts = level_noise(keys, nodes, len(shape), q.shape[1])
            perturbed, held = q.double().log() + noise, (*held, counts)
        most = max(len(shape.children[node]) for node in nodes)
        order = (q if perturbed is None else perturbed).topk(min(most, q.shape[1])).indices
        tokens = order if support is None else support[order]
        # Tokens are exact in float64.
        facts = torch.cat((tokens.double(), q.gather(1, order).double(), (q > 0).sum(1, keepdim=True).double()), dim=1)
        return _Level(q, perturbed, order, tokens, facts.flatten(), (held, support))
