"""Tree drafter from a language model that can score trees, one pass per level.

Its session follows the committed text like a target's. After a round, the cache entries of the accepted path from the last
drafting pass are kept (for a state-space model: replayed) without another pass. Only tokens beyond them are run again, together
with the next root.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from specviz.drafting.levels import Levels
from specviz.engine.interfaces import Context, Pick, Round, Session, Target, TargetPass
from specviz.engine.to_device import to_device
from specviz.engine.tree import DraftTree, GrownShape
from specviz.trace.schema import Note


class TreeLevels(Levels):
    """One round, level by level. ``root`` returns raw logits [1, support] after the root; ``score`` returns raw logits [node,
    support] of the whole tree so far, in one pass, on the device. ``deepest`` is the number of levels that fit."""

    def __init__(
        self, root: Callable[[], Tensor], score: Callable[[DraftTree], Tensor], token: Tensor, deepest: int
    ) -> None:  # fmt: skip
        self._root, self._score, self.deepest = root, score, deepest
        self._tree = DraftTree(GrownShape.root(token.device), token)

    def first(self) -> Tensor:
        """Return raw logits [1, support] after the root."""
        return self._root()

    def below(self, tokens: Tensor, parents: Tensor) -> Tensor:
        """Return raw logits [row, support] after ``tokens`` [row], whose parents are these rows of the level above."""
        shape = self._tree.shape
        assert isinstance(shape, GrownShape)
        self._tree = DraftTree(shape.below(parents), torch.cat((self._tree.tokens, tokens)))
        return self._score(self._tree)[-len(tokens) :]


class TreeModelDrafter:
    """Tree drafter. ``model`` is shared between runs; the session belongs to one. ``vocab_size`` is the verifying target's."""

    def __init__(self, model: Target, vocab_size: int) -> None:
        self._model = model
        self._vocab = min(vocab_size, model.vocab_size)
        self.support: Tensor | None = None
        if vocab_size != self._vocab:
            self.support = torch.arange(self._vocab, device=model.device)
        self._session: Session | None = None
        self._calls = 0
        self._tree: DraftTree | None = None
        """Tree of the session's last pass."""

    def begin(self, context: Context, prefill: TargetPass | None) -> None:
        capacity = min(self._model.context_length, len(context.ids) + context.max_depth)
        self._session, self._tree = self._model.open(capacity), None
        if len(context.ids) > 1:
            self._session.prefill(context.ids[:-1])
        self._calls = 0  # reading the prompt counts as prefill

    def levels(self, context: Context) -> TreeLevels | None:
        """Return this round's levels; None if the context is full."""
        session, deepest = self._session, self._model.context_length - len(context.ids) + 1
        assert session is not None
        if deepest <= 0:
            return None

        def root() -> Tensor:
            return self._after_root(session, context)

        def score(tree: DraftTree) -> Tensor:
            self._tree = tree
            self._calls += 1
            session.rewind(session.length)  # drops the previous pass over the same tree without this level
            return session.score(tree).logits[:, : self._vocab]

        return TreeLevels(root, score, to_device(context.ids[-1:], self._model.device), deepest)

    def _after_root(self, session: Session, context: Context) -> Tensor:
        """Run the root's pass, together with the committed tokens not yet in the session; return the root's logits."""
        missing = list(context.ids[session.length :])
        tree = DraftTree.of(missing, range(-1, len(missing) - 1), self._model.device)
        row = session.score(tree).logits[-1:, : self._vocab]
        self._calls += 1
        if len(missing) > 1:
            session.keep(range(len(missing) - 1))
        self._tree = tree if len(missing) == 1 else None
        return row

    def observe(self, finished: Round) -> None:
        """Keep the last pass's entries on the committed path. The last emitted token is the next root."""
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

    def calls(self) -> int:
        count, self._calls = self._calls, 0
        return count

    def draft_notes(self, picks: Sequence[Pick]) -> tuple[Note, ...]:
        return ()

    def close(self) -> None:
        if self._session is not None:
            self._session.close()
        self._session = self._tree = None
