"""Tree drafter with a language model that can score trees, one pass per level.

The model's session follows the committed text, like a target's. After a round, the session keeps the accepted path from the last
drafting pass (a state-space model replays the path). Other committed tokens are run together with the next root.
"""

from __future__ import annotations

from typing import Self

import torch
from torch import Tensor

from specviz.drafting.levels import Levels
from specviz.drafting.runtimes.null import NullDrafter
from specviz.engine.interfaces import Context, Round, Session, Target, TargetPass
from specviz.engine.to_device import to_device
from specviz.engine.tree import DraftTree, GrownShape


class TreeModelDrafter(Levels, NullDrafter):
    """Tree drafter, which is also the :class:`Levels` of each round.

    ``model``: draft model, shared between runs. ``vocab_size``: vocabulary size of the target.
    """

    def __init__(self, model: Target, vocab_size: int) -> None:
        self._model = model
        self._vocab = min(vocab_size, model.vocab_size)
        self.support: Tensor | None = None
        if vocab_size != self._vocab:
            self.support = torch.arange(self._vocab, device=model.device)
        self._session: Session | None = None
        self._context: Context
        self._grown: DraftTree
        """Tree of this round so far."""
        self._tree: DraftTree | None = None
        """Tree of the session's last pass; None if the pass also had committed tokens."""

    def begin(self, context: Context, prefill: TargetPass | None) -> None:
        capacity = min(self._model.context_length, len(context.ids) + context.max_depth)
        self._session, self._tree = self._model.open(capacity), None
        if len(context.ids) > 1:
            self._session.prefill(context.ids[:-1])
        self._calls = 0  # the prompt counts as prefill

    def levels(self, context: Context) -> Self | None:
        """Return this round's levels; None if the context is full."""
        self._context, self.deepest = context, self._model.context_length - len(context.ids) + 1
        return self if self.deepest > 0 else None

    def first(self) -> Tensor:
        """Run the root, together with committed tokens missing in the session; return the root's logits [1, support]."""
        ids, session, device = self._context.ids, self._session, self._model.device
        assert session is not None
        missing = list(ids[session.length :])
        tree = DraftTree.of(missing, range(-1, len(missing) - 1), device)
        row = session.score(tree).logits[-1:, : self._vocab]
        self._calls += 1
        if len(missing) > 1:
            session.keep(range(len(missing) - 1))
        self._tree = tree if len(missing) == 1 else None
        self._grown = DraftTree(GrownShape.root(device), to_device(ids[-1:], device))
        return row

    def below(self, tokens: Tensor, parents: Tensor) -> Tensor:
        """Add a level and score the whole tree in one pass; return the logits [row, support] of the level."""
        shape, session = self._grown.shape, self._session
        assert isinstance(shape, GrownShape) and session is not None
        self._tree = self._grown = DraftTree(shape.below(parents), torch.cat((self._grown.tokens, tokens)))
        self._calls += 1
        session.rewind(session.length)  # drops the previous pass over the same tree without this level
        return session.score(self._grown).logits[-len(tokens) :, : self._vocab]

    def observe(self, finished: Round) -> None:
        """Keep the cache entries of the committed path, except for the last emitted token, which is the next root."""
        if self._tree is not None and self._session is not None:
            path, tokens, at = [0], self._tree.host_tokens, 0
            for token in finished.emitted[:-1]:
                below = next((child for child in self._tree.shape.children[at] if tokens[child] == token), None)
                if below is None:
                    break
                path.append(below)
                at = below
            self._session.keep(path)
        self._tree = None

    def close(self) -> None:
        if self._session is not None:
            self._session.close()
        self._session = self._tree = None
