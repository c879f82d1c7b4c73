"""Tree drafter with a language model that can score trees, one pass per level.

The model's session follows the committed text, like a target's. Committed tokens that are not in its cache yet, usually the root
alone, are the first nodes of the drafted tree. After a round, the session keeps these nodes and the accepted path from the last
level's pass (a state-space model replays the path).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from specviz.drafting.runtimes.feature_levels import ROOM, CapturedLevels, acquire, release
from specviz.drafting.runtimes.null import NullDrafter
from specviz.drafting.trees.retrieved import followed
from specviz.engine.interfaces import Context, Round, Target, TargetPass
from specviz.engine.tiers import Inputs, bucket
from specviz.engine.tree import DraftTree, GrownShape


class TreeLevels(CapturedLevels[tuple[GrownShape, Tensor, Any]]):
    """Levels of a model that scores the whole tree so far in one pass.

    A level's state is the tree's shape and tokens, and in the graph tier the pass's outputs. ``session``: the current session,
    None between runs. ``vocab``: number of tokens that may be drafted.
    """

    session: Any = None
    vocab: int

    @torch.inference_mode()
    def take(self, ids: Sequence[int], deepest: int) -> None:
        """Set the committed tokens missing in the session, the root last."""
        graph, length = self.session.graph, self.session.length
        self.captures = graph is not None and self._device.type == "cuda"
        if graph is not None:
            capacity = graph.pooled.cache.capacity
            self._columns = min(bucket(length + ROOM), capacity)
            self._shape = (len(ids), self._columns, capacity, self.vocab)
        self.trail, self.deepest = [], deepest
        self._inputs = self.numbers([*ids, length])

    def first(self) -> Tensor:
        """Return the root's logits [1, support]."""
        place = torch.arange(len(self._inputs) - 1, device=self._device)
        return self._scored(GrownShape(tuple(range(len(place))), place - 1, place[:, None] >= place), self._inputs[:-1], 1)

    def below(self, tokens: Tensor, parents: Tensor) -> Tensor:
        """Add a level and score the whole tree in one pass; return the logits [row, support] of the level."""
        shape, above, _ = self.trail[-1]
        return self._scored(shape.below(parents), torch.cat((above, tokens)), len(tokens))

    def _scored(self, shape: GrownShape, tokens: Tensor, rows: int) -> Tensor:
        session, ancestors, outputs = self.session, shape.ancestors_on_own_device, None
        if session.graph is None:
            session.rewind(session.length)  # drops the previous pass over the same tree without this level
            logits = session.score(DraftTree(shape, tokens)).logits
        else:
            inputs = Inputs(tokens[None], torch.cat((self._inputs[-1:], ancestors.sum(1) - 1)), ancestors)
            logits, outputs = session.graph.padded_pass(inputs, self._columns)
        self._here = shape, tokens, outputs
        return logits[-rows:, : self.vocab]


class TreeModelDrafter(NullDrafter):
    """Tree drafter.

    ``model``: draft model, shared between runs. ``vocab_size``: vocabulary size of the target.
    """

    def __init__(self, model: Target, vocab_size: int) -> None:
        self._model = model
        self._vocab = min(vocab_size, model.vocab_size)
        self.support = None if vocab_size == self._vocab else torch.arange(self._vocab, device=model.device)
        self._levels = TreeLevels(model.device)

    def begin(self, context: Context, prefill: TargetPass | None) -> None:
        self.close()
        session: Any = self._model.open(min(self._model.context_length, len(context.ids) + context.max_depth))
        if session.graph is not None:
            self._levels = acquire(session.graph.pooled.cache, 0, lambda *_: TreeLevels(self._model.device))
        self._levels.session, self._levels.vocab, self._levels.trail = session, self._vocab, []
        if 1 < len(context.ids) <= self._model.context_length:  # a longer prompt leaves no room for a draft
            session.prefill(context.ids[:-1])
        self._levels.calls = 0  # the prompt counts as prefill

    def levels(self, context: Context) -> TreeLevels | None:
        """Return this round's levels; None if the context is full."""
        deepest = self._model.context_length - len(context.ids) + 1
        if deepest <= 0:
            return None
        self._levels.take(context.ids[self._levels.session.length :], deepest)
        return self._levels

    def calls(self) -> int:
        return self._levels.take_calls()

    def observe(self, finished: Round) -> None:
        """Keep the cache entries of the committed path, except for the last emitted token, which is the next root."""
        session, trail = self._levels.session, self._levels.trail
        if not trail:
            return
        shape, on_device, outputs = trail.pop()
        trail.clear()
        tokens, parents = torch.stack((on_device, shape.parents_on_device)).tolist()
        known = range(len(finished.context.ids) - session.length)
        path = [*known, *followed(tokens, parents, finished.emitted[:-1], known[-1])]
        if outputs is not None and hasattr(session, "resume"):
            session.resume(DraftTree(shape, on_device, tuple(tokens)), outputs)
        session.keep(path)

    def close(self) -> None:
        levels, self._levels = self._levels, TreeLevels(self._model.device)
        session, levels.session = levels.session, None
        if session is not None:
            if session.graph is not None:
                release(session.graph.pooled.cache, levels)
            session.close()
