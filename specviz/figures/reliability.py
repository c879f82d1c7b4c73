"""Reliability diagram: the drafter's confidence against the acceptance rate at that confidence."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import plotly.graph_objects as go

from specviz.figures.theme import JUDGED, axis, count, figure, percent, theme_of
from specviz.palette import Theme
from specviz.trace.schema import ACCEPTED, RELAXED, Step, Trace

BINS = 10
FEW = 5
"""Minimum number of tokens for a filled marker; a hollow marker warns of an unreliable bin."""
_WIDTH, _HEIGHT = 720, 520


class Bin(NamedTuple):
    """Draft tokens with a confidence from ``low`` to ``high``. ``confidence``: mean confidence of the tokens."""

    low: float
    high: float
    confidence: float
    accepted: int
    judged: int

    @property
    def share(self) -> float:
        return self.accepted / self.judged


def reliability(trace: Trace, theme: str = "light") -> go.Figure:
    """Draw acceptance by confidence with 95 % intervals, the diagonal of perfect calibration, and the counts below."""
    return of_bins(calibration(trace.steps), theme)


def of_bins(bins: Sequence[Bin], theme: str = "light") -> go.Figure:
    """Draw the diagram from bins, such as those of an inspected drafter."""
    colours = theme_of(theme)
    fig = figure(colours, "Confidence against acceptance", _subtitle(bins), width=_WIDTH, height=_HEIGHT)
    fig.add_scatter(
        x=[0, 1], y=[0, 1], mode="lines", hoverinfo="skip", line={"color": colours.quiet, "width": 1.6, "dash": "6px,4px"}
    )
    if bins:
        _points(fig, colours, bins)
        _counts(fig, colours, bins)
    tenths = [0, 0.25, 0.5, 0.75, 1]
    shares: dict[str, Any] = {"tickvals": tenths, "tickformat": ".0%"}
    fig.update_layout(
        xaxis=axis(colours, "the drafter's probability of its token, q", range=[-0.02, 1.02], anchor="y2", **shares),
        yaxis=axis(colours, "acceptance, given that the parent was accepted", range=[-0.03, 1.1], domain=[0.34, 1], **shares),
        yaxis2=axis(colours, "drafted tokens", rangemode="tozero", domain=[0, 0.2], nticks=3, tickformat="d"),
    )
    return fig


def calibration(steps: Sequence[Step], bins: int = BINS) -> list[Bin]:
    """Bin all judged tokens with an accepted parent by confidence; omit empty bins."""
    guesses = [
        (node.q, node.status in (ACCEPTED, RELAXED))
        for step in steps
        for node in step.nodes[1:]
        if node.q is not None and node.status in JUDGED and node.parent in (0, *step.path)
    ]
    return binned(guesses, bins)


def binned(guesses: Iterable[tuple[float, bool]], bins: int = BINS) -> list[Bin]:
    """Bin pairs (confidence, accepted) by confidence; omit empty bins."""
    guesses_by_bin: list[list[tuple[float, bool]]] = [[] for _ in range(bins)]
    for confidence, accepted in guesses:
        guesses_by_bin[min(bins - 1, int(confidence * bins))].append((confidence, accepted))
    return [
        Bin(
            place / bins,
            (place + 1) / bins,
            sum(q for q, _ in alike) / len(alike),
            sum(accepted for _, accepted in alike),
            len(alike),
        )
        for place, alike in enumerate(guesses_by_bin)
        if alike
    ]


def calibration_error(bins: Sequence[Bin]) -> float | None:
    """Return the expected calibration error: the gap between acceptance and confidence, averaged over tokens.

    Returns None if no token was judged.
    """
    judged = sum(bucket.judged for bucket in bins)
    return sum(bucket.judged * abs(bucket.share - bucket.confidence) for bucket in bins) / judged if judged else None


def interval(accepted: int, judged: int, z: float = 1.96) -> tuple[float, float]:
    """Return the Wilson score interval of ``accepted`` / ``judged``, which is reliable even for few tokens."""
    share, wide = accepted / judged, z * z / judged
    middle = (share + wide / 2) / (1 + wide)
    half = z * math.sqrt(share * (1 - share) / judged + wide / (4 * judged)) / (1 + wide)
    return max(0.0, middle - half), min(1.0, middle + half)


def _subtitle(bins: Sequence[Bin]) -> str:
    error = calibration_error(bins)
    if error is None:
        return "no confidence was recorded: this run's drafter proposes tokens without probabilities"
    judged = sum(bucket.judged for bucket in bins)
    gap = sum(bucket.confidence * bucket.judged - bucket.accepted for bucket in bins) / judged
    side = "overconfident" if gap > 0.02 else "underconfident" if gap < -0.02 else "well calibrated"
    tokens = count(judged, "verified token")
    return f"{tokens}; {side}: on average {percent(error)} away from the diagonal, where confidence equals acceptance"


def _points(fig: go.Figure, colours: Theme, bins: Sequence[Bin]) -> None:
    spans = [interval(bucket.accepted, bucket.judged) for bucket in bins]
    sound = [bucket for bucket in bins if bucket.judged >= FEW]
    fig.add_scatter(
        x=[round(bucket.confidence, 4) for bucket in sound], y=[round(bucket.share, 4) for bucket in sound], mode="lines",
        line={"color": colours.accepted, "width": 2}, hoverinfo="skip",
    )  # fmt: skip
    fig.add_scatter(
        x=[round(bucket.confidence, 4) for bucket in bins], y=[round(bucket.share, 4) for bucket in bins], mode="markers",
        cliponaxis=False, hoverinfo="text",
        error_y={
            "type": "data", "symmetric": False, "color": colours.accepted, "thickness": 1.4, "width": 5,
            "array": [round(high - bucket.share, 4) for bucket, (_, high) in zip(bins, spans, strict=True)],
            "arrayminus": [round(bucket.share - low, 4) for bucket, (low, _) in zip(bins, spans, strict=True)],
        },
        marker={
            "size": 11, "color": [colours.accepted if bucket.judged >= FEW else colours.paper for bucket in bins],
            "line": {"width": 2, "color": colours.accepted},
        },
        hovertext=[
            f"q from {bucket.low:.1f} to {bucket.high:.1f}: "
            f"{bucket.accepted} of {bucket.judged} accepted, {percent(bucket.share)}"
            for bucket in bins
        ],
    )  # fmt: skip


def _counts(fig: go.Figure, colours: Theme, bins: Sequence[Bin]) -> None:
    fig.add_bar(
        x=[round((bucket.low + bucket.high) / 2, 3) for bucket in bins], y=[bucket.judged for bucket in bins], yaxis="y2",
        width=[round((bucket.high - bucket.low) * 0.86, 3) for bucket in bins], marker={"color": colours.draft},
        text=[str(bucket.judged) for bucket in bins], textposition="outside", cliponaxis=False,
        textfont={"size": 12, "color": colours.ink}, hoverinfo="skip",
    )  # fmt: skip
