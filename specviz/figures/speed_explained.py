"""Speed-up as two bars: the cost of an average step, and the cost of the same number of tokens in the baseline."""

from __future__ import annotations

import plotly.graph_objects as go

from specviz.figures.explain import Term, explain, step_cost_label
from specviz.figures.theme import axis, duration, figure, percent, theme_of, wrapped
from specviz.palette import Theme
from specviz.trace.schema import PHASES, Trace

_WIDTH = 1000


def speed_explained(trace: Trace, theme: str = "light") -> go.Figure:
    """Draw a stacked bar of an average step by phase, above a bar of the same number of tokens in the baseline.

    The ratio of the lengths is the predicted speed-up.
    """
    colours = theme_of(theme)
    terms = {term.name: term for term in explain(trace)}
    silence = terms.get("silence")
    first = [silence.sentence] if silence and silence.loud else []  # the verdict follows a warning
    fig = figure(
        colours,
        _headline(terms),
        "<br>".join(wrapped(sentence, _WIDTH) for sentence in ([*first, terms["verdict"].sentence] if terms else [])),
        width=_WIDTH,
        height=300,
        key="host" in terms,
        barmode="stack",
        bargap=0.42,
    )
    if "host" not in terms:
        return fig
    _step(fig, colours, terms, f"{step_cost_label(trace)} of this run")
    longest = sum(terms[phase].value or 0 for phase in PHASES)
    if "plain" in terms:
        length, pass_ns = terms["tau"].value or 0.0, terms["plain"].value or 0.0
        _passes(fig, colours, length, pass_ns)
        longest = max(longest, length * pass_ns)
    fig.update_xaxes(axis(colours, "milliseconds", range=[0, max(longest, 1) / 1e6 * 1.12]))
    fig.update_yaxes(axis(colours, "", grid=False, autorange="reversed"))
    fig.update_layout(margin={"l": 160})
    return fig


def _headline(terms: dict[str, Term]) -> str:
    if not terms:
        return "Why faster, or why not: no finished steps yet"
    ratios = [
        f"{value:.2f}× {word}" for word in ("measured", "predicted") if word in terms and (value := terms[word].value) is not None
    ]
    return "Why faster, or why not · " + (" · ".join(ratios) or "no autoregressive run to compare with")


def _step(fig: go.Figure, colours: Theme, terms: dict[str, Term], ours: str) -> None:
    total = 0.0
    for phase in PHASES:
        term = terms[phase]
        spent = term.value or 0.0
        total += spent
        wide = (term.share or 0) > 0.07
        fig.add_bar(
            orientation="h",
            x=[round(spent / 1e6, 4)],
            y=[ours],
            name=phase,
            marker={"color": getattr(colours, phase), "line": {"color": colours.paper, "width": 1}},
            text=f"{phase} {percent(term.share)}" if wide else "",
            textposition="inside",
            insidetextanchor="middle",
            textangle=0,
            insidetextfont={"size": 13},  # without a colour, Plotly picks one that is legible on the bar
            hovertext=f"{duration(spent)}. {term.sentence}",
            hoverinfo="text",
        )
    _end(fig, colours, total, ours)


def _passes(fig: go.Figure, colours: Theme, length: float, pass_ns: float) -> None:
    """Draw one block per baseline pass for ``length`` tokens; the last block may be a fraction."""
    row = f"{length:.2f} tokens in the baseline"
    whole = min(int(length), 200)
    blocks = [1.0] * whole + ([length - whole] if length - whole > 1e-6 else [])
    for place, block in enumerate(blocks):
        fig.add_bar(
            orientation="h",
            x=[round(block * pass_ns / 1e6, 4)],
            y=[row],
            name="one AR pass",
            showlegend=place == 0,
            legendgroup="plain",
            marker={"color": colours.plain, "line": {"color": colours.paper, "width": 1}},
            hovertext=f"one AR pass: {duration(pass_ns)}",
            hoverinfo="text",
        )
    _end(fig, colours, length * pass_ns, row)


def _end(fig: go.Figure, colours: Theme, total: float, row: str) -> None:
    fig.add_annotation(
        x=round(total / 1e6, 4),
        y=row,
        text=duration(total),
        showarrow=False,
        xanchor="left",
        xshift=6,
        font={"size": 13, "color": colours.ink},
    )
