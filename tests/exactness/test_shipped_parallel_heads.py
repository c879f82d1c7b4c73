"""The heads that ship, on the model they were trained for: faster than one token a pass, and true to it."""

from __future__ import annotations

from functools import cache

import pytest
import torch

from specviz.models.text.load import load_causal_lm
from specviz.pipeline.runner import run
from specviz.trace.schema import RELAXED, Trace
from specviz.trace.validate import check

PROMPT = "Write a Python function that returns the longest word in a sentence."
ROUNDING = 0.05
"""Two logits closer than this may change places between a pass over a tree and one over a token."""


@cache
def decoded(method: str, temperature: float, **values: object) -> Trace:
    """A run, made once for all the tests that look at it."""
    return run(method=method, prompt=PROMPT, max_new_tokens=40, temperature=temperature, parameters=values, dtype="float32")


def same_text(trace: Trace) -> bool:
    """As the target alone writes it, or apart only where rounding decided."""
    check(trace)
    own = decoded("autoregressive", trace.run.sampling.temperature)
    assert trace.end is not None and own.end is not None
    ours, theirs = trace.end.output_ids, own.end.output_ids
    pairs = zip(ours, theirs, strict=False)
    apart = next((place for place, (one, other) in enumerate(pairs) if one != other), min(len(ours), len(theirs)))
    return ours == theirs or gap(theirs[:apart]) < ROUNDING


def gap(tokens: tuple[int, ...]) -> float:
    """How far apart the target's two best logits are after its own text."""
    loaded = load_causal_lm("smollm2-135m-instruct", "float32")
    ids = [*loaded.text.encode(PROMPT, False), *tokens]
    with torch.inference_mode():
        best = loaded.model(torch.tensor([ids])).logits[0, -1].topk(2).values
    return float(best[0] - best[1])


@pytest.mark.model
@pytest.mark.parametrize(("temperature", "rule"), [(0.0, "typical"), (1.0, "match")])
def test_the_text_is_the_targets_own_and_comes_in_fewer_passes(temperature: float, rule: str) -> None:
    trace = decoded("medusa", temperature, rule=rule)
    assert same_text(trace)
    assert trace.end is not None
    assert trace.end.metrics["tau"] > (1.3 if temperature == 0 else 1.05)


@pytest.mark.model
def test_relaxing_writes_another_text_in_fewer_passes_still() -> None:
    exact, relaxed = decoded("medusa", 1.0, rule="match"), decoded("medusa", 1.0, rule="typical")
    assert exact.end is not None and relaxed.end is not None
    assert relaxed.end.metrics["tau"] > exact.end.metrics["tau"]
    assert any(node.status == RELAXED for step in relaxed.steps for node in step.nodes)


@pytest.mark.model
def test_leaves_first_is_true_to_the_target_at_temperature_zero() -> None:
    trace = decoded("traversal", 0.0)
    assert same_text(trace)
    assert trace.end is not None
    assert trace.end.metrics["tau"] > 1.5


@pytest.mark.model
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_two_levels_a_forward_write_the_targets_own_text_in_fewer_passes(temperature: float) -> None:
    trace = decoded("falcon", temperature, nodes=24)  # by itself it grows what pays here, which is little on a busy machine
    assert same_text(trace)
    assert trace.end is not None
    assert trace.end.metrics["tau"] > (1.2 if temperature == 0 else 1.05)
    assert any(len(step.path) > 1 for step in trace.steps), "no second level was ever right"
