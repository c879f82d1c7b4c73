"""Layer-parallel draft model (EasySpec): middle layers' attention runs in parallel, and the cache is corrected once per round.

EasySpec (Wu et al., arXiv 2502.02493). A layer that reads its group's input, instead of the previous layer's output, computes
slightly wrong keys and values. Each round therefore begins with one exact pass over the tokens committed since the last exact
pass. It overwrites the fuzzy entries and yields the first drafted token's distribution. Later tokens are sampled from fuzzy
distributions, and the ratio test uses those same distributions, so it stays exact.
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
    """A draft model's state in one run, whose forwards are exact or run groups of layers in parallel."""

    def extend(self, ids: Sequence[int] | Tensor, fuzzy: bool = False) -> Tensor:
        """Append ``ids`` (a sequence, or int64 [token] on the model's device); return logits [support] after them."""

    def entries(self, start: int, end: int) -> Tensor:
        """Return a copy of these tokens' keys and values, [layer, token, number]."""


@dataclass(frozen=True)
class GroupedModel:
    """A draft model, its groups of layers with parallel attention, and a function that opens it with a capacity in tokens."""

    name: str
    context_length: int
    spans: tuple[tuple[int, ...], ...]
    open: Callable[[int], Fuzzy]
    devices: tuple[str, ...] = ()
    """Device of each layer, if they differ."""
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Repair:
    """Token counts of a round (in its exact pass, repaired by that pass, still fuzzy), and ``likeness`` [layer, token]: the
    cosine similarity of repaired entries to their fuzzy versions."""

    exact: int = 0
    repaired: int = 0
    likeness: Sequence[Sequence[float]] = ()
    fuzzy: int = 0


class GroupedDrafter(LanguageModelDrafter):
    """Chain drafter on a grouped model. With ``calibrated`` False, fuzzy entries are never repaired, to show their long-run
    effect."""

    _model: Fuzzy | None

    def __init__(self, model: GroupedModel, calibrated: bool = True) -> None:
        super().__init__(model.open, model.context_length)
        self._grouped = model
        self._calibrated = calibrated
        self._repair = _Repair()

    def begin(self, context: Context, prefill: TargetPass | None) -> None:
        super().begin(context, prefill)
        self._agreed = len(self._fed)  # length of the cache's prefix with exact entries

    def _after(self, context: Context, token: Tensor | None) -> Tensor:
        assert self._model is not None
        self._calls += 1
        if token is None:
            return self._first(context, list(context.ids))
        self._unseen += 1
        return self._model.extend(token, True)

    def _first(self, context: Context, text: list[int]) -> Tensor:
        """Return the round's first logits, from an exact pass over the committed tokens without exact entries (fuzzy if not
        calibrated)."""
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
