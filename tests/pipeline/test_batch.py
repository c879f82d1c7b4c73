"""Prompts decoded in step on the real model give the traces that each would have given alone."""

import pytest

import specviz
from specviz.engine.batch_loop import BatchDecoding
from specviz.engine.stop import Stop
from specviz.errors import BadInput
from specviz.pipeline import batch
from specviz.pipeline.request import Memory, Request
from specviz.pipeline.runner import prepare
from specviz.trace import store

PROMPTS = ("Say yes.", "Count: 1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 3,")


@pytest.mark.model
def test_traces_of_a_batch_are_those_of_the_single_runs_and_valid_files():
    asked = {"method": "reader", "max_new_tokens": 10, "dtype": "float64", "parameters": {"nodes": 12}}
    ready = [prepare(Request(prompt=prompt, seed=seed, **asked), Memory()) for seed, prompt in enumerate(PROMPTS)]
    found = batch.traces(ready, every=2)
    for seed, (prompt, trace) in enumerate(zip(PROMPTS, found, strict=True)):
        alone = specviz.run(prompt=prompt, seed=seed, memory=Memory(), **asked)
        assert trace.end.output_ids == alone.end.output_ids
        assert trace.end.reason == alone.end.reason
        assert trace.end.text == alone.end.text
        store.read(store.text(trace).encode())
        assert trace.run.tier == "eager", "rows run no captured pass"
        rows = [note.data for step in trace.steps for note in step.notes if note.type == "batch_cache"]
        assert rows and {row["row"] for row in rows} == {seed}


@pytest.mark.model
def test_a_row_decodes_its_earlier_trajectories_first():
    parameters = {"nodes": 4, "rule": "match", "earlier_trajectories": 2}
    asked = {"prompt": PROMPTS[1], "max_new_tokens": 8, "temperature": 0.9, "dtype": "float64", "parameters": parameters}
    (found,) = batch.traces([prepare(Request("stand", **asked), Memory())], every=2)
    alone = specviz.run(method="stand", memory=Memory(), **asked)
    assert [(step.emitted, step.verified) for step in found.steps] == [(step.emitted, step.verified) for step in alone.steps]
    assert found.steps[0].verified, "nothing was remembered"


@pytest.mark.model
def test_runs_on_different_targets_are_no_batch():
    ready = [
        prepare(Request(method="reader", prompt="Hello", max_new_tokens=4, dtype=dtype), Memory())
        for dtype in ("float64", "float32")
    ]
    with pytest.raises(BadInput, match="must have the same target"):
        batch.traces(ready, 2)


@pytest.mark.model
@pytest.mark.parametrize("hard", [False, True])
def test_a_batch_that_is_stopped_keeps_the_rounds_that_were_whole(hard, monkeypatch):
    asked = {"method": "reader", "max_new_tokens": 14, "dtype": "float32", "parameters": {"nodes": 12, "drafter": "none"}}
    ready = [prepare(Request(prompt=prompt, **asked), Memory()) for prompt in PROMPTS]
    cancel, played, play = Stop(), [0], BatchDecoding._play

    def interrupted(self, untimed):
        played[0] += 1
        found = play(self, untimed)
        if played[0] == 3 and hard:
            raise KeyboardInterrupt
        if played[0] == 2 and not hard:
            cancel.set()
        return found

    monkeypatch.setattr(BatchDecoding, "_play", interrupted)
    found = batch.traces(ready, 2, cancel)
    assert [(len(trace.steps), trace.end.reason) for trace in found if trace.end] == [(2, "cancelled")] * 2
    for trace in found:
        store.read(store.text(trace).encode())
