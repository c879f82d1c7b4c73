"""Suffix tree with occurrence counts: how often each sequence of up to 64 tokens occurred, and how it continued.

The data structure of SuffixDecoding (Oliaro et al., arXiv 2411.04975) with an online construction of our own. An edge's label is
a slice of an added text. Every suffix of a text ends at a node or is a leaf, so a count holds for a whole edge.

A suffix without an earlier occurrence is a leaf, and leaves grow with their text at no cost. A token therefore costs one step per
suffix with an earlier occurrence: the length of the current match, not the depth of the tree.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

DEPTH = 64


class Branch:
    """Node with the edge into it, whose label is ``text[start:limit]``. A leaf's limit may lie beyond the end of its text; the
    edge then grows as the text grows.

    ``count``: occurrences of the tokens from the root to this node. ``last``: time of the newest occurrence.
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
        """Point the edge's label at another occurrence of the same tokens.

        A label always points at the newest occurrence, because texts are removed oldest first and the label must outlive the
        removal.
        """
        self.text, self.start, self.limit = text, start, limit


class Position(NamedTuple):
    """Position in the tree: ``offset`` tokens down the edge into ``branch``."""

    branch: Branch
    offset: int

    def following(self) -> Iterator[tuple[int, float, Position]]:
        """Yield (token, share of this position's count, position after the token), most frequent first; the most recent wins
        ties."""
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
    """Suffix tree of the sequences of up to ``depth`` tokens in the added texts.

    One text grows at a time; complete texts can be removed.
    """

    def __init__(self, depth: int = DEPTH) -> None:
        self.depth = depth
        self.root = Branch([], 0, 0, 0, 0)
        self._text: list[int] = []
        self._base = 0  # number of tokens in all earlier texts: a clock that orders occurrences
        # Per suffix with an earlier occurrence, the node where it ends. Longest first; lengths run down to 1.
        self._ends: list[Branch] = []

    def start(self) -> list[int]:
        """Complete the current text and begin a new one. Returns the new text's handle for :meth:`remove`."""
        self._base += len(self._text)
        self._text = []
        self._ends = []
        return self._text

    def extend(self, tokens: Sequence[int]) -> None:
        """Append tokens to the growing text."""
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
        """Move ``node`` one token towards ``child``: only this suffix ends at ``node``; all other occurrences continue to
        ``child``."""
        # A suffix ends here, so the limit lies within the text and the length needs no clipping.
        node.relabel(self._text, place - (node.limit - node.start), place + 1)
        if child.length == 1:
            node.children = child.children
        else:
            child.start += 1
            node.children = {child.text[child.start]: child}
        return node

    def remove(self, text: list[int]) -> None:
        """Remove a complete text. Texts must be removed in the order in which they were started, and only after a later text
        has been started.
        """
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
        """Merge a node with its only child if no suffix ends at the node."""
        if node is self.root or not node.children or len(node.children) > 1:
            return
        (child,) = node.children.values()
        if child.count == node.count:
            node.relabel(child.text, child.start - node.length, child.limit)
            node.children = child.children

    def present(self) -> list[Position]:
        """Return the positions that match the last 1, 2, … tokens of the growing text, as long as these occurred earlier with a
        continuation."""
        positions = []
        for node in reversed(self._ends):
            if not node.children:
                break
            positions.append(Position(node, node.length))
        return positions

    def find(self, run: list[int]) -> Position | None:
        """Return the position after the tokens ``run``, or None if they never occurred."""
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
