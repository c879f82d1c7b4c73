"""What travels to the page: a script and a stylesheet that are safe to inline and ask nothing of the network."""

import gzip
import re

import pytest

from specviz import palette
from specviz.figures.theme import figure
from specviz.ui import theme as page
from specviz.viewer import bundle

WHOLE = "".join(map(bundle.script, ("", *bundle.LATER)))
IN_APP = WHOLE.replace(bundle.script("element"), "")


def test_the_script_is_safe_to_inline():
    assert "</script" not in WHOLE.lower()
    assert "<!--" not in WHOLE
    assert bundle.style().count("{") == bundle.style().count("}")


def test_text_never_becomes_markup():
    sources = "".join(path.read_text(encoding="utf-8") for path in bundle.SOURCES)
    for way in (
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "eval(",
        "new Function",
        "srcdoc",
        "DOMParser",
    ):
        assert way not in sources


def test_nothing_asks_the_network():
    addresses = set(re.findall(r"https?://[^\s\"'`)]+", WHOLE))
    assert addresses == {"http://www.w3.org/2000/svg", "https://arxiv.org/abs/"}, "the latter is a link that a visitor follows"
    for way in ("fetch(", "XMLHttpRequest", "WebSocket", "EventSource", "sendBeacon", "@import", "import("):
        assert way not in IN_APP
    assert bundle.script("element").count("fetch(") == 1, "the file that the page's author names"


def test_every_file_is_in_the_bundle_and_small():
    sheets = {path.relative_to(bundle.HERE).with_suffix("").as_posix() for path in bundle.HERE.rglob("*.css")}
    lazy = ("play", "field", "reading", "story")
    assert sheets == {*bundle.STYLES["sheets"], *(sheet for part in lazy for sheet in bundle.STYLES[part])}
    for path in [*bundle.SOURCES, *bundle.HERE.rglob("*.css")]:
        assert len(path.read_text(encoding="utf-8").splitlines()) <= 330, path.name
    # It travels once, compressed, and is kept; only a replay holds it as it is.
    assert len(gzip.compress(bundle.script().encode())) < 127_300 and len(bundle.script()) < 446_700
    # Fetched when its tab is first opened, and in no replay.
    assert "svp-" not in bundle.script() and len(gzip.compress(bundle.script("play").encode())) < 25_500
    # Two thirds of it are the run that it tells.
    assert "sst-" not in bundle.script() and len(gzip.compress(bundle.script("story").encode())) < 62_000
    assert "sp-ways" not in bundle.script() and len(gzip.compress(bundle.script("share").encode())) < 8_350
    assert "svf-" not in bundle.script() and len(gzip.compress(bundle.script("field").encode())) < 12_950
    assert "specviz-stage" not in IN_APP and len(gzip.compress(bundle.script("element").encode())) < 900
    assert "sv-read-" not in bundle.script() and len(gzip.compress(bundle.script("reading").encode())) < 6_000


def test_slimming_takes_comments_only():
    assert bundle.slim("const a = /** @type {B} */ (c);\n") == "const a = (c);\n"
    assert bundle.slim("  // gone\n  a(); // gone\n/* gone\n too */\nb('//x', ' // y');\n") == "a();\nb('//x', ' // y');\n"


def test_the_style_sheets_have_no_colours_of_their_own_and_name_none_that_are_missing():
    sheets = "".join(path.read_text(encoding="utf-8") for path in bundle.HERE.rglob("*.css"))
    assert re.findall(r"#[0-9a-fA-F]{3,8}\b", sheets) == []
    scripts = "".join(path.read_text(encoding="utf-8") for path in bundle.SOURCES)
    defined = set(re.findall(r'--(sv-[a-z-]+)[:"]', bundle.style() + scripts))
    asked = set(re.findall(r"var\(--(sv-[a-z-]+)", sheets + scripts)) | set(re.findall(r'read\("(sv-[a-z-]+)"', scripts))
    assert asked and asked <= defined


@pytest.mark.parametrize("mode", palette.THEMES)
def test_stage_page_and_figures_have_the_same_colours(mode):
    theme = palette.THEMES[mode]
    stage = dict(re.findall(r"--sv-([a-z-]+):([^;}]+)", bundle.style().splitlines()[mode == "dark"]))
    around = {"light": page.LIGHT, "dark": page.DARK}[mode]
    drawn = figure(theme, "a title").layout
    assert stage["card"] == around["card"] == drawn.paper_bgcolor
    assert stage["ink"] == around["ink"] == drawn.font.color
    for name, called, color in (
        ("acc", "accent", palette.LOOKS["accepted"].line), ("rej", "warn", palette.LOOKS["rejected"].line),
        ("relaxink", "amber", palette.LOOKS["relaxed"].text),
    ):  # fmt: skip
        assert stage[name] == around[called] == getattr(theme, color)


def test_stage_and_figures_call_a_verdict_the_same(node):
    long, short = node("return [given.map(labels.of), modules.generated.LEGEND];", list(palette.LABELS))
    assert dict(zip(palette.LABELS, long, strict=True)) == palette.LABELS
    assert short == palette.LEGEND
