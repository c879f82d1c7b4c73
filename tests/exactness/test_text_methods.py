"""Exact text methods on tiny models beyond the ladder: perfect and hopeless drafts, ends inside a path, extreme temperatures."""

import pytest
import torch

from specviz.engine.sampling import Warp
from tests.support.tiny.text import VOCAB, composed, decode, parts_for, tiny_llama, tiny_target
from tests.support.worlds.text import GREEDY, PROMPT, WARM, baseline, compose

SAMPLED: list[tuple[str, dict[str, object]]] = [
    ("stand", {"rule": "match", "nodes": 40}),
    ("speculative_sampling", {"gamma": 4}),
]


@pytest.mark.spread(1)
@pytest.mark.parametrize(
    ("dtype", "temperature"),
    [
        (torch.float64, 1e-37),
        pytest.param(torch.float32, 1e-40, marks=pytest.mark.slow),
        pytest.param(torch.float64, 1e-300, marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize(("name", "values"), SAMPLED)
def test_next_to_no_temperature_writes_the_greedy_text(name, values, temperature, dtype):
    target, warp = tiny_target("eager", dtype), Warp(temperature)
    run = decode(target, compose(name, values, target, warp), PROMPT, 60, warp)
    assert run.ids == baseline("eager", dtype, GREEDY)[:60]


@pytest.mark.slow
def test_the_longer_a_known_context_the_larger_the_sampled_tree():
    target, memory = tiny_target(), {}

    def steps():
        made = composed("stand", {}, parts_for(target, WARM, memory=memory))
        return decode(target, made, PROMPT, 120, WARM, 7).steps

    first, again = steps(), steps()
    stories = [(step, note.data["rows"]) for step in again for note in step.notes if note.type == "ngram_rows"]
    drafted = {rows[0]["order"]: step.verified for step, rows in stories if rows}
    assert drafted[4] > drafted.get(2, 0)
    assert sum(step.verified for step in again) / len(again) > sum(step.verified for step in first) / len(first)


def test_the_autoregressive_run_is_the_models_own_greedy_text():
    model, prompt = tiny_llama(), torch.tensor([PROMPT])
    expected = model.generate(prompt, max_new_tokens=60, do_sample=False, pad_token_id=0)[0, len(PROMPT) :]
    assert baseline("eager", torch.float64, GREEDY)[:60] == expected.tolist()


def test_the_vocabulary_is_really_used():
    assert len(set(baseline("eager", torch.float64, WARM))) > VOCAB // 3
