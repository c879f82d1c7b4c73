"""The one-file replay: small, self-contained, and deaf to whatever a trace tries to smuggle in."""

from __future__ import annotations

import base64
import gzip
import json
import re

from specviz.viewer import replay
from tests.viewer import cases


def embedded(page: str) -> dict[str, object]:
    found = re.search(r'<script type="application/json" id="trace">(.*?)</script>', page, re.DOTALL)
    assert found
    return json.loads(found[1])


def test_the_trace_comes_back_as_it_went_in() -> None:
    text = cases.trace(cases.hostile())
    page = replay.page(text)
    assert embedded(page)["text"] == text
    assert page.lower().count("</script") == 3
    assert "<img" not in page


def test_a_long_run_is_compressed_and_stays_under_a_megabyte() -> None:
    text = cases.trace(*[cases.bushy(at) for at in range(400)])
    assert len(text) > 1_500_000
    page = replay.page(text)
    packed = str(embedded(page)["gzip"])
    assert gzip.decompress(base64.b64decode(packed)).decode() == text
    assert len(page.encode()) < 1_000_000


def test_the_page_forbids_itself_the_network() -> None:
    page = replay.page(cases.trace(cases.chain(0)), title="<script>")
    assert "default-src &#x27;none&#x27;" in page
    assert "<title>&lt;script&gt;</title>" in page
    assert set(re.findall(r"https?://[^\s\"'`)\\]+", page)) == {"http://www.w3.org/2000/svg"}


def test_options_reach_the_viewer() -> None:
    page = replay.page(cases.trace(cases.chain(0)), autoplay=False, speed=1.0)
    assert embedded(page)["options"] == {"mode": "recorded", "autoplay": False, "speed": 1.0}
