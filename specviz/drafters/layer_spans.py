"""Spans of layers whose attention runs in parallel: the first and the last layer never do."""

from __future__ import annotations


def spans(layers: int, group: int) -> tuple[tuple[int, ...], ...]:
    """The layers in their order, those between the first and the last in groups of up to ``group``."""
    inner = list(range(1, layers - 1))
    groups = [tuple(inner[start : start + group]) for start in range(0, len(inner), group)]
    ends = [(0,), (layers - 1,)] if layers > 1 else [(0,)]
    return (ends[0], *groups, *ends[1:])
