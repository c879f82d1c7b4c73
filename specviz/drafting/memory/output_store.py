"""Store of earlier outputs as one suffix tree, which evicts the oldest outputs when it is full."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeVar

from specviz.drafting.memory.suffix_tree import SuffixTree

Answer = TypeVar("Answer")

# About 350 bytes per token: 14 MB at most.
MOST_TOKENS = 40_000


class OutputStore:
    """Outputs of one target, shared by one user's runs, which may overlap in time."""

    def __init__(self, most_outputs: int = 64, most_tokens: int = MOST_TOKENS) -> None:
        self.most_outputs = most_outputs
        self.most_tokens = most_tokens
        self._tree = SuffixTree()
        self._texts: deque[list[int]] = deque()
        self._lock = threading.Lock()

    @property
    def tokens(self) -> int:
        """Number of stored tokens."""
        return self._tree.root.count

    @property
    def outputs(self) -> int:
        """Number of stored outputs."""
        return len(self._texts)

    def add(self, output: Sequence[int]) -> None:
        """Store a finished output, of a very long one the end, and remove the oldest beyond the limits."""
        tail = list(output)[-self.most_tokens :]
        with self._lock:
            if tail:
                self._texts.append(self._tree.start())
                self._tree.extend(tail)
            while len(self._texts) > self.most_outputs or self.tokens > self.most_tokens:
                self._tree.remove(self._texts.popleft())

    def ask(self, question: Callable[[SuffixTree], Answer]) -> Answer:
        """Call ``question`` with the tree, under the lock, and return the answer."""
        with self._lock:
            return question(self._tree)
