"""A draft copied from earlier text: the suffix that matched, the continuation copied, and what the target kept."""

from __future__ import annotations

import plotly.graph_objects as go

from specviz.errors import BadTrace
from specviz.trace.schema import Step, Trace
from specviz.views.canvas import Canvas, Line, text_width
from specviz.views.canvas_figure import drawn
from specviz.views.notes import Story, story
from specviz.views.theme import count, theme_of, visible
from specviz.views.verdicts import BONUS, bonus_reason, reason

_AROUND = 6
_WIDTH = 980.0
_LINE = 34.0
_LETTERS = 24
_MATCHED, _COPIED = "matched", "copied"


def copy(trace: Trace, index: int, theme: str = "light") -> go.Figure:
    """Two strips: the earlier place that was copied from, and the end of the text with the copied tokens as draft."""
    step, note = story(trace, index, "copy")
    pieces = [*trace.run.prompt_pieces, *(piece for one in trace.steps[:index] for piece in one.pieces)]
    canvas = Canvas(theme_of(theme))
    matched, length = note.whole("suffix_length"), note.whole("length")
    start = note.whole("suffix_start", 0) if matched else len(pieces)
    if matched and start + matched > len(pieces):
        raise BadTrace(f"{note.where}: the suffix reaches beyond the text; the trace is damaged.")
    high = _earlier(canvas, pieces, note, 12.0) if length else 12.0
    high = _now(canvas, step, pieces, start, high)
    return drawn(canvas, *_headline(step, note, len(trace.run.prompt_pieces)), _WIDTH, high)


def _headline(step: Step, note: Story, prompt: int) -> tuple[str, str]:
    name, length = f"Step {step.index + 1}", note.whole("length")
    if not length:
        said = (
            "the last tokens of the text occur nowhere before with enough text after them: this step is plain decoding"
        )
        return f"{name} · no earlier match, so nothing was copied", said
    place = "the prompt" if note.whole("source") < prompt else "the output"
    matched = count(note.whole("suffix_length"), "token")
    said = f"the last {matched} occurred before, in {place}; what followed there is the draft"
    return f"{name} · {count(length, 'token')} copied, {step.accepted} accepted", said


def _earlier(canvas: Canvas, pieces: list[str], note: Story, high: float) -> float:
    """The place of the match, and what follows it. Gives back where the next strip starts."""
    source, length, matched = note.whole("source"), note.whole("length"), note.whole("suffix_length")
    if source > len(pieces) or source < matched:
        raise BadTrace(f"{note.where}: the copied text lies outside the text; the trace is damaged.")
    first, last = max(0, source - matched - _AROUND), min(len(pieces), source + length + _AROUND)
    canvas.write(0, high, f"earlier, from token {first}", size=12)
    flow = _Flow(canvas, high + 24)
    for place in range(first, last):
        after = _COPIED if source <= place < source + length else ""
        flow.word(pieces[place], _MATCHED if source - matched <= place < source else after)
    return flow.high + _LINE + 14


def _now(canvas: Canvas, step: Step, pieces: list[str], start: int, high: float) -> float:
    """The end of the text, then the draft with its verdicts, then the bonus token. Gives back where it ends."""
    first = max(0, start - _AROUND)
    draft = ", with the copied tokens as draft" if len(step.nodes) > 1 else ""
    canvas.write(0, high, f"now, from token {first}{draft}", size=12)
    flow = _Flow(canvas, high + 24)
    for place in range(first, len(pieces)):
        flow.word(pieces[place], _MATCHED if place >= start else "")
    flow.left += 12
    for node in step.nodes[1:]:
        flow.pill(node.text, node.status, reason(step, node))
    if step.bonus is not None:
        flow.pill(step.bonus.text, BONUS, bonus_reason(step.bonus))
    return flow.high + _LINE


class _Flow:
    """Words and pills one after another, breaking to a new line at the right edge."""

    def __init__(self, canvas: Canvas, high: float) -> None:
        self.canvas, self.high, self.left = canvas, high, 0.0

    def word(self, piece: str, part: str) -> None:
        """A token of the text so far; ``part`` says whether it matched or was copied."""
        look = self.canvas.theme
        wide = max(text_width(visible(piece, _LETTERS)), 7) + 7
        self._fit(wide)
        if part:
            fill = look.tints["relaxed" if part == _MATCHED else "accepted"]
            line = Line(part, look.relaxed, "3px,2px") if part == _MATCHED else Line(part, look.accepted, "solid")
            self.canvas.band(self.left, self.high - 10, wide, 20, fill)
            self.canvas.bar(self.left + 1, self.high + 11, wide - 2, line)
        self.canvas.word(self.left + 3.5, self.high, piece, look.ink if part else "", _LETTERS)
        self.left += wide + 1

    def pill(self, text: str, status: str, hover: str) -> None:
        """A drafted token."""
        wide = self.canvas.width_of(text, _LETTERS)
        self._fit(wide)
        self.canvas.pill(self.left, self.high, text, status, hover, most=_LETTERS)
        self.left += wide + 5

    def _fit(self, wide: float) -> None:
        if self.left and self.left + wide > _WIDTH:
            self.left, self.high = 0.0, self.high + _LINE
