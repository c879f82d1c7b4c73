"""This run and the one-by-one run on one clock: what each target pass gave and cost, and the time saved."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import plotly.graph_objects as go

from specviz.trace import metrics
from specviz.trace.schema import Step, Trace
from specviz.views.theme import Theme, axis, duration, figure, safe, theme_of, visible

_MOST_BARS = 320
_LANES = {"this run": 1.0, "one by one": 0.0}


@dataclass(frozen=True)
class _Block:
    """One step, or several neighbours where a run has too many to tell apart. Times in nanoseconds."""

    start: int
    draft: int
    verify: int
    rest: int
    accepted: float
    bonus: float
    hover: str

    @property
    def total(self) -> int:
        return self.draft + self.verify + self.rest


def latency_lanes(trace: Trace, theme: str = "light") -> go.Figure:
    """Three rows on one time axis; the pass over the prompt is in neither run, and a missing baseline has no lane."""
    look = theme_of(theme)
    blocks = _blocks(trace.steps)
    total = sum(block.total for block in blocks)
    plain = trace.end.baseline if trace.end is not None else None
    made = figure(look, *_headline(trace, total), width=1080, height=400, key=True, barmode="stack", bargap=0)
    _emitted(made, look, blocks)
    _lane(made, look, blocks)
    if plain is not None and plain.token_ns:
        _one_by_one(made, look, plain.token_ns)
    longest = max(total, plain.total_ns if plain else 0, 1) / 1e9
    made.update_xaxes(axis(look, "seconds since the prompt was read", range=[0, longest * 1.09], anchor="y2"))
    most = max((block.accepted + block.bonus for block in blocks), default=1)
    made.update_layout(
        yaxis=axis(look, "tokens a pass", domain=[0.5, 1], range=[0, most * 1.12], nticks=5),
        yaxis2=axis(
            look,
            "",
            grid=False,
            domain=[0, 0.4],
            range=[-0.5, 1.5] if plain else [0.5, 1.5],
            tickvals=list(_LANES.values()),
            ticktext=list(_LANES),
            anchor="x",
        ),
        margin={"l": 96},
    )
    return made


def _headline(trace: Trace, total: int) -> tuple[str, str]:
    title = "The same text on one clock"
    if trace.end is None or trace.end.baseline is None:
        return title, "no one-by-one run was recorded beside this one, so there is nothing to compare with"
    plain = trace.end.baseline
    found = metrics.summarise(trace.steps, trace.end.reason, trace.end.prefill_ns, plain)["speedup"]
    if found is None:
        return title, "no finished steps yet"
    word = "faster" if found >= 1 else "the speed, so nothing was saved"
    return title, f"{duration(total)} against {duration(plain.total_ns)} one by one: {found:.2f}× {word}"


def _blocks(steps: Sequence[Step]) -> list[_Block]:
    """Steps one after another, neighbours joined when there are more than a screen can show."""
    size = -(-len(steps) // _MOST_BARS) or 1
    groups = [steps[first : first + size] for first in range(0, len(steps), size)]
    starts = accumulate((sum(step.time.total for step in group) for group in groups), initial=0)
    return [_block(group, start) for group, start in zip(groups, starts, strict=False)]


def _block(group: Sequence[Step], start: int) -> _Block:
    draft, verify = sum(step.time.draft for step in group), sum(step.time.verify for step in group)
    rest = sum(step.time.total for step in group) - draft - verify
    accepted = sum(step.accepted for step in group)
    emitted = sum(len(step.emitted) for step in group)
    name = f"step {group[0].index + 1}" + (f" to {group[-1].index + 1}" if len(group) > 1 else "")
    said = safe(visible("".join(piece for step in group for piece in step.pieces), 60))
    hover = f"<b>{name}</b><br>{said}<br>draft {duration(draft)} · verify {duration(verify)} · rest {duration(rest)}"
    return _Block(start, draft, verify, rest, accepted / len(group), (emitted - accepted) / len(group), hover)


def _emitted(made: go.Figure, look: Theme, blocks: Sequence[_Block]) -> None:
    """Accepted tokens, and the target's own on top, as wide as the step took."""
    for name, color, pattern in (("accepted", look.accepted, ""), ("bonus", look.bonus, "/")):
        made.add_bar(
            x=[_seconds(block.start) for block in blocks],
            width=[_seconds(block.total) for block in blocks],
            offset=0,
            y=[round(getattr(block, name), 2) for block in blocks],
            name=f"{name} token",
            hovertext=[block.hover for block in blocks],
            hoverinfo="text",
            marker=_marker(look, color, pattern),
        )


def _lane(made: go.Figure, look: Theme, blocks: Sequence[_Block]) -> None:
    before = [block.start for block in blocks]
    for name, label, color in (
        ("draft", "draft", look.draft),
        ("verify", "verify", look.verify),
        ("rest", "judge, commit, host", look.host),
    ):
        lengths = [getattr(block, name) for block in blocks]
        # The whole story hangs on the longest part alone, or a long run's figure would carry it three times.
        hover = {"hovertext": [block.hover for block in blocks], "hoverinfo": "text"}
        told = hover if name == "verify" else {"hoverinfo": "name"}
        made.add_bar(
            orientation="h",
            base=[_seconds(start) for start in before],
            x=[_seconds(length) for length in lengths],
            y=[_LANES["this run"]] * len(blocks),
            width=0.62,
            name=label,
            yaxis="y2",
            marker=_marker(look, color),
            **told,
        )
        before = [start + length for start, length in zip(before, lengths, strict=True)]
    if blocks:
        _end(made, look, blocks[-1].start + blocks[-1].total, _LANES["this run"])


def _one_by_one(made: go.Figure, look: Theme, token_ns: Sequence[int]) -> None:
    size = -(-len(token_ns) // _MOST_BARS)
    lengths = [sum(token_ns[first : first + size]) for first in range(0, len(token_ns), size)]
    starts = list(accumulate(lengths, initial=0))
    made.add_bar(
        orientation="h",
        base=[_seconds(start) for start in starts[:-1]],
        x=[_seconds(length) for length in lengths],
        y=[_LANES["one by one"]] * len(lengths),
        width=0.62,
        name="one token a pass" if size == 1 else f"{size} passes",
        yaxis="y2",
        marker=_marker(look, look.plain),
        hovertext=[f"token {place * size + 1}: {duration(length)}" for place, length in enumerate(lengths)],
        hoverinfo="text",
    )
    _end(made, look, starts[-1], _LANES["one by one"])


def _marker(look: Theme, color: str, pattern: str = "") -> dict[str, object]:
    """A bar's fill, with a hairline of paper around it so that neighbours stay apart."""
    made: dict[str, object] = {"color": color, "line": {"color": look.paper, "width": 0.8}}
    return (
        made | {"pattern": {"shape": pattern, "fgcolor": look.paper, "size": 5, "solidity": 0.2, "fillmode": "overlay"}}
        if pattern
        else made
    )


def _end(made: go.Figure, look: Theme, total: int, lane: float) -> None:
    made.add_annotation(
        x=_seconds(total),
        y=lane,
        xref="x",
        yref="y2",
        text=duration(total),
        showarrow=False,
        xanchor="left",
        xshift=6,
        font={"size": 13, "color": look.ink},
    )


def _seconds(nanoseconds: int) -> float:
    return round(nanoseconds / 1e9, 5)
