"""Common look of stage, page and figures: light and dark colours, fonts, and labels of statuses.

The stage's style sheet and script, the page's theme and Plotly's all derive from these tables.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

SANS = 'Inter, system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif'
MONO = 'ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace'

LABELS = {
    "root": "last committed token",
    "accepted": "accepted",
    "relaxed": "accepted by the relaxed rule",
    "rejected": "rejected",
    "skipped": "not verified",
    "pruned": "pruned before the pass",
    "resampled": "resampled",
    "bonus": "bonus",
}
"""Name in a sentence, by status of a node or "bonus"."""
LEGEND = {
    "accepted": "accepted",
    "relaxed": "relaxed",
    "rejected": "rejected",
    "resampled": "resampled",
    "skipped": "not verified",
    "pruned": "pruned",
    "bonus": "bonus",
}
"""Short names in the order of a legend; the root needs none on the stage."""


class StatusStyle(NamedTuple):
    """Style of a status in the draft tree. ``line`` and ``text``: colours of a theme. ``dash`` and ``width``: style of its
    edge.
    """

    symbol: str
    line: str
    text: str
    dash: str
    width: float


LOOKS = {
    "root": StatusStyle("square", "ink", "ink", "none", 1.1),
    "accepted": StatusStyle("circle", "accepted", "accepted", "none", 3.2),
    "relaxed": StatusStyle("star", "relaxed", "relaxed_ink", "none", 3.2),
    "rejected": StatusStyle("x", "rejected", "rejected", "5,3", 1.2),
    "resampled": StatusStyle("triangle-down", "resampled", "resampled", "7,2,1.5,2", 1.4),
    "skipped": StatusStyle("circle-open", "quiet", "mute", "1.2,3", 1.1),
    "pruned": StatusStyle("line-ew-open", "quiet", "mute", "1.2,3", 1.1),
    "bonus": StatusStyle("diamond", "bonus", "bonus", "2.5,2.5", 1.8),
}
"""Style by status of a node or "bonus". Colour, symbol and dash change together, so that no meaning depends on colour
alone.
"""


@dataclass(frozen=True)
class Theme:
    """Colours of one mode: Okabe and Ito's hues, darkened or lightened where text needs more contrast."""

    ground: str
    paper: str
    ink: str
    mute: str
    faint: str
    line: str
    strong: str
    track: str
    focus: str
    accepted: str
    on_fill: str
    relaxed: str
    relaxed_ink: str
    rejected: str
    resampled: str
    bonus: str
    quiet: str
    draft: str
    verify: str
    judge: str
    commit: str
    host: str
    plain: str
    tints: Mapping[str, str]


LIGHT = Theme(
    ground="#fbfbfa",
    paper="#ffffff",
    ink="#1d2329",
    mute="#5d6770",
    faint="#69717a",
    line="#e1e4e7",
    strong="#c3c9cf",
    track="#e9ebee",
    focus="#0072b2",
    accepted="#0072b2",
    on_fill="#ffffff",
    relaxed="#e69f00",
    relaxed_ink="#7a5200",
    rejected="#b54708",
    resampled="#a63d7c",
    bonus="#007a5a",
    quiet="#98a0a8",
    draft="#e69f00",
    verify="#56b4e9",
    judge="#8a939c",
    commit="#009e73",
    host="#c2c8ce",
    plain="#a9d6f1",
    tints={
        "accepted": "#d9ecf7",
        "relaxed": "#fdf1d5",
        "rejected": "#fdeee3",
        "resampled": "#f9e5f0",
        "bonus": "#d8f2e8",
    },
)
DARK = Theme(
    ground="#14181c",
    paper="#1b2026",
    ink="#e8ebee",
    mute="#a2acb6",
    faint="#7f8993",
    line="#2c333b",
    strong="#48525c",
    track="#2b323a",
    focus="#7cc4f0",
    accepted="#4aa8e0",
    on_fill="#06131c",
    relaxed="#e6a817",
    relaxed_ink="#f3c457",
    rejected="#f08a4b",
    resampled="#e08bbd",
    bonus="#3fc79a",
    quiet="#717c87",
    draft="#e69f00",
    verify="#56b4e9",
    judge="#8a96a2",
    commit="#2fb58c",
    host="#4a525b",
    plain="#2f6384",
    tints={
        "accepted": "#17384c",
        "relaxed": "#3b2f10",
        "rejected": "#3a2417",
        "resampled": "#3d2033",
        "bonus": "#143c30",
    },
)
THEMES = {"light": LIGHT, "dark": DARK}
