"""MuLo-SD's local verification (Peruzzo et al., arXiv 2601.05149): a block of image codes is verified at once, then resampled
around rejections.

A code fails if it and its nearest latent codes together have less than tau of the target's mass. Failed codes are dilated on the
grid by ``radius`` cells, but never before the first failure. Connected cells form an island; islands are resampled in parallel,
one cell of each per wave, and all other cells stay as drafted. The change of distribution is unbounded. But with tau above 1 the
block is one island from the first cell on, and with rewritten entries it is autoregressive sampling, token for token.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import networkx
import torch
from torch import Tensor

from specviz.engine.interfaces import Context, Draft, Target, TargetPass, Verdict
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
    """Return the cells within ``radius`` rows and columns of one. Cells are numbered through the picture in reading order."""
    row, column = divmod(cell, columns)
    across = range(max(0, column - radius), min(columns, column + radius + 1))
    return {other * columns + place for other in range(row - radius, row + radius + 1) for place in across}


def dilate(failed: Collection[int], first: int, last: int, columns: int, radius: int) -> list[int]:
    """Return the cells around failed ones, from the first failure to ``last``, ascending; ``first`` is the block's first cell."""
    start = max(first, min(failed, default=first))
    return sorted({cell for one in failed for cell in around(one, columns, radius) if start <= cell <= last})


def connected_components(cells: Sequence[int], columns: int) -> list[list[int]]:
    """Return the islands of touching cells, corners included; each, and all by their first cells, ascending."""
    graph = networkx.Graph()
    graph.add_nodes_from(cells)
    graph.add_edges_from((cell, other) for cell in cells for other in around(cell, columns, 1) if other in graph)
    return sorted(sorted(island) for island in networkx.connected_components(graph))


@dataclass(frozen=True)
class Wave:
    """Nodes resampled at once (``heads``), after a target pass over the needed nodes among ``again``, ascending."""

    heads: tuple[int, ...]
    again: tuple[int, ...]


def schedule(islands: Sequence[Sequence[int]], last: int, rewrite: bool) -> list[Wave]:
    """Return waves over islands of nodes, each with the first remaining node of every island; the last wave has no heads.

    Which codes change is known only on the device, so ``again`` holds all nodes that a pass may need. These are the predecessors
    of the wave's heads, and earlier heads not run since. In the last wave, if entries are rewritten, they are all nodes from the
    first change to the node before ``last``; ``last`` has no entry yet.
    """
    waves: list[Wave] = []
    left, unrun = [tuple(island) for island in islands], set[int]()
    first = min((island[0] for island in left), default=last)
    while left:
        heads = [island[0] for island in left]
        behind = max(heads) - 1
        again = {head - 1 for head in heads} | {node for node in unrun if node < behind} if waves else set[int]()
        waves.append(Wave(tuple(heads), tuple(sorted(node for node in again if node >= first))))
        # A changed node and all nodes after it are outdated, so a pass for a later node has run it too.
        unrun = {node for node in unrun if node > behind} | set(heads)
        left = [island[1:] for island in left if len(island) > 1]
    return [*waves, Wave((), tuple(range(first, last) if rewrite else sorted(unrun - {last})))] if waves else []


@dataclass
class LocalVerification:
    """Acceptance rule of one run. It opens the run's session, since it runs the target again within a round.

    ``neighbours`` are int64 [code, rank], ``columns`` those of the grid. ``rewrite`` renews stale cache entries at the end of a
    block.
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
            raise ModelUnavailable(f"{target.name} draws no pictures; choose an image target, such as emoji-64.")
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
        judged = target.logits.clone() if islands else target.logits
        repair = _Repair(self._session, draft, target, context, self.rewrite)
        wave_of = repair.run(islands)
        if islands:  # a graph replay overwrites the earlier logits, which the recorder still reads
            with torch.inference_mode():
                target.logits.copy_(judged)
        tokens, marks, outdated, passes = repair.on_host()
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


class _Repair:
    """Repair of one block on the target's device; changed codes and outdated entries reach the host only at the end."""

    def __init__(self, session: ImageSession, draft: Draft, scored: TargetPass, context: Context, rewrite: bool) -> None:
        self._session, self._context, self._rewrite = session, context, rewrite
        self._logits, self._tokens = scored.logits.clone(), draft.tree.tokens.clone()
        self._last = len(self._tokens) - 1
        self._changed = torch.zeros_like(self._tokens, dtype=torch.bool)
        """Mask [node] of the nodes whose cache entries are still those of a previous code."""
        self._outdated = torch.zeros_like(self._changed)
        """Mask [node] of the nodes whose cache entries predate a change at or before them, or were computed over such entries."""
        self._passes = torch.ones_like(self._tokens[:1])

    def run(self, islands: Sequence[Sequence[int]]) -> dict[int, int]:
        """Resample the islands; return the wave of each resampled node.

        The first wave needs no further pass. A later wave runs its heads' predecessors and earlier changed nodes. Entries of kept
        cells in between are renewed once, after the last wave. Until then the distributions of later waves are approximations,
        except for a block resampled without a gap, as with tau above 1.
        """
        waves, last, device = schedule(islands, self._last, self._rewrite), self._last, self._tokens.device
        parts = [part for wave in waves for part in (wave.heads, [head - 1 for head in wave.heads], wave.again)]
        indices = to_device([node for part in parts for node in part], device).split([len(part) for part in parts])
        asked = to_device([[node + 1 in wave.heads for node in range(last + 1)] for wave in waves], device, torch.bool)
        for number, wave in enumerate(waves):
            at, before, again = indices[3 * number : 3 * number + 3]
            if wave.again:
                self._pass(wave.again, again, self._needed(asked[number] if wave.heads else None))
            if wave.heads:
                self._draw(wave.heads, at, before)
        return {head: number for number, wave in enumerate(waves, start=1) for head in wave.heads}

    def on_host(self) -> tuple[list[int], list[str], list[int], int]:
        """Return, with one copy to the host, codes and marks of all nodes but the root, nodes with outdated entries, and the
        number of target passes.

        A code is *accepted* if the target would have sampled the same one, else *relaxed*. The target's choice at each position
        follows from the last pass over it: with rewritten entries, the pass over the final block.
        """
        last, position = self._last, self._context.position
        places = range(position + 1, position + 1 + last)
        own = self._context.warp.choose(self._logits[:last], places, self._context.noise)
        codes = self._tokens[1:]
        numbers = torch.cat((codes, own == codes, self._outdated, self._passes)).tolist()
        marks = [ACCEPTED if same else RELAXED for same in numbers[last : 2 * last]]
        # The last code has no entry yet: it is the next round's root.
        outdated = [node for node, stale in enumerate(numbers[2 * last : 3 * last]) if stale]
        return numbers[:last], marks, outdated, numbers[-1]

    def _needed(self, asked: Tensor | None) -> Tensor:
        """Return the mask [node] of the nodes that a pass must run before the successors of ``asked`` [node] are resampled; with
        ``asked`` None, at the end of the block."""
        if asked is None:
            pending = self._outdated.cumsum(0) > 0 if self._rewrite else self._changed.clone()
            pending[self._last :].fill_(False)
            return pending
        again = asked & self._outdated
        # A changed node is included if a later node runs.
        return again | self._changed & (again.cumsum(0) < again.sum())

    def _draw(self, nodes: Sequence[int], at: Tensor, before: Tensor) -> None:
        """Resample these nodes from the logits of their predecessors ``before``; ``at`` and ``before`` are int64 on the
        device."""
        places = [self._context.position + node for node in nodes]
        codes = self._context.warp.choose(self._logits.index_select(0, before), places, self._context.noise)
        tokens = self._tokens.index_copy(0, at, codes)
        differs, self._tokens = tokens != self._tokens, tokens
        self._changed |= differs
        self._outdated |= differs.cumsum(0) > 0

    def _pass(self, nodes: Sequence[int], at: Tensor, needed: Tensor) -> None:
        """Run those of ``nodes`` (``at`` on the device) again that are ``needed`` [node].

        A CPU runs only those. On a GPU the others are padding, since a selection would synchronize. A pass without needed nodes
        takes the same time there, but is not counted.
        """
        wanted: Tensor | None = needed.index_select(0, at)
        if at.device.type == "cpu":
            nodes = [node for node, wish in enumerate(needed.tolist()) if wish]
            if not nodes:
                return
            at, wanted = to_device(nodes, at.device), None
        logits = self._session.rewrite(self._tokens, nodes, wanted).logits
        if wanted is not None:
            logits = torch.where(wanted[:, None], logits, self._logits.index_select(0, at))
        self._logits.index_copy_(0, at, logits)
        self._passes += needed.any()
        others = ~needed
        self._changed &= others
        # Entries computed over outdated ones are outdated too.
        self._outdated &= (self._outdated & others).cumsum(0) > 0
