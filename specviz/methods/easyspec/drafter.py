"""Layer-parallel draft model (EasySpec): middle layers attend side by side, and the cache is corrected once a round.

EasySpec (Wu et al., arXiv 2502.02493). A layer that reads the input of its group, instead of its neighbour's output, computes
slightly wrong keys and values. Each round therefore begins with one exact pass over the tokens committed since the last one: it
overwrites the fuzzy entries and yields the first draft's distribution. Later drafts are drawn from fuzzy distributions, which are
recorded as such, so the ratio test stays exact.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from specviz.drafting.levels import ChainLevels
from specviz.drafting.runtimes.null import NullDrafter
from specviz.engine.interfaces import Context, Pick, Round, TargetPass
from specviz.trace.notes.models import LayerGroupsNote
from specviz.trace.schema import Note


class Fuzzy(Protocol):
    """A model for one run that can pass tokens through exactly, or with groups of layers side by side."""

    @property
    def length(self) -> int: ...

    @property
    def support(self) -> Tensor | None: ...

    def extend(self, ids: Sequence[int] | Tensor, fuzzy: bool) -> Tensor:
        """Append ``ids`` (numbers, or int64 [token] on the model's device); return logits [support] after them."""

    def rewind(self, length: int) -> None:
        """Keep the first ``length`` tokens."""

    def entries(self, start: int, end: int) -> Tensor:
        """Return a copy of these tokens' keys and values, [layer, token, number]."""

    def close(self) -> None:
        """Release memory."""


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


class GroupedDrafter(NullDrafter):
    """Chain drafter on a grouped model. ``calibrated`` False never repairs fuzzy entries, to show their long-run effect."""

    def __init__(self, model: GroupedModel, calibrated: bool = True) -> None:
        self._grouped = model
        self._calibrated = calibrated
        self._model: Fuzzy | None = None
        self._exact = 0
        """Number of tokens at the front of the cache whose entries are exact."""
        self._fed: list[int] = []
        self._unseen = 0
        """Number of tokens in the cache behind ``_fed`` that are not yet on the host."""
        self._calls = 0
        self._repair = _Repair()

    def begin(self, context: Context, prefill: TargetPass | None) -> None:
        capacity = min(self._grouped.context_length, len(context.ids) + context.max_depth)
        self._model = self._grouped.open(capacity)
        self._fed, self._exact, self._unseen = [], 0, 0
        if 1 < len(context.ids) <= self._grouped.context_length:
            self._model.extend(context.ids[:-1], False)
            self._fed = list(context.ids[:-1])
            self._exact = len(self._fed)
        self._calls = 0

    @property
    def support(self) -> Tensor | None:
        """Ids of its vocabulary, int64 [support], or None for the target's own."""
        assert self._model is not None
        return self._model.support

    def levels(self, context: Context) -> ChainLevels | None:
        """Return this round's chain; None if the context is full. Its tokens reach the host after the round."""
        deepest = self._grouped.context_length - len(context.ids)
        return ChainLevels(partial(self._after, context), deepest) if deepest > 0 else None

    def _after(self, context: Context, token: Tensor | None) -> Tensor:
        assert self._model is not None
        self._calls += 1
        if token is None:
            return self._first(context, list(context.ids))
        self._unseen += 1
        return self._model.extend(token, True)

    def observe(self, finished: Round) -> None:
        """Record the chain's tokens that entered the cache: some of them may have been committed."""
        tokens = finished.draft.tree.host_tokens
        if self._unseen and self._fed == list(finished.context.ids) and len(tokens) > self._unseen:
            self._fed = [*self._fed, *tokens[1 : 1 + self._unseen]]
            self._unseen = 0

    def _first(self, context: Context, text: list[int]) -> Tensor:
        """Return the round's first logits, after an exact pass over committed tokens that had none."""
        model = self._model
        assert model is not None
        same = self._same(text)
        if not self._calibrated:
            model.rewind(same)
            self._repair = _Repair(fuzzy=len(text) - self._exact)
            logits = model.extend(text[same:], True)
        else:
            fuzzy = (self._exact, same) if context.record_notes and same > self._exact else None
            before = None
            if fuzzy:
                with context.untimed:
                    before = model.entries(*fuzzy)
            model.rewind(self._exact)
            logits = model.extend(text[self._exact :], False)
            repaired = max(0, same - self._exact)
            likeness: list[list[float]] = []
            if fuzzy and before is not None:
                with context.untimed:
                    likeness = _likeness(before, model.entries(*fuzzy))
            self._repair = _Repair(len(text) - self._exact, repaired, likeness)
            self._exact = len(text)
        self._fed, self._unseen = text, 0
        return logits

    def _same(self, text: list[int]) -> int:
        """Return the number of cached tokens that match the text; at least the text's last token is always run."""
        same = min(self._exact, len(text) - 1)
        while same < min(len(self._fed), len(text) - 1) and self._fed[same] == text[same]:
            same += 1
        return same

    def calls(self) -> int:
        count, self._calls = self._calls, 0
        return count

    def draft_notes(self, picks: Sequence[Pick]) -> tuple[Note, ...]:
        layers = sum(map(len, self._grouped.spans))
        note = LayerGroupsNote(
            layers=layers,
            groups=[list(span) for span in self._grouped.spans],
            stages=len(self._grouped.spans),
            calibrated=self._calibrated,
            cached=len(self._fed) + self._unseen,
            drafted=max(0, len(picks)),
            devices=list(self._grouped.devices),
            exact=self._repair.exact,
            repaired=self._repair.repaired,
            fuzzy=self._repair.fuzzy,
            likeness=self._repair.likeness,
        )
        return (note.to_note(),)

    def close(self) -> None:
        if self._model is not None:
            self._model.close()
            self._model = None


def _likeness(fuzzy: Tensor, exact: Tensor) -> list[list[float]]:
    """Return the cosine between each token's fuzzy and exact entry, [layer][token]."""
    return torch.nn.functional.cosine_similarity(fuzzy.float(), exact.float(), dim=-1).tolist()
