"""Sampled trees: chains, and siblings drawn without replacement by Gumbel-Top-K from the drafter's distribution.

The top k of log q + Gumbel noise are k draws without replacement, in draw order (Kool et al., arXiv 1903.06059), which
is what STAND's parallel sampling rests on (arXiv 2506.04708). The noise is keyed by round, so no round reuses
another's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from specviz.engine.interfaces import Context, Draft, Pick, Proposal
from specviz.engine.sampling import DRAFT
from specviz.engine.tree import DraftTree, TreeShape
from specviz.trace.schema import Note

SHOWN = 12
WIDE = 1024
"""Distributions over at most so many tokens are drawn from together, a level of the tree at a time."""


class Rows(Protocol):
    """A drafter that gives the distribution of a node's children."""

    def rows(
        self, context: Context, tokens: Sequence[int], parents: Sequence[int], nodes: Sequence[int]
    ) -> list[Proposal | None]:
        """For each of ``nodes`` of the tree so far the warped distribution of its children, None where it has none to offer."""

    def calls(self) -> int:
        """Drafter forwards since the last call of this."""

    def draft_notes(self, picks: Sequence[Pick]) -> tuple[Note, ...]:
        """Notes on what was picked where."""


@dataclass
class Growing:
    """A tree on its way."""

    tokens: list[int]
    parents: list[int] = field(default_factory=lambda: [-1])
    confidence: list[float | None] = field(default_factory=lambda: [None])
    proposals: dict[int, Proposal] = field(default_factory=dict)
    picks: list[Pick] = field(default_factory=list)

    def hang(self, node: int, pick: Pick, greedy: bool) -> list[int]:
        """Append the picked children of ``node``; their indices."""
        proposal, chosen = pick.proposal, pick.order[: pick.picked]
        ids = chosen if proposal.ids is None else proposal.ids[chosen]
        return self.add(node, pick, ids.tolist(), proposal.probability[chosen].tolist(), greedy)

    def add(self, node: int, pick: Pick, tokens: Sequence[int], shares: Sequence[float], greedy: bool) -> list[int]:
        """The same with the picked tokens and the distribution's probability of each already on the host."""
        fresh = list(range(len(self.tokens), len(self.tokens) + len(tokens)))
        self.tokens += [int(token) for token in tokens]
        self.parents += [node] * len(tokens)
        self.confidence += [float(q) for q in shares]
        self.picks.append(pick)
        if not greedy:
            # Only a distribution that was really sampled from may stand in the accept rule.
            self.proposals[node] = pick.proposal
        return fresh


class NodeNoise:
    """Gumbel noise for one round. Small supports share one block: a call per node would cost more than the draws."""

    WIDTH = 16

    def __init__(self, context: Context, nodes: int) -> None:
        self._context = context
        self._nodes = nodes
        self._block: Tensor | None = None
        self._wide: Tensor | None = None

    def at(self, node: int, size: int, device: torch.device) -> Tensor:
        """float64 [size] of noise for ``node``, independent between nodes and rounds."""
        context = self._context
        if size > self.WIDTH:
            return context.noise.gumbel(size, DRAFT, context.round, node, device=device)
        if self._block is None:
            noise = context.noise.gumbel(self._nodes * self.WIDTH, DRAFT, context.round, device=device)
            self._block = noise.view(self._nodes, self.WIDTH)
        return self._block[node, :size]

    def level(self, nodes: Sequence[int], size: int, device: torch.device) -> Tensor:
        """float64 [node, size] for several nodes: what they would get one by one where their distributions are narrow."""
        if size <= self.WIDTH:
            return torch.stack([self.at(node, size, device) for node in nodes])
        if self._wide is None or self._wide.shape[1] != size:
            context = self._context
            place = (context.round, self._nodes, size)
            self._wide = context.noise.gumbel(self._nodes * size, DRAFT, *place, device=device).view(self._nodes, size)
        return self._wide[list(nodes)]


def _together(distributions: Sequence[Proposal | None]) -> bool:
    """Whether these distributions are over one support that is not too wide."""
    if len(distributions) < 2 or any(distribution is None for distribution in distributions):
        return False
    first = distributions[0]
    assert first is not None
    return first.probability.numel() <= WIDE and all(
        distribution is not None and distribution.ids is first.ids for distribution in distributions
    )


class Sampled:
    """Fills a shape level by level with draws; at temperature 0 with the drafter's best, which are point masses.

    The shape is one for all rounds, or chosen each round from the context (never from what was drawn: that would not be
    exact). ``ranked`` takes the drafter's best at any temperature, as point masses.
    """

    def __init__(self, shape: TreeShape | Callable[[Context], TreeShape], ranked: bool = False) -> None:
        self._shape = shape
        self._ranked = ranked

    def build(self, drafter: Rows, context: Context) -> Draft:
        shape = self._shape if isinstance(self._shape, TreeShape) else self._shape(context)
        growing, place, noise = Growing([context.ids[-1]]), {0: 0}, NodeNoise(context, len(shape))
        for depth, level in enumerate(shape.levels):
            inner_nodes = [node for node in level if node in place and shape.children[node]]
            if not inner_nodes or depth >= context.max_depth - 1:
                break
            distributions = drafter.rows(context, growing.tokens, growing.parents, [place[node] for node in inner_nodes])
            if _together(distributions):
                self._level(
                    growing,
                    shape,
                    inner_nodes,
                    [distribution for distribution in distributions if distribution is not None],
                    place,
                    context,
                    noise,
                )
                continue
            for node, distribution in zip(inner_nodes, distributions, strict=True):
                if distribution is None:
                    continue
                pick = self._pick(place[node], distribution, len(shape.children[node]), context, noise)
                fresh = growing.hang(place[node], pick, pick.perturbed is None)
                place.update(zip(shape.children[node], fresh, strict=False))
        tree = DraftTree.of(growing.tokens, growing.parents, context.device)
        notes = context.notes(lambda: drafter.draft_notes(growing.picks[:SHOWN]))
        return Draft(tree, growing.proposals, growing.confidence, drafter.calls(), notes=notes)

    def _level(
        self, growing: Growing, shape: TreeShape, inner_nodes: Sequence[int], distributions: Sequence[Proposal],
        place: dict[int, int], context: Context, noise: NodeNoise,
    ) -> None:  # fmt: skip
        """One level's children, with a handful of operations however many nodes it has."""
        nodes, counts = [place[node] for node in inner_nodes], [len(shape.children[node]) for node in inner_nodes]
        q, ids, greedy = (
            torch.stack([distribution.probability for distribution in distributions]),
            distributions[0].ids,
            context.warp.greedy or self._ranked,
        )
        perturbed = None if greedy else q.double().log() + noise.level(nodes, q.shape[1], q.device)
        order = (q if perturbed is None else perturbed).topk(min(max(counts), q.shape[1])).indices
        tokens = (order if ids is None else ids[order]).tolist()
        shares, support_sizes = q.gather(1, order).tolist(), (q > 0).sum(1).tolist()
        for row, node in enumerate(inner_nodes):
            count = min(counts[row], support_sizes[row])
            row_scores = None if perturbed is None else perturbed[row]
            pick = Pick(nodes[row], distributions[row], row_scores, order[row], count)
            fresh = growing.add(nodes[row], pick, tokens[row][:count], shares[row][:count], greedy)
            place.update(zip(shape.children[node], fresh, strict=False))

    def _pick(self, node: int, distribution: Proposal, count: int, context: Context, noise: NodeNoise) -> Pick:
        q = distribution.probability
        # One draw from a wide distribution needs no counting, which waits for a GPU.
        if count > 1 or q.numel() <= NodeNoise.WIDTH:
            count = min(count, int((q > 0).sum()))
        if context.warp.greedy or self._ranked:
            return Pick(node, distribution, None, q.topk(count).indices, count)
        perturbed = q.double().log() + noise.at(node, q.numel(), q.device)
        return Pick(node, distribution, perturbed, perturbed.topk(count).indices, count)
