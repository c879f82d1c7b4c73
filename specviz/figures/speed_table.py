"""Speed-up as an HTML table of terms and sentences, without scripts or untrusted markup."""

from __future__ import annotations

from specviz.figures.explain import Term, bottleneck, explain
from specviz.figures.theme import duration, markup, percent, theme_of
from specviz.palette import SANS
from specviz.trace.schema import Trace


def speed_table(trace: Trace, theme: str = "light") -> str:
    """Return HTML with the verdict and a row per term; the largest overhead is marked."""
    colours = theme_of(theme)
    terms = explain(trace)
    if not terms:
        return f'<p style="color:{colours.mute};font:13px {markup(SANS)}">No finished steps yet.</p>'
    worst = bottleneck(trace)
    first, rest = terms[0], terms[1:]
    role, color = ("alert", colours.rejected) if first.loud else ("note", colours.ink)
    head = f'<p role="{role}" style="color:{color};font-weight:600;margin:0 0 8px">{markup(first.sentence)}</p>'
    rows = "".join(_row(term, term.name == worst, colours.rejected, colours.line, colours.mute) for term in rest)
    style = f"font:13px/1.45 {markup(SANS)};color:{colours.ink};font-variant-numeric:tabular-nums"
    table = f'<table style="font:inherit;color:inherit;border-collapse:collapse;width:100%"><tbody>{rows}</tbody></table>'
    return f'<div class="specviz-why" style="{style}">{head}{table}</div>'


def _row(term: Term, worst: bool, loud: str, line: str, mute: str) -> str:
    weight = f"font-weight:600;color:{loud};" if worst or term.loud else ""
    label = markup(term.label) + (" (largest overhead)" if worst else "")
    cell = f"padding:3px 12px 3px 0;border-top:1px solid {line};vertical-align:top;text-align:left;"
    return (
        f'<tr><th scope="row" style="{cell}{weight or "font-weight:400;"}white-space:nowrap">{label}</th>'
        f'<td style="{cell}text-align:right;white-space:nowrap">{markup(amount(term))}</td>'
        f'<td style="{cell}color:{mute}">{markup(term.sentence)}</td></tr>'
    )


def amount(term: Term) -> str:
    """Format the value of a term with the unit."""
    if term.value is None:
        return "–"
    if term.unit == "ns":
        return duration(term.value)
    if term.unit == "share":
        return percent(term.value)
    return {"x": f"{term.value:.2f}×", "tokens": f"{term.value:.2f}"}.get(term.unit, f"{term.value:g}")
