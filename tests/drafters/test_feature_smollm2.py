"""The drafters that ship, on the model they were made for: the text stays the target's, and drafting pays in passes."""

from __future__ import annotations

import pytest

import specviz
from specviz.trace.schema import Trace

PROMPT = "Write a Python function that adds up the even numbers of a list, and explain it."
ROUNDING = 0.05
"""Two logits closer than this may change places between a pass over a tree and one over a token."""


@pytest.mark.model
@pytest.mark.parametrize("name", ["eagle", "eagle2", "eagle3", "ddd", "gto"])
def test_the_text_is_the_targets_and_several_tokens_come_a_pass(name: str) -> None:
    found: Trace = specviz.run(method=name, prompt=PROMPT, max_new_tokens=64, dtype="float32", baseline=True)
    assert found.end is not None and found.end.baseline is not None
    apart = found.end.baseline.first_divergence
    assert apart is None or (apart.gap is not None and apart.gap < ROUNDING)
    assert found.end.metrics["tau"] > 1.2
    assert not found.run.warnings
