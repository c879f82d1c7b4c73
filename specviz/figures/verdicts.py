"""Look and wording of every verdict: colour, symbol and line dash together, so that no meaning hangs on colour alone."""

from __future__ import annotations

from dataclasses import dataclass

from specviz.palette import LABELS, LEGEND, Theme
from specviz.trace.schema import ACCEPTED, PRUNED, REJECTED, RELAXED, RESAMPLED, ROOT, SKIPPED

BONUS = "bonus"
JUDGED = (ACCEPTED, RELAXED, REJECTED, RESAMPLED)
ORDER = (ROOT, ACCEPTED, RELAXED, REJECTED, RESAMPLED, SKIPPED, PRUNED, BONUS)


@dataclass(frozen=True)
class Look:
    """What a verdict looks like. ``fill`` is the pill's colour, ``line`` its outline and edge, ``text`` its letters."""

    label: str
    symbol: str
    dash: str
    width: float
    fill: str
    line: str
    text: str
    double: bool = False


def look(status: str, theme: Theme) -> Look:
    """The look of a status, or of ``"bonus"``."""
    paper = theme.paper
    called = LEGEND.get(status, LABELS[status])
    drawn: dict[str, tuple[str, str, float, str, str, str]] = {
        ROOT: ("square", "solid", 1.4, theme.ink, theme.ink, paper),
        ACCEPTED: ("circle", "solid", 4, theme.accepted, theme.accepted, theme.on_fill),
        RELAXED: ("star", "solid", 4, theme.tints["relaxed"], theme.relaxed, theme.relaxed_ink),
        REJECTED: ("x", "6px,3px", 1.6, paper, theme.rejected, theme.rejected),
        RESAMPLED: ("triangle-down", "8px,3px,2px,3px", 1.6, paper, theme.resampled, theme.resampled),
        SKIPPED: ("circle-open", "1.5px,3px", 1.2, paper, theme.quiet, theme.mute),
        PRUNED: ("line-ew-open", "1px,5px", 1.2, paper, theme.quiet, theme.mute),
        BONUS: ("diamond", "2px,2px", 1.8, theme.tints["bonus"], theme.bonus, theme.bonus),
    }
    return Look(called, *drawn[status], double=status == RELAXED)
