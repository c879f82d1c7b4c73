"""Intermediate models of a cascade: each drafts for the model above it and verifies the drafter below."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from specviz.drafting.networks.small_lm import SmallLM
from specviz.engine.cost import CostCurve
from specviz.engine.interfaces import Session, TargetPass
from specviz.engine.tree import DraftTree
from specviz.errors import BadInput


@dataclass(frozen=True)
class IntermediateModel:
    """An intermediate model. ``states`` says that its passes give the hidden states asked for; ``branches`` that it can
    score trees, not chains alone; ``cost`` measures what its passes take.
    """

    name: str
    title: str
    context_length: int
    device: torch.device
    start: Callable[[int, Sequence[int]], Session]
    cost: Callable[[], CostCurve]
    states: bool = True
    branches: bool = True
    warnings: tuple[str, ...] = field(default=())

    def open(self, capacity: int, taps: Sequence[int] = ()) -> Session:
        """A fresh session with room for ``capacity`` committed tokens."""
        return self.start(capacity, taps if self.states else ())


class SmallSession:
    """The small draft model as one that verifies chains. Tokens outside its vocabulary have no probability."""

    def __init__(self, model: SmallLM, capacity: int, room: int = 64) -> None:
        self._model = model
        self._cache = model.open(capacity + room)
        self._committed = 0

    @property
    def length(self) -> int:
        """Committed tokens in the cache."""
        return self._committed

    def padded(self, nodes: int) -> int:
        """No pass is padded."""
        return nodes

    def prefill(self, ids: Sequence[int]) -> TargetPass:
        """Put ``ids`` behind what is cached; logits [1, vocab] of the last one."""
        logits = self._run(torch.tensor(list(ids), device=self._model.draft_ids.device), True)
        self._committed = self._cache.length
        return TargetPass(logits)

    def score(self, tree: DraftTree) -> TargetPass:
        """One pass over a chain. Raises BadInput for a tree with branches."""
        if any(parent != place - 1 for place, parent in enumerate(tree.shape.parents)):
            raise BadInput("The small draft model verifies chains only; let the drafter below it draft one token a level.")
        return TargetPass(self._run(tree.tokens, False))

    def _run(self, tokens: Tensor, last: bool) -> Tensor:
        """Logits over the target's vocabulary, -inf where this model has no word."""
        self._cache.keep(self._committed)
        logits = self._model(tokens, self._cache, last_only=last)
        wide = logits.new_full((len(logits), self._model.config.vocab_size), -torch.inf)
        return wide.index_copy_(1, self._model.draft_ids, logits)

    def keep(self, path: Sequence[int]) -> None:
        """Keep the entries of these nodes (root first) of the last chain: a beginning of it."""
        self._committed += len(path)

    def rewind(self, length: int) -> None:
        """Forget all but the first ``length`` tokens."""
        self._committed = min(length, self._committed)

    def close(self) -> None:
        """The cache goes with this object."""


class FittedSession:
    """Another model's session seen through the target's vocabulary: padding that only one of them has is no word."""

    def __init__(self, session: Session, rows: int, vocab_size: int) -> None:
        """``rows`` are this model's logits, ``vocab_size`` those of the target."""
        self._session, self._rows, self._vocab = session, rows, vocab_size

    @property
    def length(self) -> int:
        """Committed tokens in the cache."""
        return self._session.length

    def padded(self, nodes: int) -> int:
        """Rows a pass over ``nodes`` really has."""
        return self._session.padded(nodes)

    def prefill(self, ids: Sequence[int]) -> TargetPass:
        """Put ``ids`` behind what is cached."""
        return self._fit(self._session.prefill([min(token, self._rows - 1) for token in ids]))

    def score(self, tree: DraftTree) -> TargetPass:
        """One pass over the tree."""
        return self._fit(self._session.score(DraftTree(tree.shape, tree.tokens.clamp_max(self._rows - 1))))

    def _fit(self, target_pass: TargetPass) -> TargetPass:
        logits = target_pass.logits[:, : self._vocab]
        return TargetPass(F.pad(logits, (0, self._vocab - logits.shape[1]), value=-torch.inf))

    def keep(self, path: Sequence[int]) -> None:
        """Keep the entries of these nodes of the last tree."""
        self._session.keep(path)

    def rewind(self, length: int) -> None:
        """Forget all but the first ``length`` tokens."""
        self._session.rewind(length)

    def close(self) -> None:
        """Give the memory back."""
        self._session.close()
