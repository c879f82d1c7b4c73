"""Common look of all figures: frame, axes and number formats, and the escaping of untrusted token text."""

from __future__ import annotations

import html
import textwrap
import unicodedata
from typing import Any

import plotly.graph_objects as go

from specviz.errors import BadInput
from specviz.palette import SANS, THEMES, Theme
from specviz.trace.schema import ACCEPTED, REJECTED, RELAXED, RESAMPLED

JUDGED = (ACCEPTED, RELAXED, REJECTED, RESAMPLED)
"""Statuses set by the verification rule."""
SMALL = 11
TEXT = 12.5
TITLE = 16

_WHITESPACE_MARKS = {" ": "·", "\n": "⏎", "\r": "␍", "\t": "⇥", "\u00a0": "⍽"}
# Unicode categories to spell out: invisible and direction-changing characters could misrepresent a token.
_INVISIBLE = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
_CONTROLS = frozenset(
    map(chr, (*range(9), 11, 12, *range(14, 32), *range(127, 160), *range(0x202A, 0x202F), *range(0x2066, 0x206A)))
)
_ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;", "$": "&#36;"}


def theme_of(name: str) -> Theme:
    """Return the theme called ``name``. Raises BadInput if it is neither light nor dark."""
    if name not in THEMES:
        raise BadInput(f"There is no theme {name!r}; choose light or dark.")
    return THEMES[name]


def show_whitespace(text: str, most: int | None = None) -> str:
    """Return ``text`` with visible marks for whitespace and invisible characters, truncated to ``most`` characters."""
    printable = "".join(_show_character(character) for character in text)
    return printable if most is None or len(printable) <= most else printable[: most - 1] + "…"


def _show_character(character: str) -> str:
    if character in _WHITESPACE_MARKS:
        return _WHITESPACE_MARKS[character]
    return f"\\u{ord(character):04x}" if unicodedata.category(character) in _INVISIBLE else character


def escape(text: str) -> str:
    """Escape text for Plotly, which interprets a subset of HTML and LaTeX between dollar signs."""
    return "".join(_ENTITIES.get(character, character) for character in text)


def escape_controls(text: str) -> str:
    """Spell out control characters, which could hide, recolour or reverse neighbouring text."""
    return "".join(_show_character(character) if character in _CONTROLS else character for character in text)


def markup(text: str) -> str:
    """Escape text for HTML, including quotes. A lone surrogate, which UTF-8 cannot encode, becomes a question mark."""
    return html.escape(escape_controls(text).encode("utf-8", "replace").decode("utf-8"), quote=True)


def cells(text: str) -> int:
    """Return the width of a text in monospace cells: two for wide characters such as emoji, none for combining marks."""
    shown = [character for character in text if not unicodedata.combining(character)]
    return len(shown) + sum(unicodedata.east_asian_width(character) in "WF" for character in shown)


def number(value: float | None, digits: int = 2) -> str:
    """Format a probability or ratio with fixed digits. None gives a dash; small values use scientific notation."""
    if value is None:
        return "–"
    return f"{value:.{digits}f}" if value == 0 or abs(value) >= 10**-digits else f"{value:.0e}".replace("e-0", "e-")


def count(number_of: int, what: str) -> str:
    """Format a count with a noun, such as "1 token" or "3 tokens"."""
    return f"{number_of} {what}" + ("" if number_of == 1 else "s")


def percent(share: float | None) -> str:
    """Format a fraction as a percentage, such as "41 %"."""
    if share is None:
        return "–"
    return "< 1 %" if 0 < share < 0.01 else f"{share * 100:.0f} %"


def duration(nanoseconds: float) -> str:
    """Format a time in s, ms, µs or ns."""
    for unit, size in (("s", 1e9), ("ms", 1e6), ("µs", 1e3)):
        if nanoseconds >= size:
            scaled = nanoseconds / size
            return f"{scaled:.2f} {unit}" if scaled < 10 else f"{scaled:.0f} {unit}" if scaled >= 100 else f"{scaled:.1f} {unit}"
    return f"{nanoseconds:.0f} ns"


def wrapped(text: str, width: int) -> str:
    """Break a title into lines for a figure of ``width`` pixels, since Plotly does not wrap text."""
    return "<br>".join(textwrap.wrap(text, max(40, int(width / 7.2)), break_on_hyphens=False))


def figure(
    theme: Theme, title: str, subtitle: str = "", *, width: int = 960, height: int = 420, key: bool = False,
    **layout: Any,
) -> go.Figure:  # fmt: skip
    """Return an empty figure in the common look. ``title`` and ``subtitle`` must be trusted or escaped.

    ``key``: leave room for a legend below the subtitle. Each further line of the subtitle adds to ``height``.
    """
    more_lines = 16 * subtitle.count("<br>")
    top = 46 + (24 + more_lines if subtitle else 0) + (36 if key else 10)
    hover = {"family": SANS, "size": 12, "color": theme.ink}
    fig = go.Figure().update_layout(
        template="none", width=width, height=height + more_lines, margin={"l": 64, "r": 24, "t": top, "b": 56},
        paper_bgcolor=theme.paper, plot_bgcolor=theme.paper, font={"family": SANS, "size": 13, "color": theme.ink},
        title={"text": title, "x": 0, "xref": "container", "xanchor": "left", "y": 1, "yref": "container", "yanchor": "top",
               "pad": {"t": 14, "l": 20}, "font": {"size": TITLE},
               "subtitle": {"text": subtitle, "font": {"size": TEXT, "color": theme.mute}}},
        showlegend=key, hovermode="closest", dragmode="pan",
        legend={"orientation": "h", "x": 0, "xanchor": "left", "y": 1.02, "yanchor": "bottom", "traceorder": "normal"},
        legend_font={"size": 12, "color": theme.mute},
        hoverlabel={"bgcolor": theme.paper, "bordercolor": theme.line, "align": "left", "font": hover},
    )  # fmt: skip
    return fig.update_layout(**layout)


def axis(theme: Theme, title: str = "", *, grid: bool = True, **more: Any) -> dict[str, Any]:
    """Return an axis in the common look."""
    return {
        "title": {"text": title, "font": {"size": TEXT, "color": theme.mute}},
        "tickfont": {"size": 12, "color": theme.mute},
        "showgrid": grid,
        "gridcolor": theme.line,
        "zeroline": False,
        "showline": False,
        "automargin": True,
        "ticks": "outside",
        "ticklen": 5,
        "tickcolor": "rgba(0,0,0,0)",
        **more,
    }
