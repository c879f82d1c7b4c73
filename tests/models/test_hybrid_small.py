"""The hybrid that ships: it writes words, trees on it write what it writes alone, and its drafter is often right."""

from __future__ import annotations

import pytest

import specviz
from specviz.models.hub.packed_model import tokenizer_hash_in
from specviz.models.text.load import load_causal_lm
from specviz.training.registry import WEIGHTS

pytestmark = pytest.mark.model
PROMPT = "What should I think about before I adopt a dog?"


def test_both_files_speak_in_the_same_tokens_and_stay_small() -> None:
    files = [WEIGHTS / name for name in ("hybrid.safetensors", "hybrid_draft.safetensors")]
    assert tokenizer_hash_in(files[0]) == tokenizer_hash_in(files[1])
    assert sum(one.stat().st_size for one in files) <= 4_500_000
    assert sum(weight.numel() for weight in load_causal_lm("hybrid-small", "float64").model.parameters()) == 2_849_306


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("tree", ["beam", "drawn"])
def test_trees_write_what_it_writes_alone(tree: str, temperature: float) -> None:
    asked = {"prompt": PROMPT, "target": "hybrid-small", "max_new_tokens": 96, "temperature": temperature, "baseline": True}
    trace = specviz.run(method="stree", parameters={"tree": tree}, **asked)
    assert trace.end is not None and trace.end.baseline is not None and trace.end.baseline.equal
    assert sum(step.accepted for step in trace.steps) > 0.3 * len(trace.steps), "the drafter is of some use"


def test_it_writes_words() -> None:
    trace = specviz.run(method="autoregressive", prompt=PROMPT, target="hybrid-small", max_new_tokens=60)
    assert trace.end is not None
    words = [word.strip(".,:;!?'\"()") for word in trace.end.text.lower().split()]
    known = {"the", "a", "to", "of", "and", "you", "your", "is", "are", "it", "can", "that", "in", "i", "for", "be", "with"}
    assert len(words) > 15 and sum(word in known for word in words) > 0.2 * len(words)
