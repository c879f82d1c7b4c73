"""What every figure keeps: small, deterministic, in one look, readable, and deaf to whatever token text says."""

import json
import re
from functools import cache

import pytest

from specviz import figures
from specviz.figures.theme import cells, duration, escape, escape_controls, markup, number, percent, show_whitespace
from specviz.palette import THEMES
from tests.support.traces.made import hostile
from tests.support.traces.recordings import beginning
from tests.support.traces.samples import METHODS, sample_trace

DRAWN = {
    "draft_tree": ("token_recycling", lambda trace, theme: figures.draft_tree(trace.steps[5], theme)),
    "accepted_length": ("stand", figures.accepted_length),
    "acceptance_by_depth": ("stand", figures.acceptance_by_depth),
    "time_shares": ("stand", figures.time_shares),
    "speed_explained": ("stand", figures.speed_explained),
    "speed_table": ("stand", figures.speed_table),
    "reliability": ("eagle2", figures.reliability),
}
FIGURES = [name for name in DRAWN if name != "speed_table"]


def drawn(name, theme="light", change=lambda trace: trace):
    method, draw = DRAWN[name]
    return draw(change(_sample(method)), theme)


@cache
def _sample(method):
    return sample_trace(14, method=method) if method in METHODS else beginning(method)


def text_of(made):
    return made if isinstance(made, str) else made.to_json()


@pytest.mark.spread(1)
@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("name", DRAWN)
def test_the_same_trace_gives_the_same_small_picture(name, theme):
    first = text_of(drawn(name, theme))
    assert first == text_of(drawn(name, theme))
    assert len(first) < 30_000
    assert THEMES[theme].ink in first


@pytest.mark.spread(2)
@pytest.mark.parametrize("name", FIGURES)
def test_figures_share_one_look_and_no_letter_is_under_11_pixels(name):
    made = json.loads(text_of(drawn(name)))
    assert len(json.dumps(made["layout"]["template"])) < 100, "the default template is seven kilobytes"
    assert made["layout"]["paper_bgcolor"] == THEMES["light"].paper
    sizes = list(_font_sizes(made))
    assert sizes and min(sizes) >= 11


def _font_sizes(value):
    if isinstance(value, dict):
        for key, inner in value.items():
            if "font" in key and isinstance(inner, dict) and "size" in inner:
                yield inner["size"]
            yield from _font_sizes(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _font_sizes(inner)


@pytest.mark.spread(2)
@pytest.mark.parametrize("name", DRAWN)
def test_hostile_text_never_becomes_markup(name):
    made = drawn(name, change=hostile)
    strings = [made] if isinstance(made, str) else list(_strings(json.loads(made.to_json())))
    for one in strings:
        tags = {tag.lower() for tag in re.findall(r"<\s*/?\s*([a-zA-Z!]\w*)", one)}
        assert tags <= {"b", "br", "span", "div", "p", "table", "tbody", "tr", "th", "td"}, one
        assert "\u202e" not in one and "\x1b" not in one
        if isinstance(made, str):
            assert 'onerror="' not in one, "quotes are escaped as well"
        else:
            assert not re.search(r"\$.*\$", one), "LaTeX between dollars"


def _strings(value):
    if isinstance(value, str):
        yield value
    elif isinstance(value, (dict, list)):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _strings(inner)


@pytest.mark.browser
def test_hostile_text_is_shown_as_it_is_in_a_real_browser(chromium, tmp_path):
    from playwright.sync_api import sync_playwright

    parts = []
    for name in DRAWN:
        made = drawn(name, change=hostile)
        html = made if isinstance(made, str) else made.to_html(include_plotlyjs=not parts, full_html=False)
        parts.append(html)
    page_file = tmp_path / "page.html"
    page_file.write_text("<!doctype html><meta charset=utf-8><body>" + "".join(parts), encoding="utf-8", errors="replace")
    with sync_playwright() as player:
        browser = player.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page()
        requests = []
        page.on("request", lambda request: requests.append(request.url))
        page.goto(page_file.as_uri())
        page.wait_for_function(f"document.querySelectorAll('svg.main-svg').length >= {len(FIGURES)}")
        assert page.evaluate("window.hacked") is None
        assert page.locator("img[src=x], body a[href^=javascript], h1").count() == 0
        assert page.get_by_text("<img·src=x·onerr", exact=False).count() > 0, "the text itself is readable"
        browser.close()
    assert [url for url in requests if not url.startswith(("file:", "data:", "blob:"))] == []


def test_text_helpers_say_what_people_can_read():
    assert show_whitespace(" a\n\t\u200b") == "·a⏎⇥\\u200b"
    assert show_whitespace("abcdefgh", 4) == "abc…"
    assert escape("<b>&$") == "&lt;b&gt;&amp;&#36;"
    assert markup("<\u202e>\n") == "&lt;\\u202e&gt;\n"
    assert escape_controls("a\x1b[0m\n") == "a\\u001b[0m\n"
    assert (cells("ab"), cells("日本"), cells("e\u0301")) == (2, 4, 1)
    assert [number(value) for value in (None, 0.0, 0.5, 0.004, 1.0)] == ["–", "0.00", "0.50", "4e-3", "1.00"]
    assert [percent(value) for value in (None, 0.0, 0.004, 0.41)] == ["–", "0 %", "< 1 %", "41 %"]
    assert [duration(value) for value in (0, 900, 41_000, 1_500_000, 12_345_678_901)] == [
        "0 ns", "900 ns", "41.0 µs", "1.50 ms", "12.3 s",
    ]  # fmt: skip
