"""The one-file replay of a run or of two: small, self-contained, and deaf to whatever a trace tries to smuggle in."""

import base64
import gzip
import json
import random
import re
from html.parser import HTMLParser

import pytest
from msgspec.structs import replace

from specviz.errors import BadInput
from specviz.trace import store
from specviz.viewer import pair, replay
from tests.support.traces.made import hostile
from tests.support.traces.samples import sample_trace
from tests.support.viewer import cases


def embedded(page):
    found = re.search(r'<script type="application/json" id="specviz-trace">(.*?)</script>', page, re.DOTALL)
    return found[1]


def objects(text):
    return [json.loads(line) for line in text.splitlines()]


def test_the_trace_comes_back_as_it_went_in():
    text = cases.trace(cases.hostile())
    page = replay.page(text)
    assert objects(embedded(page)) == objects(text)
    assert page.lower().count("</script") == 2
    assert "<img" not in page


def test_a_long_run_is_compressed_and_stays_under_a_megabyte():
    text = cases.trace(*[cases.bushy(at) for at in range(400)])
    assert len(text) > 1_500_000
    page = replay.page(text)
    assert gzip.decompress(base64.b64decode(embedded(page))).decode() == text
    assert len(page.encode()) < 1_000_000


def test_the_page_forbids_itself_the_network():
    page = replay.page(cases.trace(cases.chain(0)), title="<script>")
    assert "default-src 'none'; script-src 'sha256-" in page
    assert "unsafe-inline'; img" in page and "script-src 'unsafe" not in page
    assert "<title>&lt;script&gt;</title>" in page
    assert set(re.findall(r"https?://[^\s\"'`)\\]+", page)) == {"http://www.w3.org/2000/svg", "https://arxiv.org/abs/"}


def test_marks_inside_a_trace_are_not_filled():
    text = cases.trace(cases.chain(0), prompt="{{script}} {{policy}}")
    page = replay.page(text, title="{{trace}}")
    assert objects(embedded(page)) == objects(text)
    assert "<title>{{trace}}</title>" in page


@pytest.mark.slow
@pytest.mark.parametrize("steps", [300, 400, 1500])
def test_what_does_not_fit_is_left_out_notes_then_rows_then_steps_and_the_page_says_so(steps, monkeypatch):
    monkeypatch.setattr(replay, "COMPRESS_ABOVE", 2 << 20)  # so that shorter runs are too long
    trace = sample_trace(steps)
    page = replay.page(store.text(trace))
    kept = store.read(embedded(page))
    assert len(page.encode()) < replay.MAX_PAGE and not any(step.notes for step in kept.steps)
    assert any(step.rows for step in kept.steps) == (steps == 300)
    assert 'class="specviz-notice" role="note">To keep this page below 1 MB it leaves out the ' in page
    assert ("tables of likely tokens" in page) == (steps == 400)
    if steps < 1500:
        assert kept.end == trace.end and len(kept.steps) == steps
    else:
        assert len(page.encode()) > 990_000 and kept.end is None
        assert f"leaves out the steps after the first {len(kept.steps)} of 1500" in page


def test_a_prompt_too_long_for_any_page_is_refused():
    noise = base64.b64encode(random.Random(1).randbytes(740_000)).decode()
    trace = sample_trace(2)
    with pytest.raises(BadInput, match="too large for a replay page"):
        replay.page(store.text(trace.replace(run=trace.run.replace(prompt=noise))))


class Tags(HTMLParser):
    """Every start tag of a text, as its name and attributes."""

    def __init__(self, text):
        super().__init__()
        self.found = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))


def framed(html):
    """The attributes of the one element in ``html``, an iframe, and the page in it."""
    ((tag, attributes),) = Tags(html).found
    page = attributes.pop("srcdoc")
    assert tag == "iframe"
    return attributes, page


def test_a_notebook_shows_a_trace_as_the_replay_page_in_a_frame():
    trace = sample_trace(6)
    attributes, page = framed(trace._repr_html_())
    assert objects(embedded(page)) == objects(store.text(trace))
    assert 'data-autoplay="true"' in page and " data-step" not in page
    assert attributes["sandbox"] == "allow-scripts" and "height:680px" in str(attributes["style"])


def test_a_frame_opens_at_a_step_and_waits_there():
    shown = sample_trace(6).show(step=3, height=720)
    attributes, page = framed(shown._repr_html_())
    assert 'data-autoplay="false"' in page and ' data-step="4"' in page, "counted from 1 as on the screen"
    assert "height:720px" in str(attributes["style"])
    assert len(repr(shown)) < 100, "a notebook keeps this beside the page"


@pytest.mark.parametrize("step", [-1, 6])
def test_a_step_that_is_not_there_is_refused(step):
    with pytest.raises(BadInput, match=f"There is no step {step}; the run has 6, counted from 0."):
        sample_trace(6).show(step=step)


def test_what_a_trace_says_never_leaves_its_frame():
    trace = hostile(sample_trace(8))
    html = trace.show(step=2)._repr_html_()
    html.encode("utf-8")
    attributes, page = framed(html)
    assert set(attributes) == {"title", "sandbox", "allowfullscreen", "style"}
    assert not {"img", "a", "h1"} & {tag for tag, _ in Tags(page).found}
    assert page.lower().count("</script") == 2


def titled(title, count=6):
    trace = sample_trace(count)
    return replace(trace, run=replace(trace.run, title=title))


def test_both_traces_are_in_the_page_as_they_were():
    left, right = titled("A in vLLM"), titled("A in specviz")
    page = pair.page(left, right, ("Told <b>so</b>.",))
    for side, trace in (("left", left), ("right", right)):
        found = re.search(rf'<script type="application/json" id="{side}-trace">(.*?)</script>', page, re.DOTALL)
        assert [json.loads(line) for line in found[1].splitlines()] == [
            json.loads(line) for line in store.text(trace).splitlines()
        ]
    assert "<li>Told &lt;b&gt;so&lt;/b&gt;.</li>" in page and page.lower().count("</script") == 3
    assert "default-src 'none'; script-src 'sha256-" in page and "<td colspan=2>the same</td>" in page
    assert set(re.findall(r"https?://[^\s\"'`)\\]+", page)) == {"http://www.w3.org/2000/svg", "https://arxiv.org/abs/"}


def test_where_the_texts_part_is_said():
    left = titled("A")
    right = replace(left, end=replace(left.end, text=left.end.text[:5] + "§"))
    assert pair.parting(left, right) == "the same for 5 characters, then different"


def test_the_speed_leaves_the_step_that_read_the_prompt_out():
    trace = titled("A")
    slow = replace(trace.steps[0], time=replace(trace.steps[0].time, verify=10**12))
    assert pair.rate(replace(trace, steps=(slow, *trace.steps[1:]))) == pair.rate(trace)


def test_two_prompts_are_no_pair_and_hostile_text_stays_text():
    left = titled("A")
    with pytest.raises(BadInput, match="different prompts"):
        pair.page(left, replace(left, run=replace(left.run, prompt="Other")))
    evil = hostile(left)
    page = pair.page(evil, evil)
    assert "<img" not in page and page.lower().count("</script") == 3
