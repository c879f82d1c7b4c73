"""HOWL's controller: the suffix-tree draft where its score passes a threshold, otherwise the network's tree.

The hybrid of OWL and suffix decoding, HOWL (arXiv 2510.07535): the memory's score, the tokens it expects to be right, is
held against a threshold, a given one or one that the run sets. Without a memory the network drafts always.

A score is the number of tokens that would be right if counts were probabilities. On some texts they nearly are, on others the
target goes its own way; so an adaptive threshold holds the score against what such scores were worth in this run, and against
what the network's trees brought: draft from memory where that brings more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Generic, TypeVar

from specviz.engine.interfaces import Context, Draft, Drafter, Round, TargetPass, TreeBuilder
from specviz.trace.notes.drafts import SuffixNote
from specviz.trace.notes.models import LastStateNote
from specviz.trace.schema import Note

Network = TypeVar("Network", bound=Drafter)
Memory = TypeVar("Memory", bound=Drafter)

TREE = 0.8
"""Accepted tokens of a network's tree before any was seen."""
WEIGHT = 4.0
"""So many trees, and so many tokens that a memory expected, the first guesses count as."""
FADE = 0.97
"""What a round counts after another one: an estimate follows the text."""


class HybridController(Generic[Network, Memory]):
    """``memory`` proposes nothing where it is not sure enough (None: there is none); ``memory_builder`` turns what it proposes
    into a tree, ``builder`` does so with the ``network``. ``probed`` is for the reader: whether probes stand behind tokens.
    Without a ``threshold`` the bar is weighed anew in each round, and the memory must offer whatever it has.
    """

    def __init__(
        self, network: Network, builder: TreeBuilder[Network],
        memory: Memory | None = None, memory_builder: TreeBuilder[Memory] | None = None,
        threshold: float | None = None, probed: bool = False,
    ) -> None:  # fmt: skip
        if (memory is None) != (memory_builder is None):
            raise ValueError("a memory needs a tree builder for what it proposes")
        self.network = network
        self.builder = builder
        self.memory = memory
        self.memory_builder = memory_builder
        self.threshold = threshold
        self.probed = probed
        self._weighing = AdaptiveThreshold()
        self._memory_draft: Draft | None = None
        self._remembered = False

    def begin(self, context: Context, prefill: TargetPass | None) -> None:
        self.network.begin(context, prefill)
        self._weighing = AdaptiveThreshold()
        if self.memory is not None:
            self.memory.begin(context, prefill)

    def draft(self, context: Context) -> Draft:
        bar = self.threshold
        self._memory_draft, self._remembered = None, False
        if self.memory is not None and self.memory_builder is not None:
            memory_draft = self._memory_draft = self.memory_builder.build(self.memory, context)
            bar = self._weighing.bar() if self.threshold is None else self.threshold
            self._remembered = len(memory_draft.tree) > 1 and (self.threshold is not None or expected(memory_draft) >= bar)
            if self._remembered:
                return replace(
                    memory_draft, notes=context.notes(lambda: self._notes("suffix", context, memory_draft, memory_draft, bar))
                )
        grown = self.builder.build(self.network, context)
        return replace(grown, notes=context.notes(lambda: self._notes("tree", context, grown, self._memory_draft, bar)))

    def _notes(
        self, half: str, context: Context, drafted: Draft, memory_draft: Draft | None, bar: float | None
    ) -> tuple[Note, ...]:
        """The method's own note first, with the memory's score, then those of the half that drafted."""
        score = None if memory_draft is None or not memory_draft.notes else memory_draft.notes[0].data.get("score")
        if memory_draft is not None and score is not None and self.threshold is None:
            score = expected(memory_draft)  # what was weighed: near the end there is room for a part of the guess only
        own = LastStateNote(half=half, length=len(context.ids), score=score, threshold=bar, probed=self.probed)
        notes = drafted.notes
        if half == "suffix" and notes:
            notes = (SuffixNote.of(notes[0]).replace(threshold=bar).to_note(), *notes[1:])
        return own.to_note(), *notes

    def observe(self, finished: Round) -> None:
        self._weighing.learn(finished, self._memory_draft, self._remembered)
        self.network.observe(finished)
        if self.memory is not None:
            self.memory.observe(finished)

    def close(self) -> None:
        try:
            self.network.close()
        finally:
            if self.memory is not None:
                self.memory.close()


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
