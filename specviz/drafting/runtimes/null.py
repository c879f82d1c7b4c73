"""Null drafter: proposes nothing, which is autoregressive decoding through the same loop."""

from __future__ import annotations

from specviz.engine.interfaces import Context, Round, TargetPass


class NullDrafter:
    """Keeps no state."""

    def begin(self, context: Context, prefill: TargetPass | None) -> None:
        """Nothing to prepare."""

    def observe(self, finished: Round) -> None:
        """Nothing to learn."""

    def close(self) -> None:
        """Nothing to give back."""
