"""Suffix tree with occurrence counts: how often each sequence of up to 64 tokens occurred, and its continuations.

The data structure of SuffixDecoding (Oliaro et al., arXiv 2411.04975), with our own online construction. A node's label is a
slice of an added text; every text ends at a node, so a count holds for a whole edge. A suffix without an earlier occurrence is a
leaf, and leaves grow with their text without further work. So a token costs one step per suffix that occurred before: the length
of the current match, not the depth of the tree.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

DEPTH = 64


class Branch:
    """A node and the edge into it: ``text[start:limit]``. A leaf's limit may lie beyond its text; the edge then ends with the
    text.

    ``count`` is the number of occurrences of the token sequence from the root to here; ``last`` orders nodes by their newest
    occurrence.
    """

    __slots__ = ("children", "count", "last", "limit", "start", "text")

    def __init__(self, text: list[int], start: int, limit: int, count: int, last: int) -> None:
        self.text = text
        self.start = start
        self.limit = limit
        self.count = count
        self.last = last
        self.children: dict[int, Branch] | None = None

    @property
    def length(self) -> int:
        """Number of tokens on the edge."""
        return min(self.limit, len(self.text)) - self.start

    def relabel(self, text: list[int], start: int, limit: int) -> None:
        """Label the edge by another occurrence. Old texts are removed first, so labels always come from the newest occurrence."""
        self.text, self.start, self.limit = text, start, limit


class Position(NamedTuple):
    """A position in the tree: ``offset`` tokens down the edge into ``branch``."""

    branch: Branch
    offset: int

    def following(self) -> Iterator[tuple[int, float, Position]]:
        """Yield (token, its share of this position's count, the position after it), most frequent first; if tied, most recent
        first."""
        branch = self.branch
        if self.offset < branch.length:
            yield branch.text[branch.start + self.offset], 1.0, Position(branch, self.offset + 1)
        elif branch.children:
            for child in sorted(branch.children.values(), key=lambda node: (-node.count, -node.last)):
                yield child.text[child.start], child.count / branch.count, Position(child, 1)

    @property
    def ends(self) -> bool:
        """Whether this position has no continuation."""
        return self.offset == self.branch.length and not self.branch.children


class SuffixTree:
    """Suffix tree of all sequences of up to ``depth`` tokens in the added texts. One text grows at a time; complete texts can be
    removed."""

    def __init__(self, depth: int = DEPTH) -> None:
        self.depth = depth
        self.root = Branch([], 0, 0, 0, 0)
        self._text: list[int] = []
        self._base = 0  # tokens of all texts before this one: a clock that orders occurrences
        # The node at which each suffix that occurred before ends, longest first: their lengths are consecutive, down to one.
        self._ends: list[Branch] = []

    def start(self) -> list[int]:
        """Begin a new text, which completes the previous one. Returns the handle for :meth:`remove`."""
        self._base += len(self._text)
        self._text = []
        self._ends = []
        return self._text

    def extend(self, tokens: Sequence[int]) -> None:
        """Append these tokens to the growing text."""
        for token in tokens:
            place = len(self._text)
            self._text.append(token)
            self.root.count += 1
            ends = [*self._ends, self.root][-self.depth :]
            longest = len(ends) - 1
            moved = [self._step(node, token, place, longest - rank) for rank, node in enumerate(ends)]
            self._ends = [node for node in moved if node is not None]

    def _step(self, node: Branch, token: int, place: int, length: int) -> Branch | None:
        """Extend the suffix of ``length`` tokens that ends at ``node`` by one token. Returns None if it becomes a leaf."""
        text, begin = self._text, place - length
        child = node.children.get(token) if node.children else None
        if child is None:
            if node.children is None:
                node.children = {}
            node.children[token] = Branch(text, place, begin + self.depth, 1, self._base + begin)
            return None
        if node is not self.root and node.count == child.count + 1:
            return self._slide(node, child, place)
        if child.length == 1:
            child.count += 1
            child.last = self._base + begin
            child.relabel(text, place, place + 1)
            return child
        middle = Branch(text, place, place + 1, child.count + 1, self._base + begin)
        child.start += 1
        middle.children = {child.text[child.start]: child}
        assert node.children is not None
        node.children[token] = middle
        return middle

    def _slide(self, node: Branch, child: Branch, place: int) -> Branch:
        """Move the node one token down the edge to ``child``: only this suffix ends at ``node``, all others continue there."""
        # A suffix ends at ``node``, so the limit is the end of the label and the length needs no clipping.
        node.relabel(self._text, place - (node.limit - node.start), place + 1)
        if child.length == 1:
            node.children = child.children
        else:
            child.start += 1
            node.children = {child.text[child.start]: child}
        return node

    def remove(self, text: list[int]) -> None:
        """Remove a complete text. Texts are removed in the order in which they were added, and only after the next one was
        started."""
        self._ends = []
        for begin in range(len(text)):
            self.root.count -= 1
            node, place, stop = self.root, begin, min(begin + self.depth, len(text))
            while place < stop:
                assert node.children is not None
                child = node.children[text[place]]
                child.count -= 1
                if child.count == 0:
                    del node.children[text[place]]
                    break
                place += child.length
                node = child
            self._join(node)

    def _join(self, node: Branch) -> None:
        """Remove a node at which no suffix ends and no edge branches any more."""
        if node is self.root or not node.children or len(node.children) > 1:
            return
        (child,) = node.children.values()
        if child.count == node.count:
            node.relabel(child.text, child.start - node.length, child.limit)
            node.children = child.children

    def present(self) -> list[Position]:
        """Return the positions of the last 1, 2, … tokens of the growing text that occurred before with a continuation."""
        positions = []
        for node in reversed(self._ends):
            if not node.children:
                break
            positions.append(Position(node, node.length))
        return positions

    def find(self, run: list[int]) -> Position | None:
        """Return the position after this sequence of tokens in the tree, None if it never occurred."""
        node, place, size, length = self.root, 0, len(run), 0
        while place < size:
            child = node.children.get(run[place]) if node.children else None
            if child is None:
                return None
            length = min(child.length, size - place)
            if length > 1 and child.text[child.start : child.start + length] != run[place : place + length]:
                return None
            place += length
            node = child
        return Position(node, length)

    def nodes(self) -> int:
        """Return the number of nodes, the root excluded."""
        count, open_nodes = 0, [self.root]
        while open_nodes:
            below = open_nodes.pop().children
            if below:
                count += len(below)
                open_nodes.extend(below.values())
        return count
