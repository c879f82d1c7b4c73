"""A drafter with a distribution of its own after every path, and the search for the best paths written down plainly."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from specviz.engine.interfaces import Context, Draft, Pick
from specviz.engine.sampling import Warp
from specviz.trace.schema import Note
from tests.support.worlds.host_levels import ByTokens

VOCAB = 7
Path = tuple[int, ...]


class Fancy(ByTokens):
    """Has a distribution of its own after every path; remembers what it was asked."""

    def __init__(self, seed: int = 0, temperature: float = 2.0, support: Sequence[int] | None = None, most: int = 99) -> None:
        self.support = None if support is None else torch.tensor(support)
        self._seed, self._temperature, self.deepest = seed, temperature, most
        self.asked: list[list[Path]] = []
        self._told = 0

    def distribution(self, path: Path) -> Tensor:
        """Logits after ``path`` [support]."""
        number = self._seed
        for token in path:
            number = number * 31 + token + 1
        size = VOCAB if self.support is None else len(self.support)
        return self._temperature * torch.randn(size, generator=torch.Generator().manual_seed(number), dtype=torch.float64)

    def logits(self, context: Context, tokens: Sequence[int], parents: Sequence[int], nodes: Sequence[int]) -> Tensor:
        paths = [path_to(tokens, parents, node) for node in nodes]
        self.asked.append(paths)
        return torch.stack([self.distribution(path) for path in paths])

    def calls(self) -> int:
        made, self._told = len(self.asked) - self._told, len(self.asked)
        return made

    def draft_notes(self, picks: Sequence[Pick]) -> tuple[Note, ...]:
        return (Note("told", {}),)


def path_to(tokens: Sequence[int], parents: Sequence[int], node: int) -> Path:
    return (*path_to(tokens, parents, parents[node]), tokens[node]) if node else ()


def paths(draft: Draft) -> list[Path]:
    return [path_to(draft.tree.host_tokens, draft.tree.shape.parents, node) for node in range(len(draft.tree))]


def outside(draft: Draft, drafter: Fancy, warp: Warp) -> list[Path]:
    """The drafted paths that end outside the drafter's distribution as the run warps it, or with another probability than its."""
    strange = []
    for node, path in enumerate(paths(draft)):
        if path:
            q = warp.log_probabilities(drafter.distribution(path[:-1])).exp()[path[-1]]
            if not q or draft.confidence[node] != q:
                strange.append(path)
    return strange


def searched(drafter: Fancy, depth: int, width: int) -> dict[Path, float]:
    """Every candidate with its log value, written down as the paper says it, one path after the other."""
    found: dict[Path, float] = {}
    beam: list[Path] = [()]
    for _ in range(depth):
        fresh = {}
        for path in beam:
            distribution = drafter.distribution(path).log_softmax(-1)
            for slot in distribution.argsort(descending=True, stable=True)[:width].tolist():
                token = slot if drafter.support is None else int(drafter.support[slot])
                fresh[*path, token] = found.get(path, 0.0) + float(distribution[slot])
        found |= fresh
        beam = sorted(fresh, key=lambda path: -fresh[path])[:width]
    return found
