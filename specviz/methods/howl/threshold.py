"""Adaptive threshold on a memory's score: draft from memory where that brings more than a tree of the network.

A score is the number of tokens that would be right if counts were probabilities. On some texts they nearly are, on others the
target goes its own way; so the score is held against what such scores were worth in this run, and against what the
network's trees brought.
"""

from __future__ import annotations

from collections.abc import Sequence

from specviz.engine.interfaces import Draft, Round

TREE = 0.8
"""Accepted tokens of a network's tree before any was seen."""
WEIGHT = 4.0
"""So many trees, and so many tokens that a memory expected, the first guesses count as."""
FADE = 0.97
"""What a round counts after another one: an estimate follows the text."""


class AdaptiveThreshold:
    """What was seen in this run of both halves."""

    def __init__(self) -> None:
        self._trees = self._accepted = self._expected = self._right = 0.0

    def bar(self) -> float:
        """The score from which on the memory is expected to bring more than the network.

        The first guesses never fade: a long run in which one half does nothing leads to no bar without measure.
        """
        tree = (self._accepted + WEIGHT * TREE) / (self._trees + WEIGHT)
        return tree * (self._expected + WEIGHT) / (self._right + WEIGHT)

    def learn(self, finished: Round, memory_draft: Draft | None, remembered: bool) -> None:
        """From a round that the memory drafted (``remembered``) or the network; ``memory_draft`` is what the memory offered.

        What the memory offered is judged in either case, by the tokens that were committed. Where it was right as far as
        those go, and the network drafted, nobody knows how far it would have been: then it is worth what was seen.
        """
        self._trees, self._accepted = self._trees * FADE, self._accepted * FADE
        self._expected, self._right = self._expected * FADE, self._right * FADE
        if not remembered:
            self._trees += 1
            self._accepted += len(finished.emitted) - 1
        if memory_draft is not None and len(memory_draft.tree) > 1:
            right, score = followed(memory_draft, finished.emitted), expected(memory_draft)
            cut = not remembered and right == len(finished.emitted)
            self._expected += min(score, right) if cut else score
            self._right += right


def expected(draft: Draft) -> float:
    """Tokens that a looked-up tree expects to be right: the sum of its nodes' probabilities from the root."""
    probabilities = [1.0]
    for parent, share in zip(draft.tree.shape.parents[1:], draft.confidence[1:], strict=True):
        probabilities.append(probabilities[parent] * (share or 0.0))
    return sum(probabilities[1:])


def followed(draft: Draft, emitted: Sequence[int]) -> int:
    """How far the committed tokens go down the tree."""
    tree, at = draft.tree, 0
    for steps, token in enumerate(emitted):
        below = next((child for child in tree.shape.children[at] if tree.host_tokens[child] == token), None)
        if below is None:
            return steps
        at = below
    return len(emitted)
