"""Layer-parallel draft model (EasySpec): middle layers attend side by side, and the cache is corrected once a round.

EasySpec (Wu et al., arXiv 2502.02493). A layer that reads the input of its group, instead of its neighbour's output, computes
slightly wrong keys and values. Each round therefore begins with one exact pass over the tokens committed since the last one: it
overwrites the fuzzy entries and yields the first draft's distribution. Later drafts are drawn from fuzzy distributions, which are
recorded as such, so the ratio test stays exact.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch.nn.functional as F
from torch import Tensor

from specviz.drafting.runtimes.language_model import ChainModel, LanguageModelDrafter
from specviz.engine.interfaces import Context, Pick, TargetPass
from specviz.trace.notes.models import LayerGroupsNote
from specviz.trace.schema import Note


class Fuzzy(ChainModel, Protocol):
    """A model for one run that can pass tokens through exactly, or with groups of layers side by side."""

    def extend(self, ids: Sequence[int] | Tensor, fuzzy: bool = False) -> Tensor:
        """Append ``ids`` (numbers, or int64 [token] on the model's device); return logits [support] after them."""

    def entries(self, start: int, end: int) -> Tensor:
        """Return a copy of these tokens' keys and values, [layer, token, number]."""


@dataclass(frozen=True)
class GroupedModel:
    """A draft model, its groups of layers that attend side by side, and a function that opens it for a number of tokens."""

    name: str
    context_length: int
    spans: tuple[tuple[int, ...], ...]
    open: Callable[[int], Fuzzy]
    devices: tuple[str, ...] = ()
    """Device of each layer, if they differ."""
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Repair:
    """Token counts of a round: in its exact pass, repaired by it, and still fuzzy; and cosines [layer, token] of the repaired
    entries to their fuzzy versions."""

    exact: int = 0
    repaired: int = 0
    likeness: Sequence[Sequence[float]] = ()
    fuzzy: int = 0


class GroupedDrafter(LanguageModelDrafter):
    """Chain drafter on a grouped model. ``calibrated`` False never repairs fuzzy entries, to show their long-run effect."""

    _model: Fuzzy | None

    def __init__(self, model: GroupedModel, calibrated: bool = True) -> None:
        super().__init__(model.open, model.context_length)
        self._grouped = model
        self._calibrated = calibrated
        self._repair = _Repair()

    def begin(self, context: Context, prefill: TargetPass | None) -> None:
        super().begin(context, prefill)
        self._agreed = len(self._fed)  # the tokens at the front of the cache whose entries are exact

    def _after(self, context: Context, token: Tensor | None) -> Tensor:
        assert self._model is not None
        self._calls += 1
        if token is None:
            return self._first(context, list(context.ids))
        self._unseen += 1
        return self._model.extend(token, True)

    def _first(self, context: Context, text: list[int]) -> Tensor:
        """Return the round's first logits, after an exact pass over committed tokens that had none."""
        model, exact, same = self._model, self._agreed, self._same(text)
        assert model is not None
        if not self._calibrated:
            model.rewind(same)
            self._repair = _Repair(fuzzy=len(text) - exact)
            logits = model.extend(text[same:], True)
        else:
            before, likeness = None, list[list[float]]()
            if context.record_notes and same > exact:
                with context.untimed:
                    before = model.entries(exact, same)
            model.rewind(exact)
            logits = model.extend(text[exact:])
            if before is not None:
                with context.untimed:
                    after = model.entries(exact, same)
                    likeness = F.cosine_similarity(before.float(), after.float(), dim=-1).tolist()
            self._repair = _Repair(len(text) - exact, max(0, same - exact), likeness)
            self._agreed = len(text)
        self._fed, self._unseen = text, 0
        return logits

    def draft_notes(self, picks: Sequence[Pick]) -> tuple[Note, ...]:
        note = LayerGroupsNote(
            layers=sum(map(len, self._grouped.spans)),
            groups=[list(span) for span in self._grouped.spans],
            stages=len(self._grouped.spans),
            calibrated=self._calibrated,
            cached=len(self._fed) + self._unseen,
            drafted=len(picks),
            devices=list(self._grouped.devices),
            exact=self._repair.exact,
            repaired=self._repair.repaired,
            fuzzy=self._repair.fuzzy,
            likeness=self._repair.likeness,
        )
        return (note.to_note(),)
