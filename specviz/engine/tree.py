"""Draft trees: shape (parents) on the host, tokens on the device, and the ancestor mask of a target pass.

Layout of token trees as in SpecInfer (arXiv 2305.09781). Node 0 is the last committed token, not yet in the target's cache;
``parents[i] < i``. A node's position is cache length + depth. A node attends to the cache, its ancestors and itself.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from heapq import heappop, heappush

import numpy
import torch
from torch import Tensor

from specviz.engine.to_device import copy_to_device, device_cache, to_device
from specviz.errors import BadInput


@dataclass(frozen=True)
class TreeShape:
    """Parent of each node. ``parents[0]`` is -1; every other parent precedes its children."""

    parents: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.parents or self.parents[0] != -1:
            raise BadInput("A draft tree starts with its root, whose parent is -1.")
        for node, parent in enumerate(self.parents[1:], start=1):
            if not 0 <= parent < node:
                raise BadInput(f"Node {node} of the draft tree names parent {parent}; a parent comes before its child.")

    def __len__(self) -> int:
        return len(self.parents)

    def __hash__(self) -> int:
        return hash(self.parents)

    @cached_property
    def depths(self) -> tuple[int, ...]:
        """Depth of each node; the root has depth 0."""
        depths = [0]
        for parent in self.parents[1:]:
            depths.append(depths[parent] + 1)
        return tuple(depths)

    @cached_property
    def children(self) -> tuple[tuple[int, ...], ...]:
        """Children of each node in insertion order, which is the draw order."""
        children: list[list[int]] = [[] for _ in self.parents]
        for node, parent in enumerate(self.parents[1:], start=1):
            children[parent].append(node)
        return tuple(tuple(row) for row in children)

    @cached_property
    def levels(self) -> tuple[tuple[int, ...], ...]:
        """Nodes of each depth, in order."""
        levels: list[list[int]] = [[] for _ in range(max(self.depths) + 1)]
        for node, depth in enumerate(self.depths):
            levels[depth].append(node)
        return tuple(tuple(row) for row in levels)

    def path(self, node: int) -> tuple[int, ...]:
        """Return the nodes from the root down to ``node``, both included."""
        nodes = []
        while node >= 0:
            nodes.append(node)
            node = self.parents[node]
        return tuple(reversed(nodes))

    @cached_property
    def ancestors(self) -> Tensor:
        """Bool [node, node] on the CPU: True where the column is the row's node or an ancestor of it."""
        ancestry = numpy.eye(len(self.parents), dtype=bool)
        for node, parent in enumerate(self.parents[1:], start=1):
            ancestry[node] |= ancestry[parent]
        return torch.from_numpy(ancestry)

    @cached_property
    def _cache(self) -> dict[Hashable, Tensor]:
        return {}

    def cached(self, name: Hashable, make: Callable[[], Tensor]) -> Tensor:
        """Return ``make()``, which must depend only on this shape, cached under ``name``."""
        if name not in self._cache:
            self._cache[name] = make()
        return self._cache[name]

    def ancestors_on(self, device: torch.device) -> Tensor:
        """Return :attr:`ancestors` on ``device``, copied at most once."""
        if device.type == "cpu":
            return self.ancestors
        return self.cached(device, lambda: copy_to_device(self.ancestors, device))


class GrownShape(TreeShape):
    """Shape grown level by level on a device.

    ``parents_on_device``: int64 [node], the root's is -1. ``ancestors_on_own_device``: bool [node, node]. Depths are on the host;
    parents are copied to the host on first access.
    """

    parents_on_device: Tensor
    ancestors_on_own_device: Tensor

    def __init__(self, depths: tuple[int, ...], parents_on_device: Tensor, ancestors_on_own_device: Tensor) -> None:
        known = {"depths": depths, "parents_on_device": parents_on_device, "ancestors_on_own_device": ancestors_on_own_device}
        vars(self).update(known)  # bypasses the frozen dataclass

    @staticmethod
    def root(device: torch.device | str) -> GrownShape:
        """Return the shape of a lone root."""
        lone = torch.ones(1, 1, dtype=torch.bool, device=device)
        return GrownShape((0,), torch.full((1,), -1, device=device), lone)

    def below(self, parents: Tensor) -> GrownShape:
        """Return this shape with one more level; ``parents`` (int64 [row]) index the rows of the last level."""
        deepest, nodes, rows = self.depths[-1], len(self), len(parents)
        above = parents + self.depths.index(deepest)
        own = torch.eye(rows, dtype=torch.bool, device=parents.device)
        older = torch.nn.functional.pad(self.ancestors_on_own_device, (0, rows))
        ancestors = torch.cat((older, torch.cat((self.ancestors_on_own_device.index_select(0, above), own), 1)))
        assert len(ancestors) == nodes + rows
        return GrownShape((*self.depths, *[deepest + 1] * rows), torch.cat((self.parents_on_device, above)), ancestors)

    def __len__(self) -> int:
        return len(self.depths)

    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        return self is other

    @cached_property
    def parents(self) -> tuple[int, ...]:  # type: ignore[override]
        """Parent of each node, copied from the device at most once."""
        return tuple(self.parents_on_device.tolist())

    def to_host(self, tokens: Tensor) -> tuple[int, ...]:
        """Return ``tokens`` [node] as Python integers; the same copy from the device fetches the parents."""
        listed, parents = torch.stack((tokens, self.parents_on_device)).tolist()
        vars(self)["parents"] = tuple(parents)
        return tuple(listed)

    def ancestors_on(self, device: torch.device) -> Tensor:
        """Return ``ancestors_on_own_device``; ``device`` is ignored."""
        return self.ancestors_on_own_device


@device_cache(64)
def shape_of(parents: tuple[int, ...]) -> TreeShape:
    """Return the shape with these parents. Cached, because the trees of a run have few distinct shapes."""
    return TreeShape(parents)


def chain(length: int) -> TreeShape:
    """Return the shape of a chain: a root followed by ``length`` drafted tokens."""
    return shape_of(tuple(range(-1, length)))


def shape_from_counts(levels: Sequence[Sequence[int]]) -> TreeShape:
    """Return a shape from child counts: ``levels[d][i]`` is the count of the i-th node at depth d (0 if missing)."""
    parents, level = [-1], [0]
    for counts in levels:
        below: list[int] = []
        for node, count in zip(level, counts, strict=False):
            below += range(len(parents), len(parents) + count)
            parents += [node] * count
        level = below
    return TreeShape(tuple(parents))


def shape_from_paths(paths: Sequence[Sequence[int]]) -> TreeShape:
    """Return a shape from rank paths: ``(0, 2)`` is the third child of the root's first child.

    Nodes are in level order and siblings in rank order; a missing rank leaves no gap. Raises BadInput if a path's parent is
    missing.
    """
    ordered = sorted({tuple(path) for path in paths}, key=lambda path: (len(path), path))
    place: dict[tuple[int, ...], int] = {(): 0}
    parents = [-1]
    for path in ordered:
        if path[:-1] not in place:
            raise BadInput(f"The tree has the path {list(path)} but not its parent.")
        place[path] = len(parents)
        parents.append(place[path[:-1]])
    return TreeShape(tuple(parents))


def best_ranks(depth: int, width: int, nodes: int) -> TreeShape:
    """Return the ``nodes`` best rank paths of up to ``depth`` levels, each with a sum of ranks below ``width``.

    The cost of a path is 1 per level and 2 per rank. Paths are generated by ascending cost, because there may be hundreds of
    thousands.
    """
    waiting: list[tuple[int, tuple[int, ...]]] = [(1, (0,))]
    paths: list[tuple[int, ...]] = []
    while waiting and len(paths) < nodes:
        cost, path = heappop(waiting)
        paths.append(path)
        if sum(path) + 1 < width:
            heappush(waiting, (cost + 2, (*path[:-1], path[-1] + 1)))
        if len(path) < depth:
            heappush(waiting, (cost + 1, (*path, 0)))
    return shape_from_paths(paths)


@dataclass(frozen=True)
class DraftTree:
    """Shape with a token at each node.

    ``tokens``: int64 [node] on the target's device. ``known``: the same as Python integers, if the host already has them.
    """

    shape: TreeShape
    tokens: Tensor
    known: tuple[int, ...] | None = None

    @staticmethod
    def of(tokens: Sequence[int], parents: Sequence[int], device: torch.device | str = "cpu") -> DraftTree:
        """Build a tree from host lists. Raises BadInput if the lengths differ or a parent comes after its child."""
        if len(tokens) != len(parents):
            raise BadInput(f"A draft tree with {len(tokens)} tokens cannot have {len(parents)} parents.")
        known = tuple(map(int, tokens))
        return DraftTree(shape_of(tuple(parents)), to_device(known, device), known)

    def __len__(self) -> int:
        return len(self.shape)

    @cached_property
    def host_tokens(self) -> tuple[int, ...]:
        """Tokens as Python integers, copied from the device at most once."""
        if self.known is not None:
            return self.known
        return self.shape.to_host(self.tokens) if isinstance(self.shape, GrownShape) else tuple(self.tokens.tolist())
