"""Tree drafter from a language model that can score trees: every level is one more pass of it.

Its session follows the committed text like a target's own. What the last drafting pass held of the accepted path is kept
(for a state-space model: replayed) at no cost; only what lies beyond it is read again, together with the next root.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from specviz.engine.interfaces import Context, Pick, Proposal, Round, Session, Target, TargetPass
from specviz.engine.tree import DraftTree
from specviz.trace.schema import Note


class TreeModelDrafter:
    """``model`` is shared; the session belongs to one run. ``vocab_size`` is the verifying target's."""

    def __init__(self, model: Target, vocab_size: int) -> None:
        self._model = model
        self._vocab = min(vocab_size, model.vocab_size)
        self.support: Tensor | None = None
        if vocab_size != self._vocab:
            self.support = torch.arange(self._vocab, device=model.device)
        self._session: Session | None = None
        self._calls = 0
        self._end_round()

    def _end_round(self) -> None:
        self._places: dict[int, int] = {}
        """By node of the growing tree: its row in the last pass."""
        self._tree: DraftTree | None = None

    def begin(self, context: Context, prefill: TargetPass | None) -> None:
        capacity = min(self._model.context_length, len(context.ids) + context.max_depth)
        self._session = self._model.open(capacity)
        self._end_round()
        if len(context.ids) > 1:
            self._session.prefill(context.ids[:-1])
        self._calls = 0  # taking in the prompt is part of the prefill

    def logits(self, context: Context, tokens: Sequence[int], parents: Sequence[int], nodes: Sequence[int]) -> Tensor | None:
        """Raw logits [node, support] after each of ``nodes``, in one pass over them and all that was asked before."""
        session = self._session
        assert session is not None
        if len(context.ids) + max(self._depth(node, parents) for node in nodes) > self._model.context_length:
            return None
        if list(nodes) == [0]:
            return self._after_root(session, context)
        for node in nodes:
            self._places.setdefault(node, len(self._places))
        rows = sorted(self._places, key=self._places.__getitem__)
        above = [-1 if node == 0 else self._places[parents[node]] for node in rows]
        self._tree = DraftTree.of([tokens[node] for node in rows], above, self._model.device)
        logits = session.score(self._tree).logits
        self._calls += 1
        return logits[[self._places[node] for node in nodes], : self._vocab]

    @staticmethod
    def _depth(node: int, parents: Sequence[int]) -> int:
        depth = 0
        while node > 0:
            node, depth = parents[node], depth + 1
        return depth

    def _after_root(self, session: Session, context: Context) -> Tensor:
        """The root's own pass, behind the committed tokens that the session has not seen yet."""
        missing = list(context.ids[session.length :])
        self._places = {0: 0}
        chain = DraftTree.of(missing, range(-1, len(missing) - 1), self._model.device)
        row = session.score(chain).logits[-1:, : self._vocab]
        self._calls += 1
        if len(missing) > 1:
            session.keep(range(len(missing) - 1))
            self._tree = None
        else:
            self._tree = chain
        return row

    def rows(
        self, context: Context, tokens: Sequence[int], parents: Sequence[int], nodes: Sequence[int]
    ) -> list[Proposal | None]:
        """The warped distribution after each of ``nodes``; the plain softmax at temperature 0."""
        logits = self.logits(context, tokens, parents, nodes)
        if logits is None:
            return [None] * len(nodes)
        return [Proposal(distribution, self.support) for distribution in context.warp.log_probabilities(logits).exp()]

    def observe(self, finished: Round) -> None:
        """Keep what the last pass holds of the committed path. The last emitted token is the next root."""
        if self._tree is not None and self._session is not None:
            path, tokens, at = [0], self._tree.host_tokens, 0
            for token in finished.emitted[:-1]:
                below = next((child for child in self._tree.shape.children[at] if tokens[child] == token), None)
                if below is None:
                    break
                path.append(below)
                at = below
            self._session.keep(path)
        self._end_round()

    def calls(self) -> int:
        count, self._calls = self._calls, 0
        return count

    def draft_notes(self, picks: Sequence[Pick]) -> tuple[Note, ...]:
        return ()

    def close(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None
        self._end_round()
