"""Decoding session of a fused decoder, with the interface of a target's session."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from specviz.drafting.networks.fused_decoder import LeanDecoder
from specviz.engine.interfaces import TargetPass
from specviz.engine.stop import chunks
from specviz.engine.tiers import tree_attention_mask
from specviz.engine.to_device import to_device
from specviz.engine.tree import DraftTree, chain

PIECE = 128
"""Number of prompt tokens per pass."""
TREE_ROOM = 64
AT_FIRST = 1024
"""Initial number of columns of a cache, which may grow."""


class LeanSession:
    """Session of one run. ``taps``: hidden states to return, numbered as in the full model."""

    def __init__(self, decoder: LeanDecoder, capacity: int, taps: Sequence[int] = ()) -> None:
        self.decoder = decoder
        self.taps = tuple(taps)
        self._cache = decoder.open(min(capacity, AT_FIRST) + TREE_ROOM)

    @property
    def length(self) -> int:
        return self._cache.length

    def padded(self, nodes: int) -> int:
        return nodes

    def prefill(self, ids: Sequence[int]) -> TargetPass:
        """Append ``ids`` to the cache. Returns logits of the last position, [1, vocab], and hidden states [position, hidden]."""
        passes = []
        for start, end in chunks(len(ids), PIECE):
            piece = list(ids[start:end])
            passes.append(self._run(DraftTree.of(piece, chain(len(piece) - 1).parents, self.decoder.device), 1))
            self._cache.length += len(piece)
        hidden = {tap: torch.cat([part.hidden[tap] for part in passes]) for tap in self.taps}
        return TargetPass(passes[-1].logits, hidden)

    def score(self, tree: DraftTree) -> TargetPass:
        return self._run(tree, 0)

    def _run(self, tree: DraftTree, last: int) -> TargetPass:
        start, nodes, device = self.length, len(tree), self.decoder.device
        self._cache.reserve(start + nodes)
        self.decoder.reach(start + max(tree.shape.depths) + 1)
        places = to_device([start + depth for depth in tree.shape.depths], device)
        mask = tree_attention_mask(tree, start, start + nodes, nodes, device) if nodes > 1 else None
        return TargetPass(*self.decoder(tree.tokens, places, self._cache, mask, self.taps, last=last))

    def keep(self, path: Sequence[int]) -> None:
        self._cache.keep(path)

    def rewind(self, length: int) -> None:
        self._cache.length = length

    def close(self) -> None:
        self._cache = self.decoder.open(1)
