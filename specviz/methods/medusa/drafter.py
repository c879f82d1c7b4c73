"""Medusa's drafter: each head ranks the tokens of one depth, independently of the depths above.

Alignment: the heads read the target's hidden state at the last token it has processed, the one before the root. From that state,
the target's own head predicted the root. Head 1 predicts the root's child, and head k the token k + 1 positions after the
state's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specviz.drafting.networks.parallel_net import ParallelNet
from specviz.drafting.runtimes.null import NullDrafter
from specviz.engine.interfaces import Context, Round, TargetPass
from specviz.trace.notes.drafts import HeadOffer, HeadsNote
from specviz.trace.schema import Note

SHOWN = 10


@dataclass(frozen=True)
class Depth:
    """One head's predictions: token ids, most likely first, and their probabilities."""

    tokens: tuple[int, ...]
    probability: tuple[float, ...]


class ParallelDrafter(NullDrafter):
    """Drafter of parallel heads that read one hidden state of the target: the one at the token before the root."""

    def __init__(self, network: ParallelNet) -> None:
        self._network = network
        self._tap = network.config.tap
        self._feature: Tensor | None = None
        self._calls = 0

    def begin(self, context: Context, prefill: TargetPass | None) -> None:
        self._feature = None if prefill is None else prefill.hidden[self._tap][-1]
        self._calls = 0

    def observe(self, finished: Round) -> None:
        path = finished.verdict.path
        self._feature = finished.target.hidden[self._tap][path[-1] if path else 0]

    def close(self) -> None:
        self._feature = None

    @torch.inference_mode()
    def depths(self, width: int) -> list[Depth]:
        """Return the top ``width`` tokens of every depth, depth 1 first; empty before the target's first pass."""
        if self._feature is None:
            return []
        self._calls += 1
        like = self._network.outputs
        logits = self._network.logits(self._feature.to(like.device, like.dtype)[None])[:, 0]
        logits = logits if logits.dtype == torch.float64 else logits.float()
        best = logits.topk(min(width, logits.shape[-1]), dim=-1)
        probability = (best.values - logits.logsumexp(-1, keepdim=True)).exp()
        ids = self._network.draft_ids
        named = best.indices if ids is None else ids[best.indices]
        tokens, shares = torch.stack((named.double(), probability.double())).tolist()  # one copy: ids are exact in a double
        return [Depth(tuple(map(int, row)), tuple(p)) for row, p in zip(tokens, shares, strict=True)]

    def calls(self) -> int:
        """Return the number of drafter forwards since the last call."""
        count, self._calls = self._calls, 0
        return count

    def draft_notes(self, depths: Sequence[Depth]) -> tuple[Note, ...]:
        """Return each head's predictions."""
        heads = [
            HeadOffer(number, depth.tokens[:SHOWN], depth.probability[:SHOWN]) for number, depth in enumerate(depths, start=1)
        ]
        return (HeadsNote(heads).to_note(),) if heads else ()
