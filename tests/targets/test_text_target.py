"""A tree scored in one pass equals every path scored alone, on several architectures, kernels and tiers."""

import warnings

import pytest
import torch
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MambaConfig,
    MambaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from specviz.engine.attention import GROUPED
from specviz.engine.tree import DraftTree
from specviz.errors import BadInput, ContextFull, ModelUnavailable
from specviz.targets.text import TextTarget
from tests.support.rounds import entries

SHAPE = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "initializer_range": 0.2,
    "max_position_embeddings": 256,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
WINDOWS = {
    "head_dim": 8,
    "sliding_window": 6,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
}
MODELS = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SHAPE)),
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**SHAPE)),
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**SHAPE, head_dim=8)),
    "gemma3": lambda: Gemma3ForCausalLM(Gemma3TextConfig(**SHAPE, **WINDOWS)),
}
PROMPT = [5, 9, 2, 44, 17, 30, 8, 21, 3, 60, 33, 12]
TREE = DraftTree.of([12, 1, 2, 3, 4, 5, 6, 7], [-1, 0, 0, 1, 2, 2, 4, 4])


def model(kind, attention="sdpa", dtype=torch.float32):
    torch.manual_seed(0)
    made = MODELS[kind]().eval().to(dtype).requires_grad_(False)
    made.set_attn_implementation(attention)
    return made


def alone(made, ids):
    return made(torch.tensor([ids]), use_cache=False).logits[0, -1]


@pytest.mark.spread(8)
@pytest.mark.parametrize("tier", ["eager", "graph"])
@pytest.mark.parametrize("attention", ["sdpa", "eager", GROUPED])
@pytest.mark.parametrize("kind", list(MODELS))
def test_a_tree_pass_equals_every_path_alone(kind, attention, tier):
    if kind == "gemma3" and tier == "graph":
        pytest.skip("sliding windows are refused in the graph tier, which is tested below")
    made = model(kind, attention)
    session = TextTarget(made, kind, (), tier).open(64)
    session.prefill(PROMPT[:-1])
    logits = session.score(TREE).logits
    for node in range(len(TREE)):
        path = [TREE.host_tokens[one] for one in TREE.shape.path(node)]
        assert torch.allclose(logits[node], alone(made, PROMPT[:-1] + path), atol=2e-4)
    session.keep((0, 2, 4, 7))
    after = session.score(DraftTree.of([50], [-1])).logits[0]
    assert torch.allclose(after, alone(made, [*PROMPT, 2, 4, 7, 50]), atol=2e-4)


def test_a_tree_longer_than_the_window_forgets_as_the_model_does():
    made = model("gemma3", dtype=torch.float64)
    session = TextTarget(made, "gemma3", ()).open(64)
    session.prefill(PROMPT[:-1])
    chain = DraftTree.of([12, *range(1, 10)], range(-1, 9))
    logits = session.score(chain).logits
    assert torch.allclose(logits[-1], alone(made, [*PROMPT, *range(1, 10)]), atol=1e-5)


@pytest.mark.parametrize("tier", ["eager", "graph"])
@pytest.mark.parametrize("kind", list(MODELS))
def test_a_prompt_read_in_pieces_is_the_prompt_read_at_once(kind, tier):
    if kind == "gemma3" and tier == "graph":
        pytest.skip("sliding windows are refused in the graph tier")
    target = TextTarget(model(kind, dtype=torch.float64), kind, (), tier)
    whole_session = target.open(64, taps=(1, 3))
    whole = whole_session.prefill(PROMPT)
    target.piece = 5
    session = target.open(64, taps=(1, 3))
    pieces = session.prefill(PROMPT)
    assert session.length == len(PROMPT) and pieces.logits.shape == whole.logits.shape
    assert torch.allclose(pieces.logits, whole.logits, atol=1e-10)
    for layer in (1, 3):
        assert torch.allclose(pieces.hidden[layer], whole.hidden[layer], atol=1e-10)
    for mine, other in zip(entries(session), entries(whole_session), strict=True):
        assert torch.allclose(mine[0], other[0], atol=1e-10) and torch.allclose(mine[1], other[1], atol=1e-10)


@pytest.mark.parametrize("tier", ["eager", "graph"])
def test_models_are_called_by_no_name_that_they_are_about_to_drop(tier):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        session = TextTarget(model("llama"), "llama", (), tier).open(64, taps=(1,))
        session.prefill(PROMPT[:-1])
        session.score(TREE)


def test_layers_that_cannot_branch_are_refused_with_a_reason():
    config = MambaConfig(vocab_size=64, hidden_size=16, num_hidden_layers=2, state_size=4)
    with pytest.raises(ModelUnavailable, match="linear_attention, which cannot hold the branches"):
        TextTarget(MambaForCausalLM(config), "mamba", ())
    hybrid = model("llama")
    hybrid.config.layer_types = ["full_attention", "linear_attention", "full_attention"]
    with pytest.raises(ModelUnavailable, match="linear_attention"):
        TextTarget(hybrid, "hybrid", ())


def test_sliding_windows_are_refused_in_the_graph_tier():
    with pytest.raises(BadInput, match="sliding"):
        TextTarget(model("gemma3"), "gemma3", (), "graph")
    assert TextTarget(model("gemma3"), "gemma3", ()).tier == "eager"


def test_more_than_the_context_is_refused():
    with pytest.raises(ContextFull, match="256"):
        TextTarget(model("llama"), "llama", ()).open(257)
