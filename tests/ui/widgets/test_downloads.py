"""Any run can be saved in any format, and a question that makes no sense is answered with a sentence."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from specviz.ui.app_state import AppState
from specviz.ui.widgets import downloads
from tests.support.fakes.ui import app


@pytest.fixture
def shared(tmp_path: Path) -> AppState:
    return app(tmp_path)


def test_the_trace_file_comes_back_as_it_was(shared: AppState) -> None:
    made = downloads.make(shared.archive, ["stand", "trace", 1])
    assert made["text"] == shared.archive.text("stand")
    assert made["name"] == "stand-smollm2-135m-instruct.spectrace.jsonl"


@pytest.mark.parametrize("kind", ["summary", "perfetto", "nodelink"])
def test_json_formats_are_json(shared: AppState, kind: str) -> None:
    made = downloads.make(shared.archive, ["stand", kind, 3])
    assert json.loads(made["text"]) and made["type"] == "application/json" and made["name"].endswith(".json")


def test_a_tree_is_that_of_the_step_on_the_screen(shared: AppState) -> None:
    made = downloads.make(shared.archive, ["stand", "graphml", 3])
    nodes = ElementTree.fromstring(made["text"]).findall(".//{*}node")
    drawn = shared.archive.trace("stand").steps[2].nodes
    assert len(nodes) in (len(drawn), len(drawn) + 1)
    assert made["name"].endswith("-step-3.graphml")


def test_the_replay_page_plays_offline(shared: AppState) -> None:
    made = downloads.make(shared.archive, ["stand", "html", 1])
    assert made["text"].startswith("<!doctype html>") and "default-src 'none'" in made["text"]
    assert made["type"] == "text/html" and len(made["text"]) < 1_000_000


@pytest.mark.parametrize(
    "asked",
    [
        [], ["stand"], ["stand", "exe", 1], ["stand", "graphml", 0], ["stand", "graphml", 99], ["stand", "graphml", None],
        ["stand", "graphml", float("inf")], ["../x", "trace", 1], ["mine:guess", "trace", 1],
        ["", "trace", 1], [None, None, None],
    ],
)  # fmt: skip
def test_what_cannot_be_saved_is_explained(shared: AppState, asked: list[object]) -> None:
    made = downloads.make(shared.archive, asked)
    assert set(made) == {"error"} and made["error"].endswith(".")


def test_every_button_has_a_format(shared: AppState) -> None:
    for kind, _, _ in downloads.FORMATS:
        assert "error" not in downloads.make(shared.archive, ["stand", kind, 1])
