"""Session of a target with only attention layers: one cache, which grows in the eager tier and is pooled in the graph tier."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from specviz.engine.cache import KeyValues
from specviz.engine.interfaces import TargetPass
from specviz.engine.tiers import CACHE_POOL, TREE_ROOM, GraphRunner, Outputs, PooledCache, padded_width
from specviz.engine.tree import DraftTree


class CachedSession(ABC):
    """Cache of one run on a target. Layers with equal entries in ``target.alike`` share one tensor."""

    target: Any

    def __init__(self, capacity: int, taps: tuple[int, ...]) -> None:
        self.taps = taps
        self._cache: KeyValues
        self.graph: GraphRunner | None = None
        if self.target.tier == "graph":
            self.graph = self._runner(CACHE_POOL.acquire(self.target.model, self.target.alike, capacity + TREE_ROOM))
            self._cache = self.graph.pooled.cache
        else:
            self._cache = KeyValues(self.target.alike, capacity + TREE_ROOM)

    @abstractmethod
    def _runner(self, pooled: PooledCache) -> GraphRunner:
        """Build the padded passes over the acquired cache."""

    @abstractmethod
    def _scored(self, tree: DraftTree) -> Outputs:
        """Return logits and hidden states of one pass over the tree."""

    @property
    def length(self) -> int:
        return self._cache.length

    def padded(self, nodes: int) -> int:
        """Return the number of rows of a pass over ``nodes`` in this tier, padding included."""
        return padded_width(nodes) if self.graph else nodes

    def score(self, tree: DraftTree) -> TargetPass:
        return TargetPass(*self._scored(tree))

    def keep(self, path: Sequence[int]) -> None:
        self._cache.keep(path)

    def rewind(self, length: int) -> None:
        self._cache.rewind(length)

    def close(self) -> None:
        """Drop the cache; in the graph tier, release it with its graphs into the model's pool."""
        graph, self.graph = self.graph, None
        if graph is not None:
            CACHE_POOL.release(self.target.model, graph.pooled)
        self._cache = KeyValues(self.target.alike, 1)
