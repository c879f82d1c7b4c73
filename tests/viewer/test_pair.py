"""The page of two runs: both are in it whole, their numbers stand side by side, and it asks nothing of the network."""

from __future__ import annotations

import json
import re

import pytest
from msgspec.structs import replace

from specviz.errors import BadInput
from specviz.trace import store
from specviz.trace.schema import Trace
from specviz.viewer import pair
from tests.support.traces.made import hostile
from tests.support.traces.samples import sample_trace


def titled(title: str, count: int = 6) -> Trace:
    trace = sample_trace(count)
    return replace(trace, run=replace(trace.run, title=title))


def test_both_traces_are_in_the_page_as_they_were() -> None:
    left, right = titled("A in vLLM"), titled("A in specviz")
    page = pair.page(left, right, ("Told <b>so</b>.",))
    for side, trace in (("left", left), ("right", right)):
        found = re.search(rf'<script type="application/json" id="{side}-trace">(.*?)</script>', page, re.DOTALL)
        assert [json.loads(line) for line in found[1].splitlines()] == [
            json.loads(line) for line in store.text(trace).splitlines()
        ]
    assert "<li>Told &lt;b&gt;so&lt;/b&gt;.</li>" in page and page.lower().count("</script") == 3
    assert "default-src 'none'; script-src 'sha256-" in page and "<td colspan=2>the same</td>" in page
    assert set(re.findall(r"https?://[^\s\"'`)\\]+", page)) == {"http://www.w3.org/2000/svg"}


def test_where_the_texts_part_is_said() -> None:
    left = titled("A")
    right = replace(left, end=replace(left.end, text=left.end.text[:5] + "§"))
    assert pair.parting(left, right) == "the same for 5 letters, then others"


def test_the_speed_leaves_the_step_that_read_the_prompt_out() -> None:
    trace = titled("A")
    slow = replace(trace.steps[0], time=replace(trace.steps[0].time, verify=10**12))
    assert pair.rate(replace(trace, steps=(slow, *trace.steps[1:]))) == pair.rate(trace)


def test_two_prompts_are_no_pair_and_hostile_text_stays_text() -> None:
    left = titled("A")
    with pytest.raises(BadInput, match="different prompts"):
        pair.page(left, replace(left, run=replace(left.run, prompt="Other")))
    evil = hostile(left)
    page = pair.page(evil, evil)
    assert "<img" not in page and page.lower().count("</script") == 3
