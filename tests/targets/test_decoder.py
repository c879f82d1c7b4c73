"""A decoder's passes by region: what the model computes, from graphs too, in few kernels, and compiled once for all layers."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch._dynamo.utils import counters
from transformers import AutoModelForCausalLM, LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config

from specviz.engine.regions import FOLDER, Regions
from specviz.engine.tree import DraftTree
from specviz.errors import BadInput
from specviz.targets import decoder, text
from specviz.targets.decoder import Decoder, enter, layer, leave
from specviz.targets.text import TextTarget
from tests.support.emulated_cuda import emulated_cuda
from tests.support.kernels import kernels, triton_code
from tests.support.tiny.text import decode, tiny_llama, tiny_target
from tests.support.worlds.text import GREEDY, PROMPT, compose

SHAPE = {
    "vocab_size": 48,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "initializer_range": 0.3,
}
KINDS = {
    "groups of two": lambda: LlamaConfig(**SHAPE),
    "one group": lambda: LlamaConfig(**{**SHAPE, "num_key_value_heads": 1}),
    "no groups": lambda: LlamaConfig(**{**SHAPE, "num_key_value_heads": 4}, tie_word_embeddings=True),
    "biases": lambda: Qwen2Config(**SHAPE),
    "norms of heads": lambda: Qwen3Config(**SHAPE),
}
NODES = [7, 3, 9, 4, 11, 2]
PARENTS = (-1, 0, 0, 1, 1, 2)


def model(config):
    torch.manual_seed(0)
    made = AutoModelForCausalLM.from_config(config).double().eval().requires_grad_(False)
    for name, weight in made.named_parameters():
        if "norm" in name or "bias" in name:
            weight.add_(0.3 * torch.randn_like(weight))
    return made


@pytest.fixture
def uncompiled(monkeypatch):
    """Regions that run as they are written, at once."""
    monkeypatch.setattr(decoder, "compiled", lambda function: function)
    monkeypatch.setattr(text, "obstacle", lambda device: "")
    monkeypatch.setattr(Regions, "ready", lambda regions, width, columns: True)


@pytest.mark.parametrize("kind", KINDS)
def test_the_regions_compute_what_the_model_does(kind, uncompiled):
    taps, made, passes = (0, 1, 3), model(KINDS[kind]()), []
    for tier in ("eager", "compiled"):
        target = TextTarget(made, kind, (), tier)
        session = target.open(60, taps)
        session.prefill(PROMPT)
        first = session.score(DraftTree.of(NODES, PARENTS, target.device))
        kept = first.logits.clone(), {tap: first.hidden[tap].clone() for tap in taps}
        session.keep([0, 2, 5])
        passes.append((kept, session.score(DraftTree.of([6], (-1,), target.device)).logits.clone()))
        session.close()
    # The norms and the rotary angles are single, as in transformers.
    torch.testing.assert_close(passes[1], passes[0], rtol=1e-4, atol=1e-5)


def test_joined_matrices_are_in_memory_once():
    made = model(KINDS["biases"]())
    before = [part.weight.clone() for part in (made.model.layers[1].self_attn.k_proj, made.model.layers[1].mlp.up_proj)]
    own = Decoder(made).layers[1]
    attention, mlp = made.model.layers[1].self_attn, made.model.layers[1].mlp
    assert attention.k_proj.weight.untyped_storage().data_ptr() == own[1].untyped_storage().data_ptr()
    assert mlp.up_proj.weight.untyped_storage().data_ptr() == own[6].untyped_storage().data_ptr()
    assert torch.equal(attention.k_proj.weight, before[0]) and torch.equal(mlp.up_proj.weight, before[1])


@pytest.mark.parametrize(
    ("config", "why"),
    [
        (MistralConfig(**SHAPE, sliding_window=None), "not mistral"),
        (LlamaConfig(**SHAPE, mlp_bias=True), "biases that compiled passes do not compute"),
    ],
)
def test_another_architecture_is_refused_by_name_and_stays_plain(config, why):
    made = model(config)
    with pytest.raises(BadInput, match=f"{why}. Choose --tier graph"):
        TextTarget(made, "other", (), "compiled")
    with emulated_cuda():
        target = TextTarget(made.to("cuda"), "other", (), "auto")
        assert target.tier == "graph" and target.decoder is None


def test_without_a_compiler_it_is_said(monkeypatch):
    monkeypatch.setattr("shutil.which", lambda name: None)
    with pytest.raises(BadInput, match=r"no C\+\+ compiler"):
        tiny_target("compiled")


@pytest.mark.parametrize("name", ["autoregressive", "eagle3"])
def test_regions_are_captured_in_graphs(name, uncompiled):
    values = {"depth": 3, "width": 4, "nodes": 12, "rule": "match"} if name == "eagle3" else {}
    here = tiny_target()
    expected = decode(here, compose(name, values, here, GREEDY), PROMPT, 40)
    with emulated_cuda():
        there = TextTarget(tiny_llama().to("cuda"), "tiny", (), "compiled")
        run = decode(there, compose(name, values, there, GREEDY), PROMPT, 40)
        assert run.ids == expected.ids and run.outcome.captures > 0


@pytest.mark.slow
def test_all_layers_and_caches_share_one_region_a_shape(monkeypatch):
    monkeypatch.setattr(Regions, "background", False)
    torch._dynamo.reset()
    counters.clear()
    target = TextTarget(model(LlamaConfig(**SHAPE)), "three layers", (), "compiled")
    for capacity in (60, 600):  # the memory of another cache has another length
        session = target.open(capacity, (1,))
        session.prefill(PROMPT)
        for threads, nodes in ((1, 1), (1, 6), (2, 1)):
            torch.set_num_threads(threads)
            session.score(DraftTree.of(NODES[:nodes], PARENTS[:nodes], target.device))
            session.keep([0])
        session.close()
        torch.set_num_threads(1)
    assert counters["stats"]["unique_graphs"] == 2 * 3


START = """
import threading
from torch._dynamo.utils import counters
from specviz.targets.decoder import Decoder
from tests.support.tiny.text import tiny_llama
own, told = Decoder(tiny_llama()).regions, []
own.progress = lambda message, share: told.append(message)
while not own.ready(1, 256):
    assert not own.take_news()
    threading.Event().wait(0.2)
print(len(told), counters["inductor"]["fxgraph_cache_hit"], counters["inductor"]["fxgraph_cache_miss"])
"""


@pytest.mark.slow
def test_code_of_another_process_is_found_by_this_start_and_by_later_ones(tmp_path):
    said = [
        subprocess.run(
            [sys.executable, "-c", START], env={**os.environ, FOLDER: str(tmp_path)}, cwd=Path(__file__).parents[2],
            capture_output=True, text=True, timeout=500, check=True,
        ).stdout.split()
        for _ in range(2)
    ]  # fmt: skip
    assert said == [["1", "3", "0"], ["0", "3", "0"]], "compiling begun, and code that was and was not in the cache"


@pytest.mark.parametrize(("rows", "most"), [(1, 9), (8, 12), (32, 12)])
def test_a_layer_is_few_kernels(rows, most):
    pytest.importorskip("triton")
    sizes = {"hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 8, "head_dim": 32}
    calls = dict(Decoder(model(LlamaConfig(**{**SHAPE, **sizes})).bfloat16())._calls(rows, 256))
    assert kernels(layer, calls[layer]) <= most
    assert kernels(enter, calls[enter]) + kernels(leave, calls[leave]) <= 9
    assert "addmm" not in triton_code(layer, calls[layer]), "a hidden copy of the residual stream"
