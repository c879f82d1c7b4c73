"""Draft from a suffix tree: a longer match allows a longer draft, as long as the path probability stays high.

Length rule and score follow the authors' implementation of SuffixDecoding (Oliaro et al., arXiv 2411.04975).
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field

from specviz.drafting.memory.suffix_tree import Position, SuffixTree


@dataclass(frozen=True)
class LengthRule:
    """Limits of a draft: ``min(most, n * factor + offset)`` tokens after a match of n tokens, each with path probability >=
    ``floor``.

    ``tree``: whether to draft a tree of the most probable nodes, instead of the path of most frequent successors.
    """

    most: int = 64
    factor: float = 1.0
    offset: float = 0.0
    floor: float = 0.1
    tree: bool = True

    def limit(self, matched: int) -> int:
        """Return the maximum number of tokens drafted after a match of this length."""
        return max(0, min(self.most, int(matched * self.factor + self.offset + 1e-6)))


@dataclass
class Guess:
    """Draft after a match. Nodes are numbered from 1; 0 in ``parents`` is the last token of the match.

    ``probability``: product of count shares down to each node. ``score``: sum of the probabilities, the number of tokens expected
    to be accepted. ``positions[node]``: position of a node in the suffix tree, for node 0 too.
    """

    matched: int = 0
    limit: int = 0
    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    probability: list[float] = field(default_factory=list)
    positions: list[Position] = field(default_factory=list)
    score: float = 0.0

    def add(self, parent: int, token: int, probability: float, position: Position) -> int:
        """Append a node. Returns its number."""
        self.tokens.append(token)
        self.parents.append(parent)
        self.probability.append(probability)
        self.positions.append(position)
        self.score += probability
        return len(self.tokens)

    def share(self, node: int) -> float:
        """Return a node's probability given its parent."""
        above = self.parents[node - 1]
        return self.probability[node - 1] / (self.probability[above - 1] if above else 1.0)

    def certainty(self, node: int) -> float:
        """Return a node's count as a fraction of the counted continuations of its parent.

        An occurrence at the end of the growing text has no continuation to count.
        """
        above = self.positions[self.parents[node - 1]]
        if above.offset < above.branch.length or not above.branch.children:
            return 1.0
        return self.positions[node].branch.count / sum(child.count for child in above.branch.children.values())


def matches(tree: SuffixTree, text: list[int]) -> list[Position]:
    """Return the positions at which the last 1, 2, … tokens of ``text`` end in the tree, up to the longest match with a
    continuation.
    """
    positions: list[Position] = []
    for length in range(1, min(len(text) - 1, tree.depth) + 1):
        position = tree.find(text[-length:])
        if position is None or position.ends:
            break
        positions.append(position)
    return positions


def best_guess(
    positions: Sequence[Position], depth: int, rule: LengthRule, all_lengths: bool = False
) -> tuple[Guess, list[tuple[int, int, float]]]:
    """Return the guess with the highest score (the longest match wins ties), and (length, limit, score) of each length tried.

    ``positions``: where matches of 1, 2, … tokens end in a tree of depth ``depth``. Probabilities of one level sum to at most 1,
    so a score is at most the number of levels left and at most the limit. Lengths that cannot win are skipped, unless
    ``all_lengths``.
    """
    lengths = range(1, len(positions) + 1)
    reach = {length: min(rule.limit(length), depth - length) for length in lengths}
    best, tried = Guess(), []
    for length in sorted(lengths, key=lambda n: (reach[n], n), reverse=True):
        if reach[length] + 1e-9 < best.score and not all_lengths:
            break
        position = positions[length - 1]
        guess = Guess(length, rule.limit(length), positions=[position])
        (_add_likeliest if rule.tree else _add_successors)(guess, position, rule.floor)
        tried.append((length, guess.limit, guess.score))
        if (guess.score, guess.matched) > (best.score, best.matched) and guess.tokens:
            best = guess
    return best, tried


def _add_successors(guess: Guess, position: Position, floor: float) -> None:
    probability, node = 1.0, 0
    while node < guess.limit:
        step = next(position.following(), None)
        if step is None:
            return
        token, share, position = step
        probability *= share
        if probability < floor:
            return
        node = guess.add(node, token, probability, position)


def _add_likeliest(guess: Guess, position: Position, floor: float) -> None:
    """Add the most probable nodes first; nodes found first, which are nearer to the root, win ties."""
    heap: list[tuple[float, int, int, int, Position]] = []
    met = 0

    def offer(node: int, probability: float, place: Position) -> None:
        nonlocal met
        branch, offset = place
        if offset < branch.length:  # a single continuation, by far the most frequent case
            heapq.heappush(heap, (-probability, met, node, branch.text[branch.start + offset], Position(branch, offset + 1)))
            met += 1
            return
        for token, share, below in place.following():
            if probability * share < floor:
                break
            heapq.heappush(heap, (-probability * share, met, node, token, below))
            met += 1

    offer(0, 1.0, position)
    while heap and len(guess.tokens) < guess.limit:
        negative, _, parent, token, place = heapq.heappop(heap)
        node = guess.add(parent, token, -negative, place)
        offer(node, -negative, place)
