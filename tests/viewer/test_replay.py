"""The one-file replay: small, self-contained, and deaf to whatever a trace tries to smuggle in."""

from __future__ import annotations

import base64
import gzip
import json
import re

from specviz.trace import store
from specviz.viewer import replay
from tests.samples import sample_trace
from tests.viewer import cases


def embedded(page: str) -> str:
    found = re.search(r'<script type="application/json" id="specviz-trace">(.*?)</script>', page, re.DOTALL)
    assert found
    return found[1]


def objects(text: str) -> list[object]:
    return [json.loads(line) for line in text.splitlines()]


def test_the_trace_comes_back_as_it_went_in() -> None:
    text = cases.trace(cases.hostile())
    page = replay.page(text)
    assert objects(embedded(page)) == objects(text)
    assert page.lower().count("</script") == 2
    assert "<img" not in page


def test_a_long_run_is_compressed_and_stays_under_a_megabyte() -> None:
    text = cases.trace(*[cases.bushy(at) for at in range(400)])
    assert len(text) > 1_500_000
    page = replay.page(text)
    assert gzip.decompress(base64.b64decode(embedded(page))).decode() == text
    assert len(page.encode()) < 1_000_000


def test_the_page_forbids_itself_the_network() -> None:
    page = replay.page(cases.trace(cases.chain(0)), title="<script>")
    assert "default-src 'none'; script-src 'sha256-" in page
    assert "unsafe-inline'; img" in page and "script-src 'unsafe" not in page
    assert "<title>&lt;script&gt;</title>" in page
    assert set(re.findall(r"https?://[^\s\"'`)\\]+", page)) == {"http://www.w3.org/2000/svg"}


def test_options_reach_the_viewer() -> None:
    page = replay.page(cases.trace(cases.chain(0)), autoplay=False, speed=1.0)
    assert 'data-autoplay="false" data-speed="1"' in page


def test_a_run_too_long_even_for_that_says_what_it_leaves_out() -> None:
    page = replay.page(store.text(sample_trace(5000, seed=3)))
    assert len(page.encode()) < 1_000_000
    assert "To keep this page below 1 MB it leaves out" in page
    assert "data-gzip" not in page


def test_marks_inside_a_trace_are_not_filled() -> None:
    text = cases.trace(cases.chain(0), prompt="{{script}} {{policy}}")
    page = replay.page(text, title="{{trace}}")
    assert objects(embedded(page)) == objects(text)
    assert "<title>{{trace}}</title>" in page
