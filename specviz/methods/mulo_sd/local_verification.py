"""MuLo-SD's local verification (Peruzzo et al., arXiv 2601.05149): a block of image codes is verified at once, then resampled
around rejections.

A code fails if it and its nearest latent codes together have less than tau of the target's mass. Failed codes are dilated on
the grid by ``radius`` cells, but never before the first failure. Connected cells form an island; islands are resampled in
parallel, one cell of each per wave, and all other cells stay as drafted. The change of distribution is unbounded. With tau
above 1, however, the block is one island from the first cell on; with rewritten entries it equals autoregressive sampling,
token for token.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest

import networkx
import torch
import torch.nn.functional as F
from torch import Tensor

from specviz.drafting.runtimes.feature_levels import CapturedLevels, acquire, release
from specviz.engine.interfaces import Context, Draft, Target, TargetPass, Verdict
from specviz.engine.sampling import TARGET
from specviz.engine.tiers import Inputs, bucket
from specviz.engine.to_device import to_device
from specviz.errors import ModelUnavailable
from specviz.targets.image import ImageSession
from specviz.trace.notes.verdicts import LocalVerificationNote
from specviz.trace.schema import ACCEPTED, RELAXED, RESAMPLED, ROOT


def neighbour_mass(distribution: Tensor, codes: Tensor, neighbours: Tensor) -> Tensor:
    """Return the mass [place] of each code and its nearest latent codes, from ``distribution`` [place, code], ``codes`` [place]
    and ``neighbours`` [code, rank]."""
    group = torch.cat((codes[:, None], neighbours[codes]), dim=1)
    return distribution.gather(1, group).sum(1)


def around(cell: int, columns: int, radius: int) -> set[int]:
    """Return the cells within ``radius`` rows and columns of a cell. Cells are numbered through the picture in reading
    order.
    """
    row, column = divmod(cell, columns)
    across = range(max(0, column - radius), min(columns, column + radius + 1))
    return {other * columns + place for other in range(row - radius, row + radius + 1) for place in across}


def dilate(failed: Collection[int], first: int, last: int, columns: int, radius: int) -> list[int]:
    """Return the cells around failed cells, from the first failure to ``last``, ascending; ``first`` is the block's first
    cell.
    """
    start = max(first, min(failed, default=first))
    return sorted({cell for one in failed for cell in around(one, columns, radius) if start <= cell <= last})


def connected_components(cells: Sequence[int], columns: int) -> list[list[int]]:
    """Return the islands of touching cells, corners included. Each island is ascending, and islands are sorted by their first
    cells.
    """
    graph = networkx.Graph()
    graph.add_nodes_from(cells)
    graph.add_edges_from((cell, other) for cell in cells for other in around(cell, columns, 1) if other in graph)
    return sorted(sorted(island) for island in networkx.connected_components(graph))


def schedule(islands: Sequence[Sequence[int]]) -> list[list[int]]:
    """Return the nodes of each wave: the next one of every island."""
    return [[node for node in heads if node is not None] for heads in zip_longest(*islands)]


@dataclass
class LocalVerification:
    """Acceptance rule of one run. It opens the run's session, because it runs the target again within a round.

    ``neighbours``: int64 [code, rank]. ``columns``: number of columns of the grid. ``rewrite``: renew stale cache entries at
    the end of a block.
    """

    neighbours: Tensor
    columns: int
    tau: float
    pool: int
    radius: int
    rewrite: bool = True
    unshared = "Local verification runs its target again within a round, for one picture: draw the pictures one after another."

    def open(self, target: Target, capacity: int, taps: Sequence[int]) -> ImageSession:
        """Open the run's session. Raises ModelUnavailable for a target whose cache entries cannot be rewritten."""
        session = target.open(capacity, taps)
        if not isinstance(session, ImageSession):
            raise ModelUnavailable(f"{target.name} generates no pictures; choose an image target, such as emoji-64.")
        self._session = session
        return session

    def judge(self, draft: Draft, target: TargetPass, context: Context) -> Verdict:
        """Find the block's failed codes and resample their islands. The path is the whole block.

        Two copies go to the host: the failures, and the final block. The target's further passes count as verification.
        """
        nodes = len(draft.tree)
        distribution = context.warp.log_probabilities(target.logits[: nodes - 1]).exp()
        mass = neighbour_mass(distribution, draft.tree.tokens[1:], self.neighbours[:, : self.pool]).tolist()
        context.mark("judge")
        failed = [node for node, code_mass in enumerate(mass, start=1) if code_mass < self.tau]
        # A node's index in the chain and its cell's index in the picture differ by ``shift``.
        shift = context.position - context.prompt_length
        again = dilate([node + shift for node in failed], 1 + shift, nodes - 1 + shift, self.columns, self.radius)
        islands = [[cell - shift for cell in island] for island in connected_components(again, self.columns)]
        graph, repair = self._session.captured(self._session.length), _Repair(context.device)
        if graph is not None:
            repair = acquire(graph.pooled, 0, lambda *_: _CapturedRepair(context.device))
        with torch.inference_mode():
            repair.take(self._session, draft, target, context, self.rewrite)
            wave_of = repair.run(islands)
        tokens, marks, outdated, passes = repair.on_host()
        if graph is not None:
            del repair._session  # the cache outlives it
            release(graph.pooled, repair)
        context.mark("verify")
        note = LocalVerificationNote(
            mass=mass,
            tau=self.tau,
            pool=self.pool,
            radius=self.radius,
            rewritten=self.rewrite,
            failed=failed,
            islands=islands,
            waves=[wave_of.get(node, 0) for node in range(1, nodes)],
            passes=passes,
            stale=outdated,
        )
        return Verdict(
            rule="local",
            path=tuple(range(1, nodes)),
            bonus=None,
            source="target",
            statuses=(ROOT, *(RESAMPLED if node in wave_of else mark for node, mark in enumerate(marks, start=1))),
            visited=(*range(nodes - 1),),
            thresholds=dict.fromkeys(range(1, nodes), self.tau),
            notes=context.notes(lambda: [note.to_note()]),
            replaced={node: tokens[node - 1] for node in wave_of},
            passes=passes,
        )


class _Repair(CapturedLevels[tuple[()]]):
    """Repair of one block on the target's device; changed codes and outdated entries reach the host only at the end.

    ``_changed`` [node]: nodes whose cache entries are still those of a previous code. ``_outdated`` [node]: nodes whose entries
    predate a change at or before them, or were computed over such entries.
    """

    def take(self, session: ImageSession, draft: Draft, scored: TargetPass, context: Context, rewrite: bool) -> None:
        """Begin the repair of a block."""
        self._session, self._warp, self._rewrite = session, context.warp, rewrite
        tokens, places = draft.tree.tokens, [(context.position + 1 + node,) for node in range(len(draft.tree))]
        nothing = torch.zeros_like(tokens, dtype=torch.bool)
        self._logits, self._tokens = self.given("logits", scored.logits), self.given("tokens", tokens)
        self._changed, self._outdated = self.given("changed", nothing), self.given("outdated", nothing)
        self._passes = self.given("passes", torch.ones_like(tokens[:1]))
        race = context.noise.coupled.exponentials(scored.logits.shape[1], TARGET, places, tokens.device)
        self._race, self._heads = self.given("race", race), self.numbers([0] * len(tokens))

    def run(self, islands: Sequence[Sequence[int]]) -> dict[int, int]:
        """Resample the islands; return the wave of each resampled node.

        The first wave needs no further pass. A later wave runs the predecessors of its cells and earlier changed nodes. Entries
        of kept cells in between are renewed once, after the last wave. Until then the distributions of later waves are
        approximations, except for a block resampled without a gap, as with tau above 1.
        """
        waves = schedule(islands)
        for number, heads in enumerate([*waves, []] if waves else ()):
            self._heads = self.numbers([node in heads for node in range(len(self._tokens))])
            self._wave(bool(heads), number > 0)
        return {head: number for number, heads in enumerate(waves, start=1) for head in heads}

    def on_host(self) -> tuple[list[int], list[str], list[int], int]:
        """Return codes and marks of all nodes but the root, nodes with outdated entries, and the number of target passes.

        Everything comes in one copy to the host. A code is *accepted* if the target would have sampled the same one, else
        *relaxed*. The target's choice at each position follows from the last pass over it: with rewritten entries, the pass over
        the final block.
        """
        codes = self._tokens[1:]
        numbers = torch.cat((codes, self._own()[:-1] == codes, self._outdated, self._passes)).tolist()
        last = len(codes)
        marks = [ACCEPTED if same else RELAXED for same in numbers[last : 2 * last]]
        # The last code has no entry yet: it is the next round's root.
        outdated = [node for node, stale in enumerate(numbers[2 * last : 3 * last]) if stale]
        return numbers[:last], marks, outdated, numbers[-1]

    def _wave(self, draws: bool, reads: bool) -> Tensor:
        """Run the needed nodes again if the wave ``reads`` them, and resample its cells if it ``draws`` any."""
        heads = self._heads > 0
        if reads:
            needed = self._needed(F.pad(heads[1:], (0, 1)) if draws else None)
            self._logits.copy_(self._pass(needed))
            self._passes += needed.any()
            self._changed &= ~needed
            # Entries computed over outdated ones are outdated too.
            self._outdated &= (self._outdated & ~needed).cumsum(0) > 0
        if draws:
            tokens = torch.where(heads, self._own().roll(1), self._tokens)
            differs = tokens != self._tokens
            self._tokens.copy_(tokens)
            self._changed |= differs
            self._outdated |= differs.cumsum(0) > 0
        return self._tokens

    def _own(self) -> Tensor:
        """Return the target's own code after each node, int64 [node]."""
        return (self._warp.probabilities(self._logits).double() / self._race).argmax(-1)

    def _needed(self, asked: Tensor | None) -> Tensor:
        """Return the mask [node] of the nodes that a pass must run before the successors of ``asked`` [node] are resampled; with
        ``asked`` None, at the end of the block."""
        if asked is None:
            pending = self._outdated.cumsum(0) > 0 if self._rewrite else self._changed.clone()
            pending[-1:].fill_(False)
            return pending
        again = asked & self._outdated
        # A changed node is included if a later node runs.
        return again | self._changed & (again.cumsum(0) < again.sum())

    def _pass(self, needed: Tensor) -> Tensor:
        """Run the ``needed`` [node] again; return the logits [node, code] of all nodes."""
        nodes = [node for node, wish in enumerate(needed.tolist()) if wish]
        if not nodes:
            return self._logits
        at = to_device(nodes, self._device)
        return self._logits.index_copy(0, at, self._session.rewrite(self._tokens, nodes).logits)


class _CapturedRepair(_Repair):
    """Variant of :class:`_Repair` for CUDA graphs. A wave runs every node; nodes that are not needed write after the block's
    slots. It is kept with the session's pooled cache.
    """

    def take(self, session: ImageSession, draft: Draft, scored: TargetPass, context: Context, rewrite: bool) -> None:
        super().take(session, draft, scored, context, rewrite)
        graph, nodes = session.graph, len(draft.tree)
        assert graph is not None
        end = session.length + 2 * nodes
        graph.pooled.grow(end)
        self._columns = min(bucket(end), graph.pooled.cache.capacity)
        self._slots = self.numbers([*range(session.length, end), *graph.numbers])
        self._shape = (nodes, self._columns, graph.pooled.cache.capacity, graph.variant, context.warp, rewrite)
        if (self._shape, 0, (True, True)) not in self._captured:
            for kind in ((True, False), (True, True), (False, True)):  # capture; with no cell to resample, a wave has no effect
                self._wave(*kind)

    def _wave(self, draws: bool, reads: bool) -> Tensor:
        self.trail, self._here = [], ()
        return self.step((draws, reads), partial(super()._wave, draws, reads))

    def _pass(self, needed: Tensor) -> Tensor:
        graph, nodes = self._session.graph, len(needed)
        assert graph is not None
        places = torch.where(needed, self._slots[:nodes], self._slots[nodes : 2 * nodes])
        places = torch.cat((places[:1], places, self._slots[2 * nodes :]))
        inputs = Inputs(self._tokens.expand(1 + len(graph.others), -1), places, needed)
        return torch.where(needed[:, None], graph.rewriting_pass(inputs, self._columns)[0], self._logits)
