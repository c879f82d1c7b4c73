"""The drafters that ship, on the model they were made for: the text stays the target's, and drafting pays in passes."""

from __future__ import annotations

from functools import cache

import pytest

import specviz
from specviz.trace.schema import Trace

PROMPT = "Write a Python function that adds up the even numbers of a list, and explain it."
ROUNDING = 0.05
"""Two logits closer than this may change places between a pass over a tree and one over a token."""


@pytest.mark.model
@pytest.mark.parametrize("name", ["eagle2", "eagle3", "gto"])
def test_the_text_is_the_targets_and_several_tokens_come_a_pass(name: str) -> None:
    found: Trace = specviz.run(method=name, prompt=PROMPT, max_new_tokens=40, dtype="float32", baseline=True)
    assert found.end is not None and found.end.baseline is not None
    apart = found.end.baseline.first_divergence
    assert apart is None or (apart.gap is not None and apart.gap < ROUNDING)
    assert found.end.metrics["tau"] > 1.2
    assert not found.run.warnings


COARSE = 0.5
"""Of logits about 20 high bfloat16 keeps steps of an eighth; a pass over a tree and one over a token may be a few apart."""


@cache
def coarse(name: str) -> Trace:
    """A short run in bfloat16 beside the target's own."""
    alone = name == "autoregressive"
    return specviz.run(method=name, prompt=PROMPT, max_new_tokens=16, dtype="bfloat16", baseline=not alone)


@pytest.mark.model
@pytest.mark.parametrize("name", ["eagle2", "ddd", "gto", "falcon", "medusa", "traversal"])
def test_in_bfloat16_the_first_place_apart_is_told_with_how_close_it_was(name: str) -> None:
    """The last rung of the ladder: rounding may decide between two tokens, and then the trace says where and by how little."""
    found, alone = coarse(name).end, coarse("autoregressive").end
    assert found is not None and found.baseline is not None and alone is not None
    ours, theirs, apart = found.output_ids, alone.output_ids, found.baseline.first_divergence
    assert coarse(name).run.dtype == "bfloat16"
    assert (apart is None) == (ours == theirs)
    if apart is not None:
        print(f"{name}: apart at {apart.position}, top-2 gap {apart.gap}")
        assert ours[: apart.position] == theirs[: apart.position] and ours[apart.position] != theirs[apart.position]
        assert apart.gap is not None and apart.gap < COARSE
