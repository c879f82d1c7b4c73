"""The preview card: a picture of the size that sites expect, with the run's colours, whatever the prompt is written in."""

import base64
import io

import pytest
from msgspec.structs import replace
from PIL import Image, ImageColor

from specviz.errors import BadTrace
from specviz.figures import card
from specviz.palette import LIGHT
from tests.support.traces.image_runs import image_trace
from tests.support.traces.samples import sample_trace


def drawn(trace):
    return Image.open(io.BytesIO(card.draw(trace))).convert("RGB")


def count(picture, colour):
    return dict(map(reversed, picture.getcolors(1 << 20) or ())).get(ImageColor.getrgb(colour), 0)


def test_the_card_shows_the_run_above_its_baseline():
    trace = sample_trace(14, baseline=True)
    picture = drawn(trace)
    assert picture.size == (1200, 630)
    assert min(count(picture, colour) for colour in (LIGHT.accepted, LIGHT.bonus, LIGHT.plain)) > 1000
    alone = drawn(trace.replace(end=None))
    assert count(alone, LIGHT.plain) == 0 and count(alone, LIGHT.accepted) > 1000


@pytest.mark.parametrize("prompt", ["", "\u202e😀" * 4000, "x" * 9000, "為什麼天空是藍色的？", "\ud800 lone"])
def test_any_prompt_and_title_can_be_drawn(prompt):
    trace = sample_trace(4, baseline=True)
    told = trace.replace(run=replace(trace.run, prompt=prompt, title=prompt or "×"))
    assert drawn(told).size == card.SIZE


def test_letters_that_no_font_has_are_an_ellipsis_and_those_of_english_need_no_other_font():
    words, font = card.drawable("Why is the sky blue?", "", 20)
    assert words == "Why is the sky blue?" and font is not None
    assert card.drawable("為什麼 τ ok", "", 20)[0] == "… … ok"
    assert card.drawable("any", "no-such-font.ttf", 20) == ("", None)


def test_a_run_without_steps_and_one_that_draws_a_picture():
    trace = sample_trace(4)
    assert drawn(trace.replace(steps=(), end=None)).size == card.SIZE
    corner = drawn(image_trace("lantern")).crop((890, 44, 1140, 294))
    assert corner.getcolors(1) is None or corner.getcolors(1)[0][1] != ImageColor.getrgb(LIGHT.paper)


def packed(picture, kind="PNG"):
    picture.save(written := io.BytesIO(), kind)
    return base64.b64encode(written.getvalue()).decode()


@pytest.mark.parametrize(
    "picture",
    [
        "no picture", "AAAA", packed(Image.new("1", (9000, 9000))), packed(Image.new("1", (20_000, 20_000))),
        packed(Image.new("1", (9, 9)), "BMP"),
    ],
    ids=["text", "damaged", "large", "bomb", "another format"],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_a_strangers_picture_is_refused_before_it_is_unpacked(picture):
    trace = image_trace("lantern")
    assert trace.end is not None
    with pytest.raises(BadTrace, match="damaged or too large"):
        card.draw(trace.replace(end=replace(trace.end, picture=picture)))
