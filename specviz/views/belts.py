"""A round of a chain of three models on one clock: the buffer filling belt by belt, and whether the model between pays."""

from __future__ import annotations

from typing import NamedTuple

import plotly.graph_objects as go

from specviz.trace.schema import Step, Trace
from specviz.views.notes import Story, story
from specviz.views.theme import Theme, axis, count, figure, number, theme_of, wrapped

_WIDTH, _HEIGHT = 1080, 430
_MOST = 64
_POINTS = 40
_LANES = ("drafter", "middle", "target")


class Pass(NamedTuple):
    """One pass of the model in the middle: milliseconds from the round's start, tokens it added, what was drafted for it."""

    start: float
    drafted_until: float
    end: float
    added: int
    drafted: int
    kept: int


class Balance(NamedTuple):
    """Tokens a target pass without the model and with it, those that stay of a pass of the model, its cost in target passes,
    and the gain by the exact form: how much faster the chain of three is than the chain of two, all times counted."""

    without: float
    with_it: float
    below: float
    ratio: float
    gain: float

    def bound(self, with_it: float) -> float:
        """What the model may cost by the published condition where the target keeps so many tokens a pass."""
        return self.below * (1 / self.without - 1 / with_it)

    @property
    def pays(self) -> bool:
        """Whether the exact form says so."""
        return self.gain > 1


def belts(trace: Trace, index: int, theme: str = "light") -> go.Figure:
    """Left the round in time, right the published condition with the forecast and what was measured up to this round."""
    step, note = story(trace, index, "belts")
    look = theme_of(theme)
    passes, forecast, measured = _passes(note), _forecast(note), _measured(note)
    title, said = _headline(step, note, passes, measured or forecast)
    made = figure(look, title, wrapped(said, _WIDTH), width=_WIDTH, height=_HEIGHT, key=True)
    wide = 0.58 if forecast else 1.0
    _clock(made, look, step, passes, note.whole("gathered"))
    whole = (passes[-1].end if passes else 0.0) + step.time.verify / 1e6
    made.update_xaxes(
        axis(look, "milliseconds of the round", grid=False, range=[0, max(whole, 0.1) * 1.02], domain=[0, wide])
    )
    most = max(note.whole("gathered"), note.whole("length"), 1)
    names = {"tickvals": [0.5, 1.5, 2.5], "ticktext": list(_LANES), "range": [0, 3 + most * 0.14]}
    made.update_yaxes(axis(look, "", grid=False, **names))
    if forecast:
        _curve(made, look, forecast, measured)
    return made


def _passes(note: Story) -> list[Pass]:
    found, now = [], 0.0
    for row in note.rows("passes", _MOST):
        drafting, verifying = max(0.0, row.number("drafting")), max(0.0, row.number("verifying"))
        end = now + drafting + verifying
        found.append(Pass(now, now + drafting, end, len(row.tokens()), row.whole("drafted"), row.whole("kept")))
        now = end
    return found


def _forecast(note: Story) -> Balance | None:
    part = note.part("forecast")
    if part is None or part.number("without") <= 0 or part.number("with") <= 0:
        return None
    found = (part.number(name) for name in ("without", "with", "below", "ratio", "gain"))
    return Balance(*found)


def _measured(note: Story) -> Balance | None:
    """The same from the rounds before this one, and this one's passes; a pass of the target, and what it does without the
    model, are only known by the forecast."""
    part, forecast, so_far = note.part("forecast"), _forecast(note), note.part("so_far")
    if part is None or forecast is None or so_far is None or part.number("target") <= 0:
        return None
    before = part.maybe_number("before")  # older recordings lack it
    if before is None:
        return None
    rounds, passes = so_far.whole("rounds") - 1, so_far.whole("passes")
    judged = passes - len(_passes(note))
    if rounds < 1 or judged < 1:
        return None
    cost = so_far.number("verifying") / passes / part.number("target")
    stayed = rounds + so_far.whole("kept")
    with_it, below = stayed / rounds, stayed / judged
    below_target = (so_far.number("verifying") + so_far.number("drafting")) / passes
    after = part.number("target_block") / with_it + below_target / below
    return Balance(forecast.without, with_it, below, cost, before / after if after > 0 else 0.0)


def _headline(step: Step, note: Story, passes: list[Pass], balance: Balance | None) -> tuple[str, str]:
    name, length = f"Step {step.index + 1}", note.whole("length")
    times = "1 pass" if len(passes) == 1 else f"{len(passes)} passes"
    title = f"{name} · {count(length, 'token')} gathered in {times}, {len(step.path)} kept"
    drafted = sum(one.drafted for one in passes)
    taken = sum(one.kept for one in passes)
    said = f"the drafter proposed {count(drafted, 'token')}, the middle model took {taken} and added its own"
    if balance is None:
        return title, f"{said}; what the target alone would do here was never measured"
    margin = balance.bound(balance.with_it) - balance.ratio
    verdict = "it pays" if balance.pays else "it does not pay"
    return (
        title,
        f"{said}; with all times counted the chain runs at {balance.gain:.2f} times the one without it: {verdict} (a pass of it "
        f"costs {number(balance.ratio)} of the target's; margin to the published condition {margin:+.2f})",
    )


def _clock(made: go.Figure, look: Theme, step: Step, passes: list[Pass], wanted: int) -> None:
    """A bar a pass in its lane, and the buffer's height above."""
    target = step.time.verify / 1e6
    end = passes[-1].end if passes else 0.0
    lanes = (
        ("drafter", 0.5, look.draft, [(one.start, one.drafted_until - one.start) for one in passes]),
        ("middle model", 1.5, look.verify, [(one.drafted_until, one.end - one.drafted_until) for one in passes]),
        ("target", 2.5, look.commit, [(end, target)]),
    )
    for name, high, fill, bars in lanes:
        if bars:
            base, wide = zip(*bars, strict=True)
            hover = [f"{name}: {length:.1f} ms" for length in wide]
            made.add_bar(
                x=[round(one, 2) for one in wide], base=[round(one, 2) for one in base], y=[high] * len(bars), orientation="h",
                width=0.62, name=name, marker={"color": fill, "line": {"width": 1, "color": look.paper}},
                hovertext=hover, hoverinfo="text",
            )  # fmt: skip
    x, y, held = [0.0], [3.0], 0
    for one in passes:
        held += one.added
        x += [round(one.end, 2)] * 2
        y += [y[-1], round(3 + held * 0.14, 2)]
    line = {"color": look.ink, "width": 2.5}
    made.add_scatter(x=x, y=y, mode="lines", name=f"buffer, up to μ = {wanted}", line=line, hoverinfo="skip")
    high = 3 + wanted * 0.14
    mark = {"type": "line", "xref": "x domain", "x0": 0, "x1": 1, "y0": high, "y1": high}
    made.update_layout(
        shapes=[{**mark, "line": {"color": look.ink, "width": 1.3, "dash": "6px,4px"}}], barmode="overlay"
    )
    made.add_annotation(
        x=0, xref="x domain", y=high, text="μ", showarrow=False, xanchor="left", yanchor="bottom",
        font={"size": 13, "color": look.ink},
    )  # fmt: skip


def _curve(made: go.Figure, look: Theme, forecast: Balance, measured: Balance | None) -> None:
    """What the model may cost by how many tokens the target keeps with it, by the published condition, which leaves out the
    drafter's time and the target's wider pass; a point's color follows the exact form."""
    now = measured or forecast
    most = max(now.with_it, forecast.with_it, 2 * now.without) * 1.15
    low = now.without
    xs = [low + (most - low) * place / _POINTS for place in range(_POINTS + 1)]
    second = {"xaxis": "x2", "yaxis": "y2"}
    made.add_scatter(
        x=[round(one, 3) for one in xs], y=[round(now.bound(one), 4) for one in xs], mode="lines", name="published condition",
        line={"color": look.ink, "width": 2}, fill="tozeroy", fillcolor=look.tints["accepted"], hoverinfo="skip", **second,
    )  # fmt: skip
    for one, name, symbol in ((forecast, "forecast", "diamond-open"), (measured, "measured", "circle")):
        if one is None:
            continue
        color = look.accepted if one.pays else look.rejected
        made.add_scatter(
            x=[round(one.with_it, 3)], y=[round(one.ratio, 4)], mode="markers", name=name,
            marker={"symbol": symbol, "size": 13, "color": color, "line": {"width": 2, "color": color}},
            hovertext=[f"{name}: {one.with_it:.2f} tokens a target pass, {one.ratio:.2f} of its cost; gain {one.gain:.2f}"],
            hoverinfo="text", **second,
        )  # fmt: skip
    top = max(1.05, *(one.ratio * 1.15 for one in (forecast, measured) if one))
    made.update_layout(
        xaxis2=axis(look, "tokens a target pass with the chain", domain=[0.68, 1], anchor="y2", range=[low, most]),
        yaxis2=axis(look, "cost of a middle pass, in target passes", anchor="x2", range=[0, top]),
    )
