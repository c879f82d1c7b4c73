"""Coarse-grid drafter of image rows, upsampled to the target's grid: MuLo-SD (arXiv 2601.05149).

A low-resolution partner samples rows of its own picture code by code; an upsampler turns each coarse row into two fine ones. Once
the target has committed those rows, a downsampler converts them back, and the partner continues from the result. The draft tree
is one chain of deterministic codes in reading order, without a bonus token.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from specviz.drafting.runtimes.null import NullDrafter
from specviz.engine.interfaces import Context, Draft, Round, Session, TargetPass
from specviz.engine.sampling import DRAFT
from specviz.engine.to_device import to_device
from specviz.engine.tree import DraftTree, chain
from specviz.trace.notes.images import CoarseCodesNote


@dataclass(frozen=True)
class CoarsePartner:
    """The low-resolution partner. ``open()`` starts a session, ``prompt`` are its prompt ids, ``columns`` is its number of
    columns and of rows.

    ``up`` maps coarse codes [row, column], from the top row, to fine codes [2 row, 2 column]; ``down`` does the reverse.
    """

    name: str
    open: Callable[[], Session]
    prompt: tuple[int, ...]
    columns: int
    up: Callable[[Tensor], Tensor]
    down: Callable[[Tensor], Tensor]


class CoarseRows(NullDrafter):
    """Drafter of ``rows`` coarse rows per round, upsampled to twice as many fine ones. All codes stay on the device."""

    def __init__(self, partner: CoarsePartner, rows: int) -> None:
        self._partner, self._most = partner, rows
        self._session: Session | None = None
        self._drawn = torch.empty(0, dtype=torch.long)
        """The partner's last prompt token, then its picture so far, downsampled from the target's, int64 [1 + code]."""

    def begin(self, context: Context, prefill: TargetPass | None) -> None:
        partner = self._partner
        self._drawn = to_device(partner.prompt[-1:], context.device)
        self._session = partner.open()
        self._session.prefill(partner.prompt[:-1])

    def close(self) -> None:
        if self._session is not None:
            self._session.close()
        self._session = None

    def block(self, context: Context) -> tuple[Tensor, Tensor]:
        """Return the next rows' fine codes and their coarse codes, both int64 [code] in reading order. There is one drafter
        forward per coarse code."""
        assert self._session is not None
        columns, known = self._partner.columns, len(self._drawn) - 1
        rows = min(self._most, columns - known // columns)
        codes = self._drawn
        for place in range(known, known + rows * columns):
            logits = self._session.score(DraftTree(chain(0), codes[-1:])).logits
            self._session.keep([0])
            code = context.warp.choose(logits, [(context.round << 16) + place], context.noise, DRAFT)
            codes = torch.cat((codes, code))
        fine = self._partner.up(codes[1:].view(-1, columns))[-2 * rows :]
        return fine.flatten(), codes[1 + known :]

    def observe(self, finished: Round) -> None:
        """Update the partner's picture from the target's, and its cache from that picture."""
        assert self._session is not None
        context, columns = finished.context, self._partner.columns
        codes = [*context.ids[context.prompt_length :], *finished.emitted]
        rows, before = len(codes) // (4 * columns), len(self._drawn)
        self._session.rewind(len(self._partner.prompt) - 2 + before)
        if rows * columns < before:
            return
        fine = to_device(codes[: 4 * columns * rows], context.device).view(-1, 2 * columns)
        settled = self._partner.down(fine).flatten()
        self._drawn = torch.cat((self._drawn, settled[before - 1 :]))
        fresh = self._drawn[before - 1 : -1]
        self._session.score(DraftTree(chain(len(fresh) - 1), fresh))
        self._session.keep(range(len(fresh)))


class BlockRows:
    """Tree builder of whole rows, as drafted; the block is cut at the end of the picture."""

    def build(self, drafter: CoarseRows, context: Context) -> Draft:
        fine, coarse = drafter.block(context)
        fine = fine[: max(0, context.max_depth)]
        tree = DraftTree(chain(len(fine)), torch.cat((to_device(context.ids[-1:], context.device), fine)))
        notes = context.notes(lambda: [CoarseCodesNote(coarse.tolist(), fine.tolist()).to_note()])
        return Draft(tree, confidence=(None,) * len(tree), calls=len(coarse), notes=notes)
