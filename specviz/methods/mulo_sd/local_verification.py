"""MuLo-SD's local verification (Peruzzo et al., arXiv 2601.05149): a block of image codes at once, then resampling around
rejections.

A code fails where its nearest latent codes and itself together have less than tau of the target's mass. Failed codes take their
neighbours on the grid with them, as far as ``radius`` cells and never back before the first failure; what hangs together
is an island, and islands are drawn again at the same time, one cell of each per wave, everything else staying as drafted.
Nothing bounds the change of distribution. But above tau 1 everything is one island that begins at the first cell, and with
entries rewritten the block is autoregressive sampling, token for token.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from specviz.engine.interfaces import Context, Draft, Target, TargetPass, Verdict
from specviz.errors import ModelUnavailable
from specviz.targets.image import ImageSession
from specviz.trace.notes.verdicts import LocalVerificationNote
from specviz.trace.schema import ACCEPTED, REJECTED, RELAXED, RESAMPLED, ROOT, Note

Cell = tuple[int, int]


def neighbour_mass(distribution: Tensor, codes: Tensor, neighbours: Tensor) -> Tensor:
    """Mass of each code and its nearest latent codes: ``distribution`` [place, code], ``codes`` [place], ``neighbours`` [code,
    rank]."""
    group = torch.cat((codes[:, None], neighbours[codes]), dim=1)
    return distribution.gather(1, group).sum(1)


def dilate(failed: Collection[int], first: int, last: int, columns: int, radius: int) -> list[int]:
    """Cells within ``radius`` rows and columns of a failed one, between the first failure and ``last``; ascending.

    Cells count through the whole picture in reading order; ``first`` is the block's first one.
    """
    if not failed:
        return []
    start, cells = min(failed), set(failed)
    for cell in failed:
        row, column = divmod(cell, columns)
        for down in range(-radius, radius + 1):
            for across in range(-radius, radius + 1):
                other = (row + down) * columns + column + across
                if 0 <= column + across < columns and max(first, start) <= other <= last:
                    cells.add(other)
    return sorted(cells)


def connected_components(cells: Sequence[int], columns: int) -> list[list[int]]:
    """Cells that touch, also by a corner, hang together; each island ascends, and so do the islands by their first cell."""
    left, components = set(cells), []
    while left:
        frontier, island = [min(left)], []
        left.discard(frontier[0])
        while frontier:
            cell = frontier.pop()
            island.append(cell)
            row, column = divmod(cell, columns)
            near = {
                (row + down) * columns + column + across
                for down in (-1, 0, 1)
                for across in (-1, 0, 1)
                if 0 <= column + across < columns
            }
            frontier += near & left
            left -= near
        components.append(sorted(island))
    return components


@dataclass
class LocalVerification:
    """Accept rule of one run, whose session it opens, as it runs the target again within a round.

    ``neighbours`` int64 [code, rank]; ``columns`` of the grid. ``rewrite`` renews stale cache entries when a block is done,
    else they stay.
    """

    neighbours: Tensor
    columns: int
    tau: float
    pool: int
    radius: int
    rewrite: bool = True
    unshared = "Local verification runs its target again within a round, for one picture: draw the pictures one after another."

    def open(self, target: Target, capacity: int, taps: Sequence[int]) -> ImageSession:
        """The run's session. Raises ModelUnavailable for a target whose cache entries cannot be written again."""
        session = target.open(capacity, taps)
        if not isinstance(session, ImageSession):
            raise ModelUnavailable(f"{target.name} draws no pictures; choose an image target, such as emoji-64.")
        self._session = session
        return session

    def judge(self, draft: Draft, target: TargetPass, context: Context) -> Verdict:
        """Which codes of the block fail, and what the target draws in their places. The path is the whole block.

        The target's further passes count as verification.
        """
        verdict = self._failures(draft, target, context)
        context.mark("judge")
        verdict = _Waves(self, self._session, draft, target, verdict, context).verdict()
        context.mark("verify")
        return verdict

    def _failures(self, draft: Draft, target: TargetPass, context: Context) -> Verdict:
        """Which codes fail. What stays is *accepted* where it is the very code that the target would have drawn there, else
        *relaxed*; the repair changes what stands before it, so it is said anew then."""
        nodes = len(draft.tree)
        distribution = context.warp.log_probabilities(target.logits[: nodes - 1]).exp()
        codes = draft.tree.tokens[1:]
        mass = neighbour_mass(distribution, codes, self.neighbours[:, : self.pool]).tolist()
        with context.untimed:  # the rule itself does not ask what the target would have drawn
            code_marks = kept_marks(codes.tolist(), target.logits[: nodes - 1], context)
        marks = [ROOT, *(REJECTED if code_mass < self.tau else mark for code_mass, mark in zip(mass, code_marks, strict=True))]
        return Verdict(
            rule="local",
            path=tuple(range(1, nodes)),
            bonus=None,
            source="target",
            statuses=tuple(marks),
            visited=(*range(nodes - 1),),
            thresholds=dict.fromkeys(range(1, nodes), self.tau),
            notes=context.notes(lambda: [self._judged(mass, marks)]),
        )

    def _judged(self, mass: Sequence[float], marks: Sequence[str]) -> Note:
        """The note before anything is drawn again."""
        return LocalVerificationNote(
            mass=mass,
            tau=self.tau,
            pool=self.pool,
            radius=self.radius,
            rewritten=self.rewrite,
            failed=[node for node, mark in enumerate(marks) if mark == REJECTED],
            islands=(),
            waves=[0] * len(mass),
            passes=1,
            stale=(),
        ).to_note()


def kept_marks(codes: Sequence[int], logits: Tensor, context: Context) -> list[str]:
    """For each of a block's ``codes``, given the target's ``logits`` [place, code] there: is it the one it would have drawn?"""
    places = [context.position + place for place in range(1, len(codes) + 1)]
    own = context.warp.choose(logits, places, context.noise).tolist()
    return [ACCEPTED if code == target_code else RELAXED for code, target_code in zip(codes, own, strict=True)]


class _Waves:
    """One block's repair. A node of the chain and a cell of the picture differ by ``shift``."""

    def __init__(
        self, rule: LocalVerification, session: ImageSession, draft: Draft, scored: TargetPass, verdict: Verdict, context: Context
    ) -> None:
        self.rule, self.session, self.judged, self.context = rule, session, verdict, context
        self.logits = scored.logits.clone()
        self.tokens = list(draft.tree.host_tokens)
        self.last = len(self.tokens) - 1
        self.shift = context.position - context.prompt_length
        self.wave_of: dict[int, int] = {}
        self.passes = 1
        self.changed: set[int] = set()
        """Nodes whose cache entries are still those of another code."""
        self.outdated: set[int] = set()
        """Nodes whose cache entries were made before something at or in front of them changed, or over such entries."""

    def verdict(self) -> Verdict:
        failed = [node for node, mark in enumerate(self.judged.statuses) if mark == REJECTED]
        cells = [node + self.shift for node in failed]
        again = dilate(cells, 1 + self.shift, self.last + self.shift, self.rule.columns, self.rule.radius)
        components = connected_components(again, self.rule.columns)
        self._run([[cell - self.shift for cell in island] for island in components])
        with self.context.untimed:
            # By the logits of the last pass that read each place: with entries rewritten, those of the block as it is now.
            code_marks = kept_marks(self.tokens[1:], self.logits[: self.last], self.context)
        marks = [RESAMPLED if node in self.wave_of else mark for node, mark in enumerate(code_marks, start=1)]
        return replace(
            self.judged,
            statuses=(ROOT, *marks),
            replaced={node: self.tokens[node] for node in self.wave_of},
            passes=self.passes,
            notes=self.context.notes(lambda: [self._note(components)]),
        )

    def _note(self, components: list[list[int]]) -> Note:
        return replace(
            LocalVerificationNote.of(self.judged.notes[0]),
            islands=[[cell - self.shift for cell in island] for island in components],
            waves=[self.wave_of.get(node, 0) for node in range(1, len(self.tokens))],
            passes=self.passes,
            # The last code has no entry yet: it is the next round's root.
            stale=sorted(self.outdated - {self.last}),
        ).to_note()

    def _run(self, left: list[list[int]]) -> None:
        """Wave by wave the first cell that is left of every island; the first wave needs no pass of its own.

        A wave runs the cells it draws after, and those that it changed before. Entries of kept cells in between are renewed
        once, when the last wave is over: until then the distributions of later waves are approximations, but for a block that is
        drawn again without a gap, as above tau 1.
        """
        wave = 0
        while left:
            wave += 1
            heads = [island[0] for island in left]
            rows = self._distributions([head - 1 for head in heads])
            places = [self.context.position + head for head in heads]
            chosen = self.context.warp.choose(rows, places, self.context.noise).tolist()
            for head, code in zip(heads, chosen, strict=True):
                self._change(head, int(code), wave)
            left = [island[1:] for island in left if len(island) > 1]
        pending = sorted((self.outdated if self.rule.rewrite else self.changed) - {self.last})
        if pending:
            self._pass(range(pending[0], self.last) if self.rule.rewrite else pending)

    def _change(self, node: int, code: int, wave: int) -> None:
        self.wave_of[node] = wave
        if code != self.tokens[node]:
            self.tokens[node] = code
            self.changed.add(node)
            self.outdated |= set(range(node, self.last + 1))

    def _distributions(self, nodes: list[int]) -> Tensor:
        """Logits after each of these nodes, [asked, code]: as they are known while nothing before them has changed."""
        if again := self.outdated.intersection(nodes):
            self._pass(sorted(again | {node for node in self.changed if node < max(again)}))
        return self.logits[nodes]

    def _pass(self, nodes: Sequence[int]) -> None:
        self.passes += 1
        self.changed -= set(nodes)
        left = self.outdated - set(nodes)
        behind = min(left, default=self.last)
        self.outdated = left | {node for node in self.outdated.intersection(nodes) if node > behind}
        self.logits[list(nodes)] = self.session.rewrite(self.tokens, list(nodes)).logits
