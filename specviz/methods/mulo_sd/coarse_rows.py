"""Coarse-grid drafter of image rows, upsampled to the target's grid: MuLo-SD (arXiv 2601.05149).

A low-resolution partner samples rows of its own picture code by code; an upsampler turns each coarse row into two fine ones. Once
the target has committed those rows, a downsampler converts them back, and the partner continues from the result. The draft tree
is one chain of deterministic codes in reading order, without a bonus token.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from specviz.drafting.levels import ChainLevels, Levels
from specviz.drafting.runtimes.language_model import SessionLevels, session_levels
from specviz.drafting.runtimes.null import NullDrafter
from specviz.engine.interfaces import Context, Draft, Round, Session, TargetPass
from specviz.engine.sampling import DRAFT
from specviz.engine.to_device import to_device
from specviz.engine.tree import DraftTree, chain
from specviz.trace.notes.images import CoarseCodesNote


@dataclass(frozen=True)
class CoarsePartner:
    """The low-resolution partner. ``open()``: function that starts a session. ``prompt``: prompt token ids. ``columns``: number
    of columns, and of rows, of the coarse grid.

    ``up`` maps coarse codes [row, column], from the top row, to fine codes [2 row, 2 column]; ``down`` does the reverse.
    """

    name: str
    vocab_size: int
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
        self._levels: SessionLevels | None = None
        self._fine: Sequence[int] = ()
        """The target's picture so far, in whole rows of the partner's grid."""

    def begin(self, context: Context, prefill: TargetPass | None) -> None:
        self._session, self._fine = self._partner.open(), ()
        self._levels = session_levels(self._session, context.device)
        self._session.prefill(self._partner.prompt[:-1])

    def close(self) -> None:
        for part in (self._levels, self._session):
            if part is not None:
                part.close()
        self._session = self._levels = None

    def block(self, context: Context) -> tuple[Tensor, Tensor]:
        """Return the next rows' fine codes and their coarse codes, both int64 [code] in reading order.

        There is one drafter forward per coarse code; the first one also runs the codes downsampled since the last round. In
        later blocks a forward is a captured graph that includes the samplers.
        """
        session, partner, warp = self._session, self._partner, context.warp
        assert session is not None
        up, down, columns, known = partner.up, partner.down, partner.columns, len(self._fine) // 4
        fresh, missing = min(self._most * columns, columns**2 - known), len(partner.prompt) + known - session.length
        levels: Levels = ChainLevels(self._after, fresh)
        if self._levels is not None and known:  # the first root may have a different token in the unconditional row
            levels = self._levels
            self._levels.take([0] * missing, fresh)
        places = [((context.round << 16) + place,) for place in range(known, known + fresh)]
        race = levels.given("race", context.noise.exponentials(partner.vocab_size, DRAFT, places, context.device))
        given = levels.given("given", to_device([*partner.prompt[-1:], *self._fine], context.device))

        def next_code(codes: Tensor) -> tuple[Tensor, ...]:
            """Return the picture so far with one more code, and its fine codes once the block is full."""
            new = len(codes) - 1 - known
            tokens = codes[-1 if new else -missing :]
            logits = levels.below(tokens, tokens)
            codes = torch.cat((codes, (warp.probabilities(logits).double() / race[new]).argmax(-1)))
            return (codes,) if new + 1 < fresh else (codes, up(codes[1:].view(-1, columns)).flatten()[-4 * fresh :])

        def first_code() -> tuple[Tensor, ...]:
            fine = given[1:].view(-1, 2 * columns)
            return next_code(torch.cat((given[:1], (down(fine) if known else fine).flatten())))

        key = (warp, known, missing)
        found = levels.step(key, first_code)
        for _ in range(1, fresh):
            found = levels.step(key, partial(next_code, found[0]))
        return found[1], found[0][1 + known :]

    def _after(self, tokens: Tensor | None) -> Tensor:
        """Return logits [code] after ``tokens`` [token], which enter the cache."""
        assert self._session is not None and tokens is not None
        logits = self._session.score(DraftTree(chain(len(tokens) - 1), tokens)).logits[-1]
        self._session.keep(range(len(tokens)))
        return logits

    def observe(self, finished: Round) -> None:
        """Rewind the partner's cache to the picture before this round, then take over the target's picture."""
        assert self._session is not None
        self._session.rewind(len(self._partner.prompt) - 1 + len(self._fine) // 4)
        codes = [*finished.context.ids[finished.context.prompt_length :], *finished.emitted]
        self._fine = codes[: len(codes) - len(codes) % (4 * self._partner.columns)]


class BlockRows:
    """Tree builder that sends all drafted rows as one chain, cut at the end of the picture."""

    def build(self, drafter: CoarseRows, context: Context) -> Draft:
        fine, coarse = drafter.block(context)
        fine = fine[: max(0, context.max_depth)]
        tree = DraftTree(chain(len(fine)), torch.cat((to_device(context.ids[-1:], context.device), fine)))
        notes = context.notes(lambda: [CoarseCodesNote(coarse.tolist(), fine.tolist()).to_note()])
        return Draft(tree, confidence=(None,) * len(tree), calls=len(coarse), notes=notes)
