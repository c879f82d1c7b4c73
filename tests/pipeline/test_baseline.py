"""What a run's record keeps of its autoregressive baseline, so that both can be shown side by side."""

import pytest

import specviz
from specviz.pipeline.runner import run
from tests.support.traces.image_runs import PARAMETERS, PROMPT, tiny_models


def test_a_baseline_that_wrote_other_words_keeps_them():
    asked = {"prompt": "Why is the sky blue?", "target": "hybrid-small", "temperature": 1.0, "max_new_tokens": 24}
    nodes = {"nodes": 16}  # as many on every machine, whatever its passes cost
    trace = specviz.run(method="stand", parameters=nodes, baseline=True, **asked)
    alone = specviz.run(method="autoregressive", **asked)
    parting = trace.end.baseline.first_divergence
    assert parting is not None, "the drafts are drawn, so two runs agree in distribution alone"
    pieces = [piece for step in trace.steps for piece in step.pieces]
    assert "".join([*pieces[: parting.position], *trace.end.baseline.pieces]) == alone.end.text != trace.end.text


def test_a_baseline_that_wrote_the_same_keeps_no_second_copy():
    trace = specviz.run(
        method="prompt_lookup", prompt="One two, one two.", target="hybrid-small", max_new_tokens=12, baseline=True
    )
    assert trace.end.baseline.equal
    assert trace.end.baseline.pieces == () and trace.end.baseline.picture == ""


@pytest.mark.slow
def test_a_baseline_that_drew_another_picture_keeps_it():
    with tiny_models():
        asked = {"prompt": PROMPT, "target": "emoji-64", "temperature": 1.0}
        trace = run(method="lantern", parameters=PARAMETERS["lantern"], baseline=True, **asked)
        alone = run(method="autoregressive", **asked)
    assert trace.end.baseline.picture == alone.end.picture != trace.end.picture
