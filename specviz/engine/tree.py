"""Draft trees: shape (parents) known to the host, tokens on the device, and the mask that a target pass needs.

Layout after text trees in SpecInfer (arXiv 2305.09781): node 0 is the last committed token, not yet in the target's
cache; ``parents[i] < i``; a node's absolute position is cache length + depth; a node sees the cache, its ancestors and
itself.
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
    """Who hangs from whom. ``parents[0]`` is -1 and every other parent comes before its child."""

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
        """Depth of each node, root 0."""
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
        """Nodes from the root (included) down to ``node``."""
        nodes = []
        while node >= 0:
            nodes.append(node)
            node = self.parents[node]
        return tuple(reversed(nodes))

    @cached_property
    def ancestors(self) -> Tensor:
        """Bool [node, node] on the CPU: True where the column is an ancestor of the row or the row itself."""
        ancestry = numpy.eye(len(self.parents), dtype=bool)
        for node, parent in enumerate(self.parents[1:], start=1):
            ancestry[node] |= ancestry[parent]
        return torch.from_numpy(ancestry)

    @cached_property
    def _kept(self) -> dict[Hashable, Tensor]:
        return {}

    def keeping(self, name: Hashable, make: Callable[[], Tensor]) -> Tensor:
        """What ``make`` gives, which follows from this shape; made once for a ``name``."""
        if name not in self._kept:
            self._kept[name] = make()
        return self._kept[name]

    def ancestors_on(self, device: torch.device) -> Tensor:
        """:attr:`ancestors` on ``device``, copied there once."""
        if device.type == "cpu":
            return self.ancestors
        return self.keeping(device, lambda: copy_to_device(self.ancestors, device))


class GrownShape(TreeShape):
    """A shape that grew level by level on a device, where ``parents_there`` int64 [node] (the root's is -1) and
    ``ancestors_there`` bool [node, node] are. The host knows the depths, and copies the parents when they are asked for."""

    parents_there: Tensor
    ancestors_there: Tensor

    def __init__(self, depths: tuple[int, ...], parents_there: Tensor, ancestors_there: Tensor) -> None:
        known = {"depths": depths, "parents_there": parents_there, "ancestors_there": ancestors_there}
        vars(self).update(known)  # past what a frozen class refuses

    @staticmethod
    def root(device: torch.device | str) -> GrownShape:
        """The root alone."""
        lone = torch.ones(1, 1, dtype=torch.bool, device=device)
        return GrownShape((0,), torch.full((1,), -1, device=device), lone)

    def below(self, parents: Tensor) -> GrownShape:
        """This shape with one more level, whose nodes hang from these rows (int64 [row]) of the last one."""
        deepest, nodes, rows = self.depths[-1], len(self), len(parents)
        above = parents + self.depths.index(deepest)
        own = torch.eye(rows, dtype=torch.bool, device=parents.device)
        older = torch.nn.functional.pad(self.ancestors_there, (0, rows))
        ancestors = torch.cat((older, torch.cat((self.ancestors_there.index_select(0, above), own), 1)))
        assert len(ancestors) == nodes + rows
        return GrownShape((*self.depths, *[deepest + 1] * rows), torch.cat((self.parents_there, above)), ancestors)

    def __len__(self) -> int:
        return len(self.depths)

    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        return self is other

    @cached_property
    def parents(self) -> tuple[int, ...]:  # type: ignore[override]
        """As of any shape: at most one copy from the device."""
        return tuple(self.parents_there.tolist())

    def tell(self, tokens: Tensor) -> tuple[int, ...]:
        """``tokens`` [node] as Python integers, and with them the parents: one copy from the device for both."""
        listed, parents = torch.stack((tokens, self.parents_there)).tolist()
        vars(self)["parents"] = tuple(parents)
        return tuple(listed)

    def ancestors_on(self, device: torch.device) -> Tensor:
        """:attr:`ancestors` where it grew."""
        return self.ancestors_there


@device_cache(64)
def shape_of(parents: tuple[int, ...]) -> TreeShape:
    """The shape with these parents. Trees of one run keep few shapes, so what a shape works out is worth keeping."""
    return TreeShape(parents)


def chain(length: int) -> TreeShape:
    """The shape of a chain: a root with ``length`` drafted tokens below it, one under the other."""
    return shape_of(tuple(range(-1, length)))


def shape_from_counts(levels: Sequence[Sequence[int]]) -> TreeShape:
    """A shape from child counts: ``levels[d][i]`` is how many children the i-th node of depth d has (0 if missing)."""
    parents, level = [-1], [0]
    for counts in levels:
        below: list[int] = []
        for node, count in zip(level, counts, strict=False):
            below += range(len(parents), len(parents) + count)
            parents += [node] * count
        level = below
    return TreeShape(tuple(parents))


def shape_from_paths(paths: Sequence[Sequence[int]]) -> TreeShape:
    """A shape from rank paths, ``(0, 2)`` being the third child of the root's first; every prefix must be there.

    Siblings keep rank order, a missing rank leaves no gap, and nodes are laid level by level. Raises BadInput when a
    path's parent is missing.
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
    """The ``nodes`` best rank paths of up to ``depth`` levels, the ranks of a path adding up to less than ``width``.

    A level deeper costs one, a rank lower two more. They are made best first, and no more of them than are kept: all
    there are would be hundreds of thousands.
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
    """A shape with a token at each node. ``tokens`` is int64 [node] on the target's device, ``known`` the same as Python
    integers where the host has them already, so that they need not be fetched back."""

    shape: TreeShape
    tokens: Tensor
    known: tuple[int, ...] | None = None

    @staticmethod
    def of(tokens: Sequence[int], parents: Sequence[int], device: torch.device | str = "cpu") -> DraftTree:
        """From host lists. Raises BadInput when the two differ in length or a parent comes after its child."""
        if len(tokens) != len(parents):
            raise BadInput(f"A draft tree with {len(tokens)} tokens cannot have {len(parents)} parents.")
        known = tuple(map(int, tokens))
        return DraftTree(shape_of(tuple(parents)), to_device(known, device), known)

    def __len__(self) -> int:
        return len(self.shape)

    @cached_property
    def host_tokens(self) -> tuple[int, ...]:
        """The tokens as Python integers: at most one copy from the device."""
        if self.known is not None:
            return self.known
        return self.shape.tell(self.tokens) if isinstance(self.shape, GrownShape) else tuple(self.tokens.tolist())
