"""Intermediate models of a cascade: each drafts for the model above it and verifies the drafter below it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from specviz.drafting.networks.fused_decoder import FusedDecoder, FusedSession
from specviz.drafting.networks.small_lm import SmallLM
from specviz.drafting.runtimes.language_model import SmallModel
from specviz.engine.cost import CostCurve
from specviz.engine.interfaces import Session, Target, TargetPass
from specviz.engine.tree import DraftTree
from specviz.errors import BadInput


@dataclass(frozen=True)
class IntermediateModel:
    """Copy of the ``target``, the small draft model, or a model of its own if ``kind`` is "draft".

    ``network``: a SmallLM, a FusedDecoder or a target. ``cost``: function that returns the cost curve of a pass.
    """

    kind: str
    title: str
    network: Any
    target: Target
    cost: Callable[[], CostCurve]
    warnings: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Name in calibrations and notes."""
        return self.title if self.kind == "draft" else self.kind

    @property
    def context_length(self) -> int:
        return int((self.network if self.kind == "draft" else self.target).context_length)

    @property
    def device(self) -> torch.device:
        return self.target.device

    @property
    def branches(self) -> bool:
        """Whether the model scores trees, not only chains."""
        return not isinstance(self.network, SmallLM)

    def open(self, capacity: int, taps: Sequence[int] = ()) -> Session:
        """Return a new session with room for ``capacity`` committed tokens. Only copies of the target return hidden states."""
        network = self.network
        if isinstance(network, SmallLM):
            return SmallSession(network, capacity)
        if isinstance(network, FusedDecoder):
            return FusedSession(network, capacity, taps)
        capacity = min(capacity, network.context_length)
        if self.kind == "draft":
            return FittedSession(network.open(capacity), network.vocab_size, self.target.vocab_size)
        session: Session = network.open(capacity, taps)
        return session


class SmallSession:
    """Session in which the small draft model verifies chains; tokens outside its vocabulary have no probability."""

    def __init__(self, model: SmallLM, capacity: int) -> None:
        self._small, self._model = SmallModel(model, capacity + 64), model  # with room for a chain to verify
        self._committed = 0

    @property
    def length(self) -> int:
        return self._committed

    def padded(self, nodes: int) -> int:
        return nodes

    def prefill(self, ids: Sequence[int]) -> TargetPass:
        """Append ``ids`` to the cache. Returns logits of the last position, [1, vocab]."""
        self._small.rewind(self._committed)
        logits = self._small.extend(ids)
        self._committed += len(ids)
        return TargetPass(self._wide(logits[None]))

    def score(self, tree: DraftTree) -> TargetPass:
        """Score a chain in one pass. Raises BadInput if the tree has branches."""
        if any(parent != place - 1 for place, parent in enumerate(tree.shape.parents)):
            raise BadInput("The small draft model verifies only chains; let the drafter below it draft one token per level.")
        return self.extend(tree.host_tokens)

    def extend(self, ids: Sequence[int], drafted: Sequence[Tensor] = ()) -> TargetPass:
        """Score the chain of ``ids`` and of the tokens ``drafted`` [1], which only the device knows."""
        self._small.rewind(self._committed)
        return TargetPass(self._wide(self._small.extend_all(ids, drafted)))

    def _wide(self, logits: Tensor) -> Tensor:
        """Return logits over the target's vocabulary, -inf for tokens outside this model's."""
        wide = logits.new_full((len(logits), self._model.config.vocab_size), -torch.inf)
        return wide.index_copy_(1, self._model.draft_ids, logits)

    def keep(self, path: Sequence[int]) -> None:
        """Keep the entries of these nodes (root first), the start of the last chain."""
        self._committed += len(path)

    def rewind(self, length: int) -> None:
        self._committed = length

    def close(self) -> None:
        self._small.close()


class FittedSession:
    """Session of another model over the target's vocabulary; ids that only one of the two has are padding."""

    def __init__(self, session: Session, rows: int, vocab_size: int) -> None:
        """``rows``: size of this model's vocabulary. ``vocab_size``: size of the target's."""
        self._session, self._rows, self._vocab = session, rows, vocab_size

    @property
    def length(self) -> int:
        return self._session.length

    def padded(self, nodes: int) -> int:
        return self._session.padded(nodes)

    def prefill(self, ids: Sequence[int]) -> TargetPass:
        return self._fit(self._session.prefill([min(token, self._rows - 1) for token in ids]))

    def score(self, tree: DraftTree) -> TargetPass:
        if self._rows < self._vocab:
            tree = DraftTree(tree.shape, tree.tokens.clamp_max(self._rows - 1))
        return self._fit(self._session.score(tree))

    def _fit(self, target_pass: TargetPass) -> TargetPass:
        if self._rows == self._vocab:
            return TargetPass(target_pass.logits)
        logits = target_pass.logits[:, : self._vocab]
        return TargetPass(F.pad(logits, (0, self._vocab - logits.shape[1]), value=-torch.inf))

    def keep(self, path: Sequence[int]) -> None:
        self._session.keep(path)

    def rewind(self, length: int) -> None:
        self._session.rewind(length)

    def close(self) -> None:
        self._session.close()
