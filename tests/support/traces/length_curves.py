"""Made-up curves of tokens a pass by length, for tests of what reads, writes and draws them."""

from __future__ import annotations

from specviz.trace.lengths import Curve, LengthCurves

MADE_UP = LengthCurves(
    "tiny", "two questions and a <copy>", "2026-01-02", (64, 256, 1024, 4096),
    (
        Curve("owl", "answers", (2.0, 1.9, 1.9, 1.8)),
        Curve("eagle3", "answers", (2.5, 2.0, 1.5, 1.2)),
        Curve("howl", "copies", (2.0, 5.0, 9.0, 3.0)),
    ),
)  # fmt: skip
