"""Prompts decoded in step on the real model give the traces that each would have given alone."""

from __future__ import annotations

import pytest

import specviz
from specviz import views
from specviz.bench import batch
from specviz.errors import BadInput
from specviz.request import Memory, Request
from specviz.run import prepare
from specviz.trace import store

PROMPTS = ("Repeat after me: one, two, three, four, five.", "Say yes.", "Count: 1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 3,")


@pytest.mark.model
def test_traces_of_a_batch_are_those_of_the_single_runs_and_valid_files() -> None:
    asked = {"method": "reader", "max_new_tokens": 14, "dtype": "float64", "parameters": {"nodes": 12}}
    ready = [prepare(Request(prompt=prompt, seed=seed, **asked), Memory()) for seed, prompt in enumerate(PROMPTS)]
    found = batch.traces(ready, every=2)
    for seed, (prompt, trace) in enumerate(zip(PROMPTS, found, strict=True)):
        alone = specviz.run(prompt=prompt, seed=seed, memory=Memory(), **asked)
        assert trace.end is not None and alone.end is not None
        assert trace.end.output_ids == alone.end.output_ids
        assert trace.end.reason == alone.end.reason
        assert trace.end.text == alone.end.text
        store.validate(store.text(trace).encode())
        assert "rows" in {note.type for step in trace.steps for note in step.notes}
        for index, step in enumerate(trace.steps):
            for note in step.notes:
                assert views.NOTES[note.type](trace, index).layout.title.text.startswith(f"Step {index + 1} ·")


@pytest.mark.model
def test_runs_on_different_targets_are_no_batch() -> None:
    ready = [
        prepare(Request(method="reader", prompt="Hello", max_new_tokens=4, dtype=dtype), Memory())
        for dtype in ("float64", "float32")
    ]
    with pytest.raises(BadInput, match="share one target"):
        batch.assembled(ready)
