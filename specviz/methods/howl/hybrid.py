"""HOWL's controller: the suffix-tree draft where its score passes a threshold, otherwise the network's tree.

The hybrid of OWL and suffix decoding, HOWL (arXiv 2510.07535): the memory's score, the tokens it expects to be right, is
held against a threshold, a given one or one that the run sets. Without a memory the network drafts always.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Generic, TypeVar

from specviz.engine.interfaces import Context, Draft, Drafter, Round, TargetPass, TreeBuilder
from specviz.methods.howl.threshold import AdaptiveThreshold, expected
from specviz.trace.notes.drafts import SuffixNote
from specviz.trace.notes.models import LastStateNote
from specviz.trace.schema import Note

Network = TypeVar("Network", bound=Drafter)
Memory = TypeVar("Memory", bound=Drafter)


class HybridController(Generic[Network, Memory]):
    """``memory`` proposes nothing where it is not sure enough (None: there is none); ``memory_builder`` turns what it proposes
    into a tree, ``builder`` does so with the ``network``. ``probed`` is told to the reader: whether probes stand behind tokens.
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
            notes = (replace(SuffixNote.of(notes[0]), threshold=bar).to_note(), *notes[1:])
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
