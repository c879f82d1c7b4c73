"""Autoregressive draft model: a smaller language model, one token at a time (speculative sampling).

The model's cache follows the committed text; rejected drafts are rewound. Committed tokens that the model has not yet processed
are fed before the next draft: the bonus token and, after full acceptance, the last drafted token.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from specviz.drafting.levels import ChainLevels
from specviz.drafting.networks.small_lm import SmallLM
from specviz.drafting.runtimes.null import NullDrafter
from specviz.engine.interfaces import Context, Proposal, Round, Session, Target, TargetPass
from specviz.engine.to_device import to_device
from specviz.engine.tree import DraftTree, chain

# Longer inputs run as a prefill; up to this length a padded (and on CUDA captured) pass is used.
SHORT = 32


class ChainModel(Protocol):
    """Interface of the drafter's model, which extends or rewinds a text."""

    support: Tensor | None
    """Ids of its output vocabulary, int64 [support], or None for the target's own."""

    def extend(self, ids: Sequence[int] | Tensor) -> Tensor:
        """Append ``ids`` (a sequence, or int64 [token] on the model's device); return logits [support] after them."""

    def rewind(self, length: int) -> None:
        """Keep the first ``length`` tokens."""

    def close(self) -> None:
        """Release memory."""


class TaughtModel(ChainModel, Protocol):
    """A model that also returns logits after every token of a text."""

    def extend_all(self, ids: Sequence[int]) -> Tensor:
        """Append ``ids``; return logits [token, support] after each of them."""


@dataclass(frozen=True)
class DraftModel:
    """A loaded draft model: its name, its context length, and a function that opens it with a capacity in tokens.

    ``target`` is the same model as a tree-scoring target, None if it can only extend a chain.
    """

    name: str
    context_length: int
    open: Callable[[int], TaughtModel]
    warnings: tuple[str, ...] = ()
    target: Target | None = None


class SessionModel:
    """A target's session as a draft model. Ids that only one of the two models has are padding."""

    def __init__(self, session: Session, target: Target, vocab_size: int | None = None) -> None:
        """``vocab_size`` is the verifying target's, if it may differ from the draft model's own."""
        self.session = session
        self._device = target.device
        self._rows = target.vocab_size
        self._vocab = min(target.vocab_size, vocab_size or target.vocab_size)
        padded = vocab_size is not None and vocab_size != self._vocab
        self.support: Tensor | None = torch.arange(self._vocab, device=self._device) if padded else None

    def extend(self, ids: Sequence[int] | Tensor) -> Tensor:
        if isinstance(ids, Tensor):
            return self._scored(DraftTree(chain(len(ids) - 1), ids.to(self._device).clamp_max(self._rows - 1)))
        # A token outside this model's vocabulary is padding in the other's: it occurs in no text.
        ids = [min(token, self._rows - 1) for token in ids]
        if len(ids) > SHORT:
            return self.session.prefill(ids).logits[-1, : self._vocab]
        return self._scored(DraftTree.of(ids, range(-1, len(ids) - 1), self._device))

    def _scored(self, tree: DraftTree) -> Tensor:
        logits = self.session.score(tree).logits[-1, : self._vocab]
        self.session.keep(range(len(tree)))
        return logits

    def extend_all(self, ids: Sequence[int]) -> Tensor:
        """Append ``ids`` in passes over chains of at most SHORT; return logits [token, support] after each of them."""
        ids, rows = [min(token, self._rows - 1) for token in ids], []
        for start in range(0, len(ids), SHORT):
            piece = ids[start : start + SHORT]
            tree = DraftTree.of(piece, range(-1, len(piece) - 1), self._device)
            rows.append(self.session.score(tree).logits[:, : self._vocab])
            self.session.keep(range(len(piece)))
        return torch.cat(rows)

    def rewind(self, length: int) -> None:
        self.session.rewind(length)

    def close(self) -> None:
        self.session.close()


class SmallModel:
    """Per-run state of the small draft model."""

    def __init__(self, model: SmallLM, capacity: int) -> None:
        self._model = model
        self._cache = model.open(capacity)
        self.support: Tensor | None = model.draft_ids

    def extend(self, ids: Sequence[int] | Tensor) -> Tensor:
        tokens = ids if isinstance(ids, Tensor) else to_device(list(ids), self._model.draft_ids.device)
        return self._model(tokens, self._cache, last_only=True)[-1]

    def extend_all(self, ids: Sequence[int]) -> Tensor:
        """Append ``ids``; return logits [token, support] after each of them."""
        return self._model(to_device(list(ids), self._model.draft_ids.device), self._cache)

    def rewind(self, length: int) -> None:
        self._cache.keep(length)

    def close(self) -> None:
        """Do nothing: the cache is freed with this object."""


class LanguageModelDrafter(NullDrafter):
    """Chain drafter. ``open_model(capacity)`` opens a new :class:`ChainModel`, one per run."""

    def __init__(self, open_model: Callable[[int], ChainModel], context_length: int) -> None:
        self._open = open_model
        self._context_length = context_length
        self._model: ChainModel | None = None
        self._fed: list[int] = []
        self._agreed = 0
        self._unseen = 0
        """Number of tokens in the cache after ``_fed`` that are not yet on the host."""

    def begin(self, context: Context, prefill: TargetPass | None) -> None:
        capacity = min(self._context_length, len(context.ids) + context.max_depth)
        self._model = self._open(capacity)
        self._fed, self._unseen = [], 0
        self._agreed = 0
        if 1 < len(context.ids) <= self._context_length:
            self._feed(list(context.ids[:-1]))
        self._calls = 0

    def _feed(self, text: list[int]) -> Tensor:
        """Make the model's cache match ``text``; return the logits after it. At least the last token is always run."""
        assert self._model is not None
        same = self._same(text)
        if same < len(self._fed) + self._unseen:
            self._model.rewind(same)
        self._unseen = 0
        logits = self._model.extend(text[same:])
        self._fed = text
        self._calls += 1
        return logits

    def _same(self, text: list[int]) -> int:
        """Return the number of cached tokens that match ``text``, its last token excluded."""
        same = min(self._agreed, len(text) - 1)
        while same < min(len(self._fed), len(text) - 1) and self._fed[same] == text[same]:
            same += 1
        return same

    @property
    def support(self) -> Tensor | None:
        """Ids of its vocabulary, int64 [support], or None for the target's own."""
        assert self._model is not None
        return self._model.support

    def levels(self, context: Context) -> ChainLevels | None:
        """Return this round's chain; None if the context is full. Its tokens reach the host after the round."""
        deepest = self._context_length - len(context.ids)
        return ChainLevels(partial(self._after, context), deepest) if deepest > 0 else None

    def rows(
        self, context: Context, tokens: Sequence[int], parents: Sequence[int], nodes: Sequence[int]
    ) -> list[Proposal | None]:
        """Return the warped distribution after the chain of ``tokens`` so far; the plain softmax at temperature 0."""
        assert self._model is not None and list(nodes) == [len(tokens) - 1], "this drafter grows chains"
        text = [*context.ids, *tokens[1:]]
        if len(text) >= self._context_length:
            return [None]
        distribution = context.warp.log_probabilities(self._feed(text)).exp()
        self._agreed = len(context.ids)  # committed and fed: no need to compare it again
        return [Proposal(distribution, self._model.support)]

    def _after(self, context: Context, token: Tensor | None) -> Tensor:
        assert self._model is not None
        if token is None:
            logits = self._feed(list(context.ids))
            self._agreed = len(context.ids)  # committed and fed: no need to compare it again
            return logits
        self._unseen += 1
        self._calls += 1
        return self._model.extend(token)

    def observe(self, finished: Round) -> None:
        """Record the chain's tokens that entered the cache: some of them may have been committed."""
        tokens = finished.draft.tree.host_tokens
        if self._unseen and self._fed == list(finished.context.ids) and len(tokens) > self._unseen:
            self._fed = [*self._fed, *tokens[1 : 1 + self._unseen]]
            self._unseen = 0

    def close(self) -> None:
        if self._model is not None:
            self._model.close()
            self._model = None
