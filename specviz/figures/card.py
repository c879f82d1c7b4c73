"""Preview card of a run, a PNG that sites show beside a link: title, prompt, speed, and timelines of the run and its baseline."""

from __future__ import annotations

import io
import re
import textwrap
from typing import Any

from PIL import Image, ImageDraw, ImageFont

from specviz.errors import BadTrace
from specviz.figures.unfinished import read_png
from specviz.palette import LIGHT
from specviz.trace import metrics
from specviz.trace.schema import Trace

FONTS = ("", "NotoSansCJK-Regular.ttc", "DejaVuSans.ttf", "Arial Unicode.ttf", "msyh.ttc", "arial.ttf")
"""Pillow's own font, which has the letters of English alone, and files of Linux, macOS and Windows that may have more."""
SIZE, LEFT, WIDTH = (1200, 630), 60, 1080
"""Size in pixels that sites expect, margin, and width of the content."""


def drawable(words: str, name: str, size: float) -> tuple[str, Any]:
    """Return ``words`` with an ellipsis for what a font lacks, and the font; no words if the system lacks the font."""
    try:
        font: Any = ImageFont.truetype(name, size) if name else ImageFont.load_default(size)
    except OSError:
        return "", None
    lacking = bytes(font.getmask("\U0010ffff"))
    drawn = (one if one.isspace() or bytes(font.getmask(one)) != lacking else "…" for one in words)
    return re.sub("…+", "…", "".join(drawn)), font


def draw(trace: Trace) -> bytes:
    """Draw the card of a run. Raises BadTrace if its picture is damaged or too large."""
    card = Image.new("RGB", SIZE, LIGHT.paper)
    pen, judged, plain = ImageDraw.Draw(card), metrics.compared_speed(trace), trace.baseline.token_ns if trace.baseline else ()

    def write(y: float, words: str, size: float, colour: str) -> None:
        drawn, font = max((drawable(words, name, size) for name in FONTS), key=lambda one: len(one[0]))
        pen.text((LEFT, y), drawn, colour, font)

    write(44, "specviz", 28, LIGHT.mute)
    write(92, textwrap.shorten(trace.run.title, 36), 58, LIGHT.ink)
    write(168, textwrap.shorten(f"on {trace.run.target}", 70), 28, LIGHT.mute)
    write(230, "\n".join(textwrap.wrap(f'"{textwrap.shorten(trace.run.prompt, 110)}"', 56)), 30, LIGHT.ink)
    slow = judged and judged.word == "slower"
    write(344, judged.sentence.replace("×", " times") if judged else "", 46, LIGHT.rejected if slow else LIGHT.bonus)
    scale = WIDTH / max(1, sum(plain), sum(step.time.total for step in trace.steps))
    most = max((len(step.emitted) for step in trace.steps), default=1)
    right = float(LEFT)
    for step in trace.steps:
        left, right = right, right + scale * step.time.total
        tall, kept = (90 * min(count, len(step.emitted)) / most for count in (len(step.emitted), step.accepted))
        edge = max(left, right - 2 * (right - left > 4))
        pen.rectangle((left, 530 - tall, edge, 530), LIGHT.bonus)
        if kept:
            pen.rectangle((left, 530 - kept, edge, 530), LIGHT.accepted)
    write(586, "Above: this run; bar height is tokens per step. Below: one token at a time." if plain else "", 22, LIGHT.mute)
    right = LEFT
    for ns in plain:
        left, right = right, right + scale * ns
        pen.rectangle((left, 548, max(left, right - 2 * (right - left > 3)), 568), LIGHT.plain)
    if trace.end and trace.end.picture:
        if (picture := read_png(trace.end.picture)) is None:
            raise BadTrace("The run's picture is damaged or too large.")
        card.paste(picture.resize((250, 250), Image.Resampling.NEAREST), (LEFT + WIDTH - 250, 44))
    written = io.BytesIO()
    card.save(written, "PNG")
    return written.getvalue()
