"""Opening a trace file: a good one is kept for this session, a hostile one is refused with its line and field."""

import asyncio
import json

import gradio as gr
import pytest
from msgspec.structs import replace

from specviz.errors import BadTrace
from specviz.trace.schema import Trace
from specviz.trace.store import outlined
from specviz.ui.archive import MINE
from specviz.ui.deep_links import RunTabs
from specviz.ui.tabs import traces_tab
from specviz.ui.tabs.run_tab import TextTab
from tests.support.fakes.ui import VISITOR, app
from tests.support.traces.samples import lines, sample_trace


@pytest.fixture
def shared(tmp_path):
    return app(tmp_path)


def opened(shared, file):
    return asyncio.run(shared.archive.open(str(file)))


def broken(line, **fields):
    made = lines(sample_trace(6, method="stand"))
    made[line] = json.dumps({**json.loads(made[line]), **fields})
    return "\n".join(made) + "\n"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (broken(2, nodes="many"), 3),
        ("[" * 5000, 1),
        ("\0", 1),
    ],
)
def test_a_bad_file_is_refused_with_its_line(shared, tmp_path, text, line):
    file = tmp_path / "bad.spectrace.jsonl"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(BadTrace, match=f"line {line}"):
        opened(shared, file)
    assert len(shared.archive.store._entries) == 0


def test_a_hostile_text_is_shown_as_text():
    trace = sample_trace(3)
    hostile = replace(trace, run=replace(trace.run, prompt="<script>alert(1)</script>", title="<img src=x>"))
    made = traces_tab.facts(outlined(hostile))
    assert "<script" not in made and "<img" not in made and "&lt;script&gt;" in made


def test_a_file_that_stops_in_the_middle_says_so():
    trace = sample_trace(3, ended=False)
    assert "has no end line" in traces_tab.facts(outlined(trace))
    assert traces_tab.facts(outlined(Trace(trace.run, ())))


@pytest.fixture
def tab(shared):
    with gr.Blocks(), gr.Tab() as opened:
        text = TextTab(shared)
        return traces_tab.TracesTab(shared, opened, text, RunTabs(shared, gr.Tabs(), {"text": text}))


def test_a_run_that_is_gone_leaves_a_sentence(tab):
    assert "no longer on the server" in asyncio.run(tab.enter("mine:gone", VISITOR, []))[tab.banner].value


def test_the_runs_of_every_tab_are_listed_and_a_file_joins_them(tab, shared, tmp_path):
    file, drawn = tmp_path / "mine.spectrace.jsonl", MINE + shared.archive.store.new(lines(sample_trace(3)))
    file.write_text("\n".join(lines(sample_trace(4, method="stand"))) + "\n", encoding="utf-8")
    updates = asyncio.run(tab.take(str(file), "stand", VISITOR, [], [("A picture", drawn)]))
    assert [title for title, _ in updates[tab.chosen].choices[:2]] == ["A picture", updates[tab.runs][0][0]]
    assert updates[tab.downloads] == updates[tab.runs][0][1] and updates[tab.banner].value == ""
    refused = asyncio.run(tab.take(str(tmp_path / "none"), drawn, VISITOR, [], [("A picture", drawn)]))
    assert refused[tab.downloads] == drawn and "not opened" in refused[tab.banner].value
