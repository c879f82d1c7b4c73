"""Autoregressive draft model: a smaller language model, one token at a time (speculative sampling).

Its cache follows the committed text. Rejected drafts are rewound. Tokens that were committed but never run through it are fed
before the next draft: the bonus token and, after full acceptance, the last drafted token.
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
from specviz.engine.interfaces import Context, Pick, Proposal, Round, Session, Target, TargetPass
from specviz.engine.to_device import to_device
from specviz.engine.tree import DraftTree, chain
from specviz.trace.schema import Note

# Longer feeds are a prefill; up to this a padded (and on CUDA captured) pass is used.
SHORT = 32


class ChainModel(Protocol):
    """What the drafter needs of a model: extend the text, take some of it back."""

    support: Tensor | None
    """Ids of its output vocabulary, int64 [support], or None when that is the target's own."""

    def extend(self, ids: Sequence[int] | Tensor) -> Tensor:
        """Logits [support] after ``ids`` were appended: numbers, or int64 [token] where the model is."""

    def rewind(self, length: int) -> None:
        """Keep the first ``length`` tokens."""

    def close(self) -> None:
        """Give memory back."""


class TaughtModel(ChainModel, Protocol):
    """One that also says what it would have said after every token of a text."""

    def extend_all(self, ids: Sequence[int]) -> Tensor:
        """Logits [token, support] after each of ``ids``, which are appended."""


@dataclass(frozen=True)
class DraftModel:
    """A loaded draft model: its name, how far it can look back, and how to open it for one run of that many tokens.

    ``target`` is the model as one that scores trees, None where it can only extend a chain.
    """

    name: str
    context_length: int
    open: Callable[[int], TaughtModel]
    warnings: tuple[str, ...] = ()
    target: Target | None = None


class SessionModel:
    """Any target's session, used as a draft model. Logits that one of the two models lacks are padding, not words."""

    def __init__(self, session: Session, target: Target, vocab_size: int | None = None) -> None:
        """``vocab_size`` is the verifying target's, where it may differ from the draft model's own."""
        self.session = session
        self._device = target.device
        self._rows = target.vocab_size
        self._vocab = min(target.vocab_size, vocab_size or target.vocab_size)
        padded = vocab_size is not None and vocab_size != self._vocab
        self.support: Tensor | None = torch.arange(self._vocab, device=self._device) if padded else None

    def extend(self, ids: Sequence[int] | Tensor) -> Tensor:
        if isinstance(ids, Tensor):
            return self._scored(DraftTree(chain(len(ids) - 1), ids.to(self._device).clamp_max(self._rows - 1)))
        # A token that this model has no row for is padding of the other's vocabulary: no text holds it.
        ids = [min(token, self._rows - 1) for token in ids]
        if len(ids) > SHORT:
            return self.session.prefill(ids).logits[-1, : self._vocab]
        return self._scored(DraftTree.of(ids, range(-1, len(ids) - 1), self._device))

    def _scored(self, tree: DraftTree) -> Tensor:
        logits = self.session.score(tree).logits[-1, : self._vocab]
        self.session.keep(range(len(tree)))
        return logits

    def extend_all(self, ids: Sequence[int]) -> Tensor:
        """Logits [token, support] after each of ``ids``, which are appended: in passes over chains of at most SHORT."""
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
    """The small draft model that ships, opened for one run."""

    def __init__(self, model: SmallLM, capacity: int) -> None:
        self._model = model
        self._cache = model.open(capacity)
        self.support: Tensor | None = model.draft_ids

    def extend(self, ids: Sequence[int] | Tensor) -> Tensor:
        tokens = ids if isinstance(ids, Tensor) else to_device(list(ids), self._model.draft_ids.device)
        return self._model(tokens, self._cache, last_only=True)[-1]

    def extend_all(self, ids: Sequence[int]) -> Tensor:
        """Logits [token, support] after each of ``ids``, which are appended."""
        return self._model(to_device(list(ids), self._model.draft_ids.device), self._cache)

    def rewind(self, length: int) -> None:
        self._cache.keep(length)

    def close(self) -> None:
        """The cache goes with this object."""


class LanguageModelDrafter(NullDrafter):
    """``open_model(capacity)`` gives a fresh :class:`ChainModel`; one is opened per run."""

    def __init__(self, open_model: Callable[[int], ChainModel], context_length: int) -> None:
        self._open = open_model
        self._context_length = context_length
        self._model: ChainModel | None = None
        self._fed: list[int] = []
        self._agreed = 0
        self._unseen = 0
        """Tokens in the cache behind ``_fed`` that the host does not know yet."""
        self._calls = 0

    def begin(self, context: Context, prefill: TargetPass | None) -> None:
        capacity = min(self._context_length, len(context.ids) + context.max_depth)
        self._model = self._open(capacity)
        self._fed, self._unseen = [], 0
        self._agreed = 0
        if 1 < len(context.ids) <= self._context_length:
            self._feed(list(context.ids[:-1]))
        self._calls = 0

    def _feed(self, text: list[int]) -> Tensor:
        """Bring the model's cache to ``text``; return the logits after it. At least the last token is always run."""
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
        """Ids of its vocabulary, int64 [support], or None when that is the target's own."""
        assert self._model is not None
        return self._model.support

    def levels(self, context: Context) -> ChainLevels | None:
        """This round's chain; None where the context is full. Its tokens enter the cache unseen: which they were is known
        once the round is over."""
        deepest = self._context_length - len(context.ids)
        return ChainLevels(partial(self._after, context), deepest) if deepest > 0 else None

    def rows(
        self, context: Context, tokens: Sequence[int], parents: Sequence[int], nodes: Sequence[int]
    ) -> list[Proposal | None]:
        """The warped distribution after the chain so far, whose tokens the host knows; the plain softmax at temperature 0."""
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
        """The chain's tokens, as far as they entered the cache: some of them may have been committed."""
        tokens = finished.draft.tree.host_tokens
        if self._unseen and self._fed == list(finished.context.ids) and len(tokens) > self._unseen:
            self._fed = [*self._fed, *tokens[1 : 1 + self._unseen]]
            self._unseen = 0

    def calls(self) -> int:
        count, self._calls = self._calls, 0
        return count

    def draft_notes(self, picks: Sequence[Pick]) -> tuple[Note, ...]:
        return ()

    def close(self) -> None:
        if self._model is not None:
            self._model.close()
            self._model = None
