"""Prompt lookup: copy what followed an earlier occurrence of the current suffix.

As in the reference implementations of Saxena's prompt lookup decoding (2023): longest suffix first, and by default the earliest
occurrence with a full continuation.
"""

from __future__ import annotations

from collections.abc import Sequence

from specviz.drafting.runtimes.null import NullDrafter
from specviz.engine.interfaces import Context, Round, TargetPass
from specviz.trace.notes.drafts import CopyNote
from specviz.trace.schema import Note


class PromptCopy(NullDrafter):
    """Index of the occurrences of n-grams, extended as text is committed.

    ``longest``, ``shortest``: limits of the suffix length. ``length``: number of copied tokens. ``latest``: whether to copy the
    latest occurrence instead of the earliest. ``partial``: whether the end of the text may cut off a continuation. If not, as
    published, a continuation has full length and begins before the suffix.
    """

    def __init__(self, longest: int, shortest: int, length: int, latest: bool, partial: bool) -> None:
        self.longest = longest
        self.shortest = min(shortest, longest)
        self.length = length
        self.latest = latest
        self.partial = partial
        self._restart()

    def _restart(self) -> None:
        self._places: dict[tuple[int, ...], list[int]] = {}
        self._noted: list[tuple[int, ...]] = []
        """Indexed n-grams, in order."""
        self._indexed = 0

    def begin(self, context: Context, prefill: TargetPass | None) -> None:
        self._restart()
        self._index(context.ids)

    def observe(self, finished: Round) -> None:
        self._index([*finished.context.ids, *finished.emitted])

    def _index(self, ids: Sequence[int]) -> None:
        """Record the end (exclusive) of each n-gram that ends at a new position."""
        for end in range(self._indexed + 1, len(ids) + 1):
            for size in range(self.shortest, min(self.longest, end) + 1):
                self._noted.append(tuple(ids[end - size : end]))
                self._places.setdefault(self._noted[-1], []).append(end)
        self._indexed = len(ids)

    def bookmark(self) -> tuple[int, int]:
        """Return the current extent of the index, to which :meth:`back` can return."""
        return self._indexed, len(self._noted)

    def back(self, bookmark: tuple[int, int]) -> None:
        """Remove what was indexed since the bookmark."""
        while len(self._noted) > bookmark[1]:
            self._places[self._noted.pop()].pop()
        self._indexed = bookmark[0]

    def continuation(self, context: Context) -> tuple[Sequence[int], tuple[Note, ...]]:
        """Return the continuation of the longest suffix that occurred before, and a note on its source."""
        ids = context.ids
        for size in range(min(self.longest, len(ids) - 1), self.shortest - 1, -1):
            last = len(ids) - 1 if self.partial else min(len(ids) - self.length, len(ids) - size - 1)
            places = self._places.get(tuple(ids[-size:]), [])
            considered = reversed(places) if self.latest else places[:1]
            source = next((place for place in considered if place <= last), None)
            if source is not None:
                # The last token that the round may add is the bonus token.
                tokens = ids[source : source + min(self.length, max(0, context.max_depth - 1))]
                return tokens, context.notes(lambda: [self._note(len(ids) - size, size, source, len(tokens))])
        return (), context.notes(lambda: [self._note(len(ids), 0, 0, 0)])

    @staticmethod
    def _note(start: int, size: int, source: int, length: int) -> Note:
        return CopyNote(start, size, source, length).to_note()
