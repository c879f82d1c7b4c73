"""Null drafter: no proposals, for autoregressive decoding through the same loop."""

from __future__ import annotations

from specviz.engine.interfaces import Context, Round, TargetPass


class NullDrafter:
    """Drafter without state."""

    def begin(self, context: Context, prefill: TargetPass | None) -> None:
        """Do nothing."""

    def observe(self, finished: Round) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""
