"""HOWL's controller: the suffix-tree draft where its score passes a threshold, otherwise the network's tree.

HOWL (arXiv 2510.07535) is the hybrid of OWL and suffix decoding. The memory's score, the expected number of accepted tokens, is
compared with a fixed or an adaptive threshold. Without a memory the network always drafts.

The score takes counts for probabilities, which is accurate only on some texts. So an adaptive threshold compares the score,
corrected by the memory's acceptance in this run, with the acceptance of the network's trees: the memory drafts if it is expected
to yield more.
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
"""Prior number of accepted tokens per tree of the network."""
WEIGHT = 4.0
"""Weight of the priors, in trees (network) and in expected tokens (memory)."""
FADE = 0.97
"""Discount of past observations per round, so that estimates follow the text."""


class HybridController(Generic[Network, Memory]):
    """Controller of a ``network`` and an optional ``memory``, which proposes nothing if its score is too low.

    ``memory_builder`` turns the memory's proposals into a tree, ``builder`` the network's. ``probed`` states in the notes whether
    the target's tokens are followed by probes. With a ``threshold`` of None it is recomputed in each round, and the memory must
    then offer all its proposals.
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
        """Return the method's note, with the memory's score, then the draft's own notes."""
        score = None if memory_draft is None or not memory_draft.notes else memory_draft.notes[0].data.get("score")
        if memory_draft is not None and score is not None and self.threshold is None:
            score = expected(memory_draft)  # the score that was compared: near the end only part of the proposal fits
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
    """Threshold from the acceptance of network and memory in this run."""

    def __init__(self) -> None:
        self._trees = self._accepted = self._expected = self._right = 0.0

    def bar(self) -> float:
        """Return the score above which the memory is expected to yield more than the network.

        The priors are not discounted, so the threshold stays bounded even if one of the two is idle for long.
        """
        tree = (self._accepted + WEIGHT * TREE) / (self._trees + WEIGHT)
        return tree * (self._expected + WEIGHT) / (self._right + WEIGHT)

    def learn(self, finished: Round, memory_draft: Draft | None, remembered: bool) -> None:
        """Update from a round drafted by the memory (if ``remembered``) or the network; ``memory_draft`` is the memory's
        proposal.

        In either case the proposal is compared with the committed tokens. If the network drafted and the proposal matches all
        committed tokens, its further acceptance is unknown, so only the matched ones count.
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
    """Return a retrieved tree's expected number of accepted tokens: the sum of its nodes' path probabilities."""
    probabilities = [1.0]
    for parent, share in zip(draft.tree.shape.parents[1:], draft.confidence[1:], strict=True):
        probabilities.append(probabilities[parent] * (share or 0.0))
    return sum(probabilities[1:])


def followed(draft: Draft, emitted: Sequence[int]) -> int:
    """Return the number of leading committed tokens that follow a path of the tree."""
    tree, at = draft.tree, 0
    for steps, token in enumerate(emitted):
        below = next((child for child in tree.shape.children[at] if tree.host_tokens[child] == token), None)
        if below is None:
            return steps
        at = below
    return len(emitted)
