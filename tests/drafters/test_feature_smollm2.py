"""The drafters that ship, on the model they were made for: the text stays the target's, and drafting pays."""

from __future__ import annotations

import pytest

import specviz
from specviz.trace.schema import Trace

PROMPT = "Explain in a few sentences why the sky is blue."
MACHINE = {"prompt": PROMPT, "max_new_tokens": 96}


@pytest.mark.model
@pytest.mark.parametrize(("name", "least"), [("eagle", 1.4), ("eagle2", 1.4), ("eagle3", 1.4), ("ddd", 1.4)])
def test_the_text_is_the_targets_and_several_tokens_come_a_pass(name: str, least: float) -> None:
    alone: Trace = specviz.run(method="autoregressive", **MACHINE)
    found: Trace = specviz.run(method=name, **MACHINE)
    assert alone.end is not None and found.end is not None
    assert found.end.output_ids == alone.end.output_ids
    assert found.end.metrics["tau"] > least
    assert not found.run.warnings
