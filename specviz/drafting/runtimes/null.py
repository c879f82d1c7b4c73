"""Null drafter: no proposals, for autoregressive decoding through the same loop. Also the base class of other drafters."""

from __future__ import annotations

from collections.abc import Sequence

from specviz.engine.interfaces import Context, Pick, Round, TargetPass
from specviz.trace.schema import Note


class NullDrafter:
    """Drafter whose only state is the number of its forwards; subclasses count them in ``_calls``."""

    _calls = 0

    def begin(self, context: Context, prefill: TargetPass | None) -> None:
        """Do nothing."""

    def observe(self, finished: Round) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""

    def calls(self) -> int:
        """Return the number of drafter forwards since the last call."""
        count, self._calls = self._calls, 0
        return count

    def draft_notes(self, picks: Sequence[Pick]) -> tuple[Note, ...]:
        """Return no notes."""
        return ()
