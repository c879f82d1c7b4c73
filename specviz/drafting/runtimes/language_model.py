"""Autoregressive draft model: a smaller language model that drafts one token at a time (speculative sampling).

The model's cache follows the committed text; rejected drafts are rewound. Before the next draft, the model reads committed tokens
that are not in its cache: the bonus token and, after full acceptance, the last drafted token.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from specviz.drafting.levels import ChainLevels, Result
from specviz.drafting.networks.small_lm import FixedRows, SmallLM, SmallRuntime
from specviz.drafting.runtimes.feature_levels import ROOM, CapturedLevels, acquire, release
from specviz.drafting.runtimes.null import NullDrafter
from specviz.engine.interfaces import Context, Proposal, Round, Session, Target, TargetPass
from specviz.engine.tiers import TREE_ROOM, GraphRunner, Inputs, bucket, padded_width
from specviz.engine.to_device import to_device
from specviz.engine.tree import DraftTree, chain

# Inputs up to this length run as one padded pass (captured on CUDA), longer inputs as a prefill.
SHORT = 32


class ChainModel(Protocol):
    """Interface of the drafter's model, which extends or rewinds a text."""

    support: Tensor | None
    """Ids of the output vocabulary, int64 [support], or None for the target's vocabulary."""

    def extend(self, ids: Sequence[int] | Tensor) -> Tensor:
        """Append ``ids`` (a sequence, or int64 [token] on the model's device). Returns logits [support] after them."""

    def chain(self, ids: Sequence[int], deepest: int) -> Chain:
        """Return a round's levels, one row each and at most ``deepest``: the first level appends ``ids``, each later one a token.

        ``asked`` counts the levels computed so far.
        """

    def rewind(self, length: int) -> None:
        """Keep the first ``length`` tokens."""

    def close(self) -> None:
        """Release memory."""


class TaughtModel(ChainModel, Protocol):
    """Model that also returns logits after each token of a text."""

    def extend_all(self, ids: Sequence[int]) -> Tensor:
        """Append ``ids``. Returns logits [token, support] after each of them."""


@dataclass(frozen=True)
class DraftModel:
    """Loaded draft model: name, context length, and a function that opens it with a capacity in tokens.

    ``target``: the same model as a target that scores trees; None if it can only extend chains.
    """

    name: str
    context_length: int
    open: Callable[[int], TaughtModel]
    warnings: tuple[str, ...] = ()
    target: Target | None = None


class SessionModel:
    """Session of a target as a draft model; ids that only one of the two models has are padding."""

    def __init__(self, session: Session, target: Target, vocab_size: int | None = None) -> None:
        """``vocab_size``: size of the verifying target's vocabulary, if it may differ from the draft model's."""
        self.session = session
        self._device = target.device
        self._rows = target.vocab_size
        self._vocab = min(target.vocab_size, vocab_size or target.vocab_size)
        padded = vocab_size is not None and vocab_size != self._vocab
        self.support: Tensor | None = torch.arange(self._vocab, device=self._device) if padded else None
        self._levels = session_levels(session, self._device, self._vocab)

    def extend(self, ids: Sequence[int] | Tensor) -> Tensor:
        if isinstance(ids, Tensor):
            return self._scored(DraftTree(chain(len(ids) - 1), ids.to(self._device).clamp_max(self._rows - 1)))[-1]
        # A token outside this model's vocabulary is padding in the other's and occurs in no text.
        ids = [min(token, self._rows - 1) for token in ids]
        if len(ids) > SHORT:
            return self.session.prefill(ids).logits[-1, : self._vocab]
        return self._scored(DraftTree.of(ids, range(-1, len(ids) - 1), self._device))[-1]

    def chain(self, ids: Sequence[int], deepest: int) -> Chain:
        if self._levels is None:
            return ChainLevels(lambda token: self.extend(ids if token is None else token), deepest)
        if len(ids) > SHORT:
            self.extend(ids[:-SHORT])
        self._levels.take([min(token, self._rows - 1) for token in ids[-SHORT:]], deepest)
        return self._levels

    def _scored(self, tree: DraftTree) -> Tensor:
        logits = self.session.score(tree).logits[:, : self._vocab]
        self.session.keep(range(len(tree)))
        return logits

    def extend_all(self, ids: Sequence[int]) -> Tensor:
        """Append ``ids`` in chains of at most SHORT. Returns logits [token, support] after each of them."""
        ids, rows = [min(token, self._rows - 1) for token in ids], []
        for start in range(0, len(ids), SHORT):
            piece = ids[start : start + SHORT]
            rows.append(self._scored(DraftTree.of(piece, range(-1, len(piece) - 1), self._device)))
        return torch.cat(rows)

    def rewind(self, length: int) -> None:
        self.session.rewind(length)

    def close(self) -> None:
        if self._levels is not None:
            self._levels.close()
        self.session.close()


class FixedChain(CapturedLevels[Tensor]):
    """Chains of a draft model at fixed addresses, for CUDA graphs. A level's state is the position [1] of the next row."""

    def __init__(self, device: torch.device, columns: int, cache: Any) -> None:
        super().__init__(device)
        self.columns, self.cache = columns, cache
        self._inputs: Tensor
        """Tokens of the padded rows, the position of the first, and the number of valid rows."""

    def take(self, ids: Sequence[int], deepest: int) -> None:
        """Set the tokens that the first level appends to the cache."""
        count, rows = len(ids), padded_width(len(ids))
        self._rows, self._shape, self.trail, self.deepest = rows, rows, [], deepest
        self._inputs = self.numbers([*ids, *[0] * (rows - count), self.cache.length, count])
        self._count = count

    def step(self, key: Hashable, work: Callable[[], Result]) -> Result:
        """See :meth:`CapturedLevels.step`; also updates the cache's length."""
        result = super().step(key, work)
        self.cache.length += 1 if self.asked > 1 else self._count
        return result

    def first(self) -> Tensor:
        start, count = self._inputs[-2:].split(1)
        self._here = start + count
        return self._logits(self._first_outputs().index_select(0, count - 1))

    def _first_outputs(self) -> Tensor:
        return self._outputs(self._inputs[:-2], self._inputs[-2:-1])

    def below(self, tokens: Tensor, parents: Tensor) -> Tensor:
        """See :meth:`Levels.below`. For the first level, ``tokens`` are those set by :meth:`take`, known only on the device."""
        place = self.trail[-1] if self.trail else self._inputs[-2:-1]
        self._here = place + len(tokens)
        return self._logits(self._outputs(tokens, place)[-1:])

    @abstractmethod
    def _outputs(self, tokens: Tensor, start: Tensor) -> Tensor:
        """Run a chain of ``tokens`` [token] from position ``start`` [1] on. Returns outputs [token, width]."""

    def _logits(self, outputs: Tensor) -> Tensor:
        return outputs


def session_levels(session: Session, device: torch.device, vocab: int | None = None) -> SessionLevels | None:
    """Acquire levels over the session's cache, for its first ``vocab`` tokens; None if the session has no captured passes, or has
    a state that a chain cannot rewind."""
    if (graph := getattr(session, "graph", None)) is None or graph.pooled.state:
        return None
    levels: SessionLevels = acquire(graph.pooled, 0, lambda pooled, _: SessionLevels(device, ROOM, pooled.cache))
    levels.graph, levels.vocab = graph, vocab
    return levels


class SessionLevels(FixedChain):
    """Chains of a target in the graph tier, over a pooled cache, with logits of the first ``vocab`` tokens.

    ``graph``: runner of the current session, None between runs. The cache outlives the session and must not keep the target
    alive.
    """

    graph: GraphRunner | None
    vocab: int | None

    def take(self, ids: Sequence[int], deepest: int) -> None:
        super().take(ids, min(deepest, TREE_ROOM - SHORT))
        assert self.graph is not None
        capacity = self.cache.capacity  # a cache that grew has other addresses
        self._columns = min(bucket(self.cache.length + TREE_ROOM), capacity)
        self._shape = (self._rows, self._columns, capacity, self.vocab, self.graph.variant)
        self._own = self.numbers(self.graph.numbers)

    def _outputs(self, tokens: Tensor, start: Tensor) -> Tensor:
        assert self.graph is not None
        seen = torch.ones(len(tokens), len(tokens), dtype=torch.bool, device=self._device).tril()
        places = torch.cat((start, seen.sum(1) - 1, self._own))
        inputs = Inputs(tokens.expand(1 + len(self.graph.others), -1), places, seen)
        return self.graph.padded_pass(inputs, self._columns)[0][:, : self.vocab]

    def close(self) -> None:
        """Keep the graphs with the cache for the next run, and drop the session."""
        if self.graph is not None:
            release(self.graph.pooled, self)
            self.graph = None


class SmallLevels(FixedChain):
    """Chains of the small draft model. ``runtimes``: one for the first level, and one for later levels."""

    def __init__(self, model: SmallLM, columns: int, runtimes: tuple[SmallRuntime, SmallRuntime]) -> None:
        super().__init__(model.draft_ids.device, columns, model.open(columns))
        self.cache.clear()
        model.reach(columns)
        self._model, self._held = model, model.rotary  # captured steps read this table even if the model replaces its own
        self._runtimes = runtimes

    def _outputs(self, tokens: Tensor, start: Tensor) -> Tensor:
        return self._runtime.outputs(FixedRows(tokens, start, self.cache, self._model), self.cache)

    def _logits(self, outputs: Tensor) -> Tensor:
        return self._runtime.logits(outputs)

    @property
    def _runtime(self) -> SmallRuntime:
        return self._runtimes[self.asked > 0]

    def after_each(self, ids: Sequence[int], drafted: Sequence[Tensor] = ()) -> Tensor:
        """See :meth:`SmallModel.extend_all`."""
        end = len(ids) + len(drafted)
        self.take([*ids, *[0] * len(drafted)], 0)
        if drafted:
            torch.cat([*drafted], out=self._inputs[len(ids) : end])

        def work() -> Tensor:
            self._here = self._inputs[-1:]  # no level follows
            return self._logits(self._first_outputs())

        return self.step("each", work)[:end]


Chain = ChainLevels | FixedChain
"""Levels of one row each. ``asked`` counts the levels computed so far."""


class SmallModel:
    """Per-run state of the small draft model.

    ``fixed``: whether passes have fixed shapes and addresses for CUDA graphs; by default only on CUDA. ``runtimes``: as for
    :class:`SmallLevels`, by default the model's own.
    """

    def __init__(
        self, model: SmallLM, capacity: int, fixed: bool | None = None, runtimes: tuple[SmallRuntime, SmallRuntime] | None = None
    ) -> None:
        self._model, self._runtimes = model, runtimes or (model.inference(), model.inference())
        self._device = model.draft_ids.device
        self.support: Tensor | None = model.draft_ids
        self._levels: SmallLevels | None = None
        if self._device.type == "cuda" if fixed is None else fixed:
            with torch.inference_mode():
                self._levels = acquire(
                    self._runtimes[1], capacity, lambda _, columns: SmallLevels(model, columns, self._runtimes)
                )
        self._cache = model.open(capacity) if self._levels is None else self._levels.cache
        self._cache.length = 0

    @torch.inference_mode()
    def extend(self, ids: Sequence[int] | Tensor) -> Tensor:
        if self._levels is not None and not isinstance(ids, Tensor) and self._runtimes[0] is self._model.inference():
            return self.chain(ids, 1).ask()[0]
        tokens = ids if isinstance(ids, Tensor) else to_device(ids, self._device)
        return self._model(tokens, self._cache, last_only=True)[-1]

    @torch.inference_mode()
    def chain(self, ids: Sequence[int], deepest: int) -> Chain:
        if len(ids) > SHORT:
            self._model(to_device(ids[:-SHORT], self._device), self._cache, last_only=True)
            ids = ids[-SHORT:]
        if self._levels is not None:
            self._levels.take(ids, deepest)
            return self._levels

        def after(token: Tensor | None) -> Tensor:
            tokens = to_device(ids, self._device) if token is None else token
            return self._runtimes[token is not None](tokens, self._cache, True)[-1]

        return ChainLevels(after, deepest)

    @torch.inference_mode()
    def extend_all(self, ids: Sequence[int], drafted: Sequence[Tensor] = ()) -> Tensor:
        """Append ``ids``, then the tokens ``drafted`` [1] on the device. Returns logits [token, support] after each of them."""
        if self._levels is not None and len(ids) + len(drafted) <= SHORT:
            return self._levels.after_each(ids, drafted)
        return self._model(torch.cat((to_device(ids, self._device), *drafted)), self._cache)

    def rewind(self, length: int) -> None:
        self._cache.keep(length)

    def close(self) -> None:
        """Keep the fixed tensors for the next run; an eager cache is freed with this object."""
        if self._levels is not None:
            release(self._runtimes[1], self._levels)
            self._levels = None


class LanguageModelDrafter(NullDrafter):
    """Chain drafter. ``open_model(capacity)`` opens a new :class:`ChainModel` for each run."""

    def __init__(self, open_model: Callable[[int], ChainModel], context_length: int) -> None:
        self._open = open_model
        self._context_length = context_length
        self._model: ChainModel | None = None
        self._fed: list[int]
        self._chain: Chain | None
        """Levels of the round's chain, while the tokens are not on the host yet."""
        self._counted: int
        """Number of levels of the current chain that :meth:`calls` has counted."""

    def begin(self, context: Context, prefill: TargetPass | None) -> None:
        capacity = min(self._context_length, len(context.ids) + context.max_depth)
        self._model = self._open(capacity)
        self._fed, self._agreed, self._chain, self._counted = [], 0, None, 0
        if 1 < len(context.ids) <= self._context_length:
            self._feed(list(context.ids[:-1]))
        self._calls = 0

    def _feed(self, text: list[int]) -> Tensor:
        """Make the model's cache match ``text``. Returns the logits after it. The last token is always run."""
        assert self._model is not None
        same = self._rewind(text)
        self._calls += 1
        return self._model.extend(text[same:])

    def _rewind(self, text: list[int]) -> int:
        """Keep the cached prefix that ``text`` shares, and record ``text`` as fed. Returns the shared length."""
        assert self._model is not None
        same = self._same(text)
        if same < len(self._fed) + self._unseen:
            self._model.rewind(same)
        self._fed, self._chain, self._counted = text, None, 0
        return same

    @property
    def _unseen(self) -> int:
        """Number of tokens in the cache after ``_fed`` that are not on the host yet."""
        return max(0, self._chain.asked - 1) if self._chain is not None else 0

    def _same(self, text: list[int]) -> int:
        """Return the number of cached tokens that match ``text``, without its last token."""
        same = min(self._agreed, len(text) - 1)
        while same < min(len(self._fed), len(text) - 1) and self._fed[same] == text[same]:
            same += 1
        return same

    @property
    def support(self) -> Tensor | None:
        """Ids of the drafter's vocabulary, int64 [support], or None for the target's vocabulary."""
        assert self._model is not None
        return self._model.support

    def levels(self, context: Context) -> Chain | None:
        """Return this round's chain, whose tokens reach the host after the round; None if the context is full."""
        deepest = self._context_length - len(context.ids)
        if deepest <= 0:
            return None
        self._chain, self._counted = self._begin_chain(context, list(context.ids), deepest), 0
        return self._chain

    def _begin_chain(self, context: Context, text: list[int], deepest: int) -> Chain:
        """Return the levels of a chain after the committed ``text``."""
        assert self._model is not None
        same = self._rewind(text)
        self._agreed = len(text)  # committed and fed: no need to compare again
        return self._model.chain(text[same:], deepest)

    def rows(
        self, context: Context, tokens: Sequence[int], parents: Sequence[int], nodes: Sequence[int]
    ) -> list[Proposal | None]:
        """Return the warped distribution after the chain of ``tokens`` so far, or the plain softmax at temperature 0."""
        assert self._model is not None and list(nodes) == [len(tokens) - 1], "this drafter grows chains"
        text = [*context.ids, *tokens[1:]]
        if len(text) >= self._context_length:
            return [None]
        distribution = context.warp.log_probabilities(self._feed(text)).exp()
        self._agreed = len(context.ids)  # committed and fed: no need to compare again
        return [Proposal(distribution, self._model.support)]

    def calls(self) -> int:
        asked = 0 if self._chain is None else self._chain.asked
        made, self._counted = super().calls() + asked - self._counted, asked
        return made

    def observe(self, finished: Round) -> None:
        """Record the chain's tokens that entered the cache, since some may have been committed."""
        tokens, unseen = finished.draft.tree.host_tokens, self._unseen
        if unseen and self._fed == list(finished.context.ids) and len(tokens) > unseen:
            self._fed, self._chain, self._counted = [*self._fed, *tokens[1 : 1 + unseen]], None, 0

    def close(self) -> None:
        if self._model is not None:
            self._model.close()
            self._model = None
