"""Coarse-grid drafter of image rows, upsampled to the target's grid: MuLo-SD (arXiv 2601.05149).

A low-resolution partner draws rows of its own picture one code after the other; an up-sampler makes two fine rows of each
coarse one. Once the target has settled those rows, a down-sampler turns them back, and the partner goes on from that.
The draft tree is one chain of deterministic codes in reading order, without a bonus token.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from specviz.drafters.null import NullDrafter
from specviz.engine.interfaces import Context, Draft, Round, Session, TargetPass
from specviz.engine.sampling import DRAFT
from specviz.engine.tree import DraftTree
from specviz.trace.notes.images import CoarseCodesNote


@dataclass(frozen=True)
class CoarsePartner:
    """The partner: ``open()`` starts a run of it, ``prompt`` are its ids, ``columns`` its codes a row (as many rows).

    ``up`` takes coarse codes [row, column] from the top to fine ones [2 row, 2 column], ``down`` the other way round.
    """

    name: str
    open: Callable[[], Session]
    prompt: tuple[int, ...]
    columns: int
    up: Callable[[Tensor], Tensor]
    down: Callable[[Tensor], Tensor]


class CoarseRows(NullDrafter):
    """``rows`` coarse rows a round; the draft is twice as many fine ones."""

    def __init__(self, partner: CoarsePartner, rows: int) -> None:
        self._partner, self._most = partner, rows
        self._session: Session | None = None
        self._drawn: list[int] = []
        """The partner's picture so far, as it follows from the target's."""

    def begin(self, context: Context, prefill: TargetPass | None) -> None:
        partner = self._partner
        self._drawn = []
        self._session = partner.open()
        self._session.prefill(partner.prompt[:-1])

    def close(self) -> None:
        if self._session is not None:
            self._session.close()
        self._session = None

    def block(self, context: Context) -> tuple[list[int], list[int]]:
        """Fine codes of the next rows, and the coarse ones they were made of, which also count as the drafter's forwards."""
        assert self._session is not None
        columns = self._partner.columns
        rows = min(self._most, columns - len(self._drawn) // columns)
        coarse: list[int] = []
        for _ in range(rows * columns):
            codes = [*self._drawn, *coarse]
            root = codes[-1] if codes else self._partner.prompt[-1]
            target_pass = self._session.score(DraftTree.of([root], [-1], context.device))
            self._session.keep([0])
            place = (context.round << 16) + len(codes)
            coarse.append(int(context.warp.choose(target_pass.logits, [place], context.noise, DRAFT)[0]))
        picture = torch.tensor([*self._drawn, *coarse], device=context.device).view(-1, columns)
        fine = self._partner.up(picture)[-2 * rows :]
        return [int(code) for code in fine.flatten().tolist()], coarse

    def observe(self, finished: Round) -> None:
        """Bring the partner's picture in line with the target's, and its cache with that."""
        assert self._session is not None
        context, columns = finished.context, self._partner.columns
        codes = [*context.ids[context.prompt_length :], *finished.emitted]
        rows = len(codes) // (4 * columns)
        fine = torch.tensor(codes[: 4 * columns * rows], device=context.device).view(-1, 2 * columns)
        settled = [int(code) for code in self._partner.down(fine).flatten().tolist()] if rows else []
        start, before = len(self._partner.prompt) - 1, len(self._drawn)
        sequence = [self._partner.prompt[-1], *self._drawn, *settled[before:]]
        self._session.rewind(start + before)
        if len(settled) > before:
            self._session.prefill(sequence[before : len(settled)])
        self._drawn = [*self._drawn, *settled[before:]]


class BlockRows:
    """Tree builder of whole rows: takes what the drafter gives. The block ends where the picture does."""

    def build(self, drafter: CoarseRows, context: Context) -> Draft:
        fine, coarse = drafter.block(context)
        fine = fine[: max(0, context.max_depth)]
        tree = DraftTree.of([context.ids[-1], *fine], range(-1, len(fine)), context.device)
        notes = context.notes(lambda: [CoarseCodesNote(coarse, fine).to_note()])
        return Draft(tree, confidence=(None,) * len(tree), calls=len(coarse), notes=notes)
