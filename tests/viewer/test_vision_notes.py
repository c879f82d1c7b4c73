"""The panels of runs about pictures, under a page without a browser: what they say and draw, and that nothing breaks them."""

import copy
import json

import pytest

from specviz.trace import store
from tests.support.traces.recordings import beginning, told
from tests.support.viewer.panes import PAGE

SHOW = (
    PAGE.split("const step =")[0]
    + """
const lines = given.lines.map((line) => JSON.parse(line));
const steps = lines.filter((line) => line.kind === "step").map((line) => parseStep(line));
const trace = { steps, run: lines[0] };
const selected = given.node === null ? null : steps[given.index].nodes[given.node];
const stage = { ...stageOf(steps[given.index]), trace, selectedNote: given.kind, selected };
const pane = made("div");
pane.clientWidth = 426;
pane.clientHeight = 420;
noteRegistry.draw(pane, stage);
const classes = all(pane).map((one) => one.attributes.class || "");
"""
)
ASK = "return [said(pane), classes, all(pane).map((one) => one.attributes.href).filter(Boolean)];"


def lines_of(method):
    return store.lines(beginning(method, 5))


def drawn(
    node,
    kind,
    method="dream",
    index=0,
    at=None,
    lines=None,
):
    given = {"lines": lines or lines_of(method), "index": index, "kind": kind, "node": at}
    return node(SHOW + ASK, given)


def damaged(kind, index, **data):
    lines = lines_of("dream")
    step = json.loads(lines[1 + index])
    for note in step["notes"]:
        if note["type"] == kind:
            note.update(copy.deepcopy(data))
    return [*lines[: 1 + index], json.dumps(step), *lines[2 + index :]]


def test_the_picture_comes_with_its_patches(node):
    text, classes, addresses = drawn(node, "picture")
    assert "The picture as the model sees it: 8 × 8 patches. They are 64 of the prompt's 70 tokens." in text
    assert "once for every method" in text
    assert classes.count("sv-patch") == 64
    assert len(addresses) == 1 and addresses[0].startswith("data:image/png;base64,iVBOR")


def test_two_strips_tell_who_reads_what(node):
    text, classes, addresses = drawn(node, "visual_tokens", index=2)
    assert "Hidden from the drafter: 16 of 64 patches." in text
    assert sum("sv-patch-cell" in one for one in classes) == 128
    assert sum("sv-hidden-cell" in one for one in classes) == 16 == sum("sv-greyed" in one for one in classes)
    assert len(addresses) == 2
    text, classes, _ = drawn(node, "visual_tokens", "hivis", 1)
    assert "all 64 patches" in text and sum("sv-hidden-cell" in one for one in classes) == 64


def test_arcs_lead_from_the_chosen_word_to_its_patches(node):
    trace = beginning("dream")
    step = max(trace.steps[:5], key=lambda one: len(one.path))
    attended = len(told("dream", "attention_entropy", step.index)["looks"][0]["at"])
    text, classes, _ = drawn(node, "attention_entropy", index=step.index, at=step.path[0])
    assert "When the drafter guessed “" in text and classes.count("sv-arc") == attended
    assert "sv-chosen-cell" in classes and sum("sv-attended" in one for one in classes) == attended
    assert sum("sv-greyed" in one for one in classes) == 16
    below, _, _ = drawn(node, "attention_entropy", index=step.index, at=step.path[1]) if len(step.path) > 1 else (text, 0, 0)
    assert below != text or len(step.path) == 1
    assert "At the first word of this step" in drawn(node, "attention_entropy", index=step.index, at=0)[0], (
        "the root guessed nothing"
    )


def test_levels_are_drawn_with_and_without(node):
    text, classes, _ = drawn(node, "step_embeddings", "hivis", 3)
    assert "with its vectors, and without" in text
    assert classes.count("sv-without-bar") == classes.count("sv-with-bar") > 3


@pytest.mark.spread(2)
@pytest.mark.parametrize(
    ("kind", "data"),
    [
        ("picture", {"png": ["javascript:alert(1)"]}),
        ("picture", {"png": ["x" * 300_000]}),
        ("picture", {"png": None, "size": "wide", "grid": 3}),
        ("picture", {"boxes": [[0, 0, 1]], "spans": "all"}),
        ("picture", {"grid": [900, 900], "spans": [[0, 1 << 30]]}),
    ],
)
def test_damage_is_survived(node, kind, data):
    text, _, addresses = drawn(node, kind, lines=damaged(kind, 0, **data))
    assert isinstance(text, str)
    assert all(one.startswith("data:image/png;base64,") and len(one) < 300_000 for one in addresses)


def test_a_later_step_finds_the_picture_of_the_first(node):
    lines = lines_of("dream")
    assert len(drawn(node, "visual_tokens", index=4)[2]) == 2
    step = json.loads(lines[1])
    step["notes"] = [note for note in step["notes"] if note["type"] != "picture"]
    assert drawn(node, "visual_tokens", index=4, lines=[lines[0], json.dumps(step), *lines[2:]])[2] == []
