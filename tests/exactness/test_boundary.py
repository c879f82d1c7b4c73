"""Rotary factors that depend on the length of a text: exact methods write what ``generate`` writes, across the limit too."""

from functools import cache
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, Gemma3TextConfig, LlamaConfig, MistralConfig, Phi3Config, PhimoeConfig

from specviz.engine.interfaces import Composition
from specviz.engine.sampling import Warp
from specviz.errors import BadInput, ModelUnavailable
from specviz.targets.hybrid import HybridTarget
from specviz.targets.layers import boundary_of
from specviz.targets.text import TextTarget
from specviz.targets.text_rows import TextRows
from tests.support.rounds import entries
from tests.support.tiny.hybrid import hybrid
from tests.support.tiny.text import composed, decode, parts_for

LIMIT = 30
LONG = {"rope_type": "longrope", "rope_theta": 10000.0, "short_factor": [1.0] * 4, "long_factor": [1.0, 2.0, 4.0, 9.0]}
FLAT = {**LONG, "original_max_position_embeddings": LIMIT, "factor": 4.0}
SHAPE: dict[str, Any] = {
    "vocab_size": 40,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "initializer_range": 0.3,
    "tie_word_embeddings": False,
    "max_position_embeddings": 128,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
KINDS = {
    "phi3": lambda: Phi3Config(**SHAPE, rope_parameters=dict(LONG), original_max_position_embeddings=LIMIT),
    "phimoe": lambda: PhimoeConfig(
        **SHAPE, rope_parameters={**FLAT, "short_mscale": 1.0, "long_mscale": 1.4}, num_local_experts=4
    ),
    "llama": lambda: LlamaConfig(**SHAPE, rope_parameters=dict(FLAT)),
    "mistral": lambda: MistralConfig(**SHAPE, rope_parameters=dict(FLAT), sliding_window=8),
    "gemma3_text": lambda: Gemma3TextConfig(
        **SHAPE,
        head_dim=8,
        sliding_window=8,
        layer_types=["sliding_attention", "full_attention"],
        rope_parameters={"sliding_attention": {"rope_type": "default", "rope_theta": 1e4}, "full_attention": dict(FLAT)},
    ),
    "dynamic": lambda: LlamaConfig(
        **{**SHAPE, "max_position_embeddings": 60},
        rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0},
    ),
}
METHODS = ("autoregressive", "prompt_lookup", "suffix_decoding", "token_recycling", "speculative_sampling")


@cache
def _model(kind: str) -> Any:
    torch.manual_seed(0)
    config = KINDS[kind]()
    config._experts_implementation = "eager"
    return AutoModelForCausalLM.from_config(config, attn_implementation="eager").double().eval().requires_grad_(False)


def _target(kind: str) -> TextTarget:
    target = TextTarget(_model(kind), kind, ())
    target.piece = 7  # a prompt is read in many passes
    return target


def _composed(method: str, target: TextTarget) -> Composition:
    return composed(method, {}, parts_for(target, Warp(), _target(target.name)))


@cache
def _generated(kind: str, length: int) -> tuple[list[int], list[int]]:
    """A prompt of ``length`` tokens, full of repetitions, and what transformers writes behind it."""
    prompt = [token for start in range(length) for token in (5, 9, 2, 31, 17)][:length]
    with torch.inference_mode():
        told = _model(kind).generate(torch.tensor([prompt]), max_new_tokens=60 - length, do_sample=False)
    return prompt, told[0, length:].tolist()


@pytest.mark.spread(8)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("length", [2, LIMIT - 1, LIMIT, LIMIT + 1])
@pytest.mark.parametrize("kind", list(KINDS))
def test_a_run_across_the_limit_writes_what_generate_writes(kind, length, method):
    target, (prompt, expected) = _target(kind), _generated(kind, length)
    assert target.boundary == (0 if kind == "dynamic" else LIMIT)
    run = decode(target, _composed(method, target), prompt, len(expected))
    assert run.ids == expected
    assert len(set(expected)) > 3, "a constant text would hide a wrong position"


@pytest.mark.parametrize("kind", ["phi3", "phimoe", "llama"])
def test_long_factors_matter_here(kind):
    """With the short ones alone the text would be another one."""
    _, expected = _generated(kind, LIMIT - 9)
    short = KINDS[kind]()
    short.rope_parameters["long_factor"] = short.rope_parameters["short_factor"]
    short._experts_implementation = "eager"
    other = AutoModelForCausalLM.from_config(short, attn_implementation="eager").double().eval()
    other.load_state_dict(_model(kind).state_dict())
    prompt, _ = _generated(kind, LIMIT - 9)
    told = other.generate(torch.tensor([prompt]), max_new_tokens=len(expected), do_sample=False)[0, len(prompt) :].tolist()
    assert told[:9] == expected[:9]
    assert kind == "phimoe" or told != expected


def test_a_session_that_goes_back_reads_with_short_factors_again():
    target, (prompt, _) = _target("phi3"), _generated("phi3", LIMIT + 9)
    short, session = target.open(80), target.open(80)
    session.prefill(prompt)
    session.rewind(15)
    # The same passes: the eager kernel's softmax is float32, and its rounding depends on the width of a pass.
    short.prefill(prompt[:15])
    for each in (short, session):
        each.prefill(prompt[15:20])
    for one, other in zip(entries(session), entries(short), strict=True):
        assert torch.equal(one[0], other[0]) and torch.equal(one[1], other[1])


def test_targets_that_do_not_follow_refuse():
    target = _target("phi3")
    assert TextRows(target, [LIMIT, 9]), "no row of them comes to the limit"
    with pytest.raises(BadInput, match="run the prompts one after another"):
        TextRows(target, [LIMIT + 1, 9])
    recurrent = hybrid()
    recurrent.config.rope_parameters = FLAT
    with pytest.raises(ModelUnavailable, match=f"change beyond {LIMIT} tokens"):
        HybridTarget(recurrent, "hybrid", ())


def test_a_limit_beyond_the_context_is_none():
    assert boundary_of(LlamaConfig(**{**SHAPE, "max_position_embeddings": LIMIT}, rope_parameters=dict(FLAT))) == 0
