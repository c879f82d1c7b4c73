"""What target and drafter read of a prompt with a picture: two aligned strips, and the patches the drafter is shown."""

from __future__ import annotations

import plotly.graph_objects as go

from specviz.trace.schema import Note, Trace
from specviz.views.notes import Story, story
from specviz.views.picture import Seen, frame, patches, placed, places_of, read
from specviz.views.theme import Theme, axis, count, figure, percent, safe, theme_of, visible

_WIDTH = 1000
_MOST = 400


def visual_tokens(trace: Trace, index: int, theme: str = "light") -> go.Figure:
    """A cell a token, place under place: text, patches of the picture, and dotted what the drafter never gets."""
    step, note = story(trace, index, "visual_tokens")
    look = theme_of(theme)
    target, drafter = note.whole("target"), note.whole("drafter")
    visual, kept, unseen = (set(places_of(note, name)) for name in ("visual", "kept", "unseen"))
    shown = min(target, _MOST)
    said = f"of {count(len(visual), 'visual token')} the drafter gets {len(kept)}: {_words(len(visual), len(kept))}"
    share = percent(drafter / target) if target else "–"
    title = f"Step {step.index + 1} · prefill: target {count(target, 'token')}, drafter {drafter} ({share})"
    made = figure(look, title, said, width=_WIDTH, height=300, key=True)
    made.update_layout(margin={"l": 84})
    texts = [visible(piece, 18) for piece in trace.run.prompt_pieces]
    rows = (("target", 1.0, set(), set()), ("drafter", 0.0, visual - kept, unseen))
    for name, y, gone, left_out in rows:
        _strip(made, look, texts, range(shown), y, visual, gone | left_out, name == "target")
    found = seen(trace)
    right = 1.0 if found is None else 0.76
    ticks = {"tickvals": [1, 0], "ticktext": ["target", "drafter"], "range": [-0.6, 1.6]}
    made.update_layout(
        xaxis=axis(look, "place in the prompt", grid=False, domain=[0, right], range=[-1, shown]),
        yaxis=axis(look, grid=False, **ticks),
    )
    if found is not None:
        made.update_layout(**frame(found, "2", (0.8, 1.0)))
        made.update_layout(images=[placed(found, "2")], shapes=patches(look, found, "2", kept))
    return made


def seen(trace: Trace) -> Seen | None:
    """The run's picture, from its first step; None where it brought none."""
    notes: tuple[Note, ...] = trace.steps[0].notes if trace.steps else ()
    data = next((note.data for note in notes if note.type == "picture"), None)
    return None if data is None else read(Story(data, "note picture of step 1"))


def _words(visual: int, kept: int) -> str:
    if not visual:
        return "there is no picture"
    if kept == visual:
        return "it sees all of the picture"
    return "the others were judged unimportant" if kept else "it never sees the picture"


def _strip(
    made: go.Figure, look: Theme, texts: list[str], shown: range, y: float, visual: set[int], gone: set[int], key: bool
) -> None:
    """One row of cells, a trace for each kind."""
    kinds = (
        ("text", [at for at in shown if at not in visual and at not in gone], "square", look.accepted, 11),
        ("patch of the picture", [at for at in shown if at in visual and at not in gone], "square", look.verify, 11),
        ("hidden from the drafter", [at for at in shown if at in gone], "square-open-dot", look.quiet, 10),
    )
    for name, places, symbol, color, size in kinds:
        if not places and not key:
            continue
        hover = [safe(f"{at}: {'patch' if at in visual else texts[at] if at < len(texts) else '?'}") for at in places]
        small = min(size, max(3.0, 740 / max(1, len(shown)) - 1))
        made.add_scatter(
            x=places, y=[y] * len(places), mode="markers", marker={"symbol": symbol, "size": small, "color": color},
            name=name, legendgroup=name, showlegend=key, hovertext=hover, hoverinfo="text",
        )  # fmt: skip
