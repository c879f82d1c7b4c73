"""Tiny random heads in the layouts others publish, and what such heads compute, written out from the papers' formulas."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from specviz.drafting.networks.eagle_head import EagleRuntime, PublishedEagleHead
from specviz.models.hub.published import Fit, Repository, open_repository
from tests.support.referee.decoder_layer import below, decoder_layer, norm
from tests.support.tiny.text import tiny_llama

VOCAB, HIDDEN, LAYERS = 48, 32, 2
HEADS, KV_HEADS, HEAD_SIZE, INNER, DRAFTED = 4, 2, 6, 40, 20  # head_size is not hidden / heads
CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLMEagle3"],
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "num_hidden_layers": 1,
    "head_dim": HEAD_SIZE,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "rope_theta": 5000.0,
    "max_position_embeddings": 128,
    "vocab_size": VOCAB,
    "draft_vocab_size": DRAFTED,
    "eagle_aux_hidden_state_layer_ids": [0, 1, 2],
}


def target(layers: int = LAYERS) -> Fit:
    model = tiny_llama()
    return Fit("tiny", layers, model.get_input_embeddings().weight, model.get_output_embeddings().weight)


def feature_tensors(seed: int = 0, hidden: int = HIDDEN, vocab: int = VOCAB) -> dict[str, Tensor]:
    """EAGLE-3 heads as published."""
    generator = torch.Generator().manual_seed(seed)

    def drawn(*shape: int) -> Tensor:
        return 0.3 * torch.randn(shape, generator=generator)

    ids = torch.randperm(vocab, generator=generator)[:DRAFTED].sort().values
    shapes = {
        "fc": (hidden, 3 * hidden), "midlayer.self_attn.q_proj": (HEADS * HEAD_SIZE, 2 * hidden),
        "midlayer.self_attn.k_proj": (KV_HEADS * HEAD_SIZE, 2 * hidden),
        "midlayer.self_attn.v_proj": (KV_HEADS * HEAD_SIZE, 2 * hidden),
        "midlayer.self_attn.o_proj": (hidden, HEADS * HEAD_SIZE), "midlayer.mlp.gate_proj": (INNER, hidden),
        "midlayer.mlp.up_proj": (INNER, hidden), "midlayer.mlp.down_proj": (hidden, INNER), "lm_head": (DRAFTED, hidden),
    }  # fmt: skip
    tensors = {f"{name}.weight": drawn(*shape) for name, shape in shapes.items()}
    tensors["d2t"] = ids - torch.arange(DRAFTED)
    tensors["t2d"] = torch.zeros(vocab, dtype=torch.bool).index_fill(0, ids, True)
    for name in ("hidden_norm", "input_layernorm", "post_attention_layernorm"):
        tensors[f"midlayer.{name}.weight"] = 1 + drawn(hidden)
    return {**tensors, "norm.weight": 1 + drawn(hidden)}


EAGLE4: dict[str, Any] = {
    **{name: value for name, value in CONFIG.items() if name != "draft_vocab_size"},
    "architectures": ["LlamaForCausalLMEagle4"],
    "model_type": "llama",
    "fc_norm": True,
    "norm_output": True,
    "layer_types": ["sliding_attention"],
    "sliding_window": 24,
    "efficient_lm_head_config": {"type": "low_rank", "rank": 8, "num_candidates": 16},
}


def eagle4_tensors(seed: int = 0) -> dict[str, Tensor]:
    """EAGLE-4's head as NVIDIA's NeMo AutoModel exports it: the whole vocabulary, and the two factors of a low-rank head."""
    generator = torch.Generator().manual_seed(seed)
    tensors = {name.replace("midlayer.", "layers.0."): value for name, value in feature_tensors(seed).items()}
    del tensors["d2t"], tensors["t2d"]
    shapes = {"lm_head": (VOCAB, HIDDEN), "efficient_lm_head": (VOCAB, 8), "efficient_lm_head_down_proj": (8, HIDDEN)}
    tensors |= {f"{name}.weight": torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    return tensors | {f"fc_norm.{tap}.weight": 1 + 0.3 * torch.randn(HIDDEN, generator=generator) for tap in range(3)}


NARROW: dict[str, Any] = {
    **{name: value for name, value in CONFIG.items() if name not in ("draft_vocab_size", "eagle_aux_hidden_state_layer_ids")},
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "bias": True,
}


def narrow_tensors(layers: int = 1, biased: bool = False, seed: int = 0) -> dict[str, Tensor]:
    """EAGLE-1 or EAGLE-2 heads as published; ``biased`` as Qwen2's have queries, keys and values."""
    generator = torch.Generator().manual_seed(seed)
    shapes: dict[str, tuple[int, ...]] = {"fc.weight": (HIDDEN, 2 * HIDDEN), "fc.bias": (HIDDEN,)}
    for layer in range(layers):
        own: dict[str, tuple[int, ...]] = {}
        for part, heads in {"q": HEADS, "k": KV_HEADS, "v": KV_HEADS}.items():
            own[f"self_attn.{part}_proj.weight"] = (heads * HEAD_SIZE, HIDDEN)
            if biased:
                own[f"self_attn.{part}_proj.bias"] = (heads * HEAD_SIZE,)
        own |= {"self_attn.o_proj.weight": (HIDDEN, HEADS * HEAD_SIZE), "mlp.gate_proj.weight": (INNER, HIDDEN)}
        own |= {"mlp.up_proj.weight": (INNER, HIDDEN), "mlp.down_proj.weight": (HIDDEN, INNER)}
        norms = ("post_attention_layernorm", "input_layernorm")[: 1 + bool(layer)]
        shapes |= {f"layers.{layer}.{name}": shape for name, shape in (own | {f"{n}.weight": (HIDDEN,) for n in norms}).items()}
    return {name: ("norm" in name) + 0.3 * torch.randn(shape, generator=generator) for name, shape in shapes.items()}


def parallel_tensors(heads: int = 3, blocks: int = 1, start: str = "", seed: int = 0) -> dict[str, Tensor]:
    """Medusa heads as published."""
    generator = torch.Generator().manual_seed(seed)
    found = {}
    for head in range(heads):
        for block in range(blocks):
            found[f"{start}{head}.{block}.linear.weight"] = 0.3 * torch.randn(HIDDEN, HIDDEN, generator=generator)
            found[f"{start}{head}.{block}.linear.bias"] = 0.3 * torch.randn(HIDDEN, generator=generator)
        found[f"{start}{head}.{blocks}.weight"] = torch.randn(VOCAB, HIDDEN, generator=generator)
    return found


def saved(folder: Path, tensors: dict[str, Tensor], config: dict[str, Any] | None) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    save_file({name: value.contiguous() for name, value in tensors.items()}, folder / "model.safetensors")
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config))
    return folder


def opened(folder: Path, tensors: dict[str, Tensor], config: dict[str, Any] | None) -> Repository:
    return open_repository(str(saved(folder, tensors, config)))


def expected_logits(
    tensors: dict[str, Tensor], embedding: Tensor, tokens: Tensor, features: Tensor, positions: Tensor | None = None
) -> Tensor:
    """EAGLE-3's drafter over a text, by its paper's formulas: tokens i + 1 [row], features i [row, 3 * hidden]. ``positions``
    [row, rate] are given where each rate turns by a position of its own."""
    part, layer, eps = below(tensors, ""), below(tensors, "midlayer."), CONFIG["rms_norm_eps"]
    fused = features @ part["fc.weight"].T
    entering = ((embedding[tokens], "input_layernorm"), (fused, "hidden_norm"))
    inputs = torch.cat([norm(rows, layer[f"{name}.weight"], eps) for rows, name in entering], dim=-1)
    places = torch.arange(len(tokens)) if positions is None else positions
    x = decoder_layer(layer, fused, places, HEADS, CONFIG["rope_theta"], eps, inputs)
    return norm(x, part["norm.weight"], eps) @ part["lm_head.weight"].T


def logits_of(head: PublishedEagleHead, tokens: Tensor, features: Tensor) -> Tensor:
    """Logits [row, support] of the first drafted token below each place of a text."""
    return drafted_logits(head, tokens, features, 1)[0]


def drafted_logits(head: PublishedEagleHead, tokens: Tensor, features: Tensor, depth: int) -> list[Tensor]:
    """Logits [row, support] by depth, the text itself being what is drafted: row i at depth d follows tokens[i + d - 1].
    The tokens that are wanted behind the text's end are its first ones, and nobody should look at those rows."""
    runtime, rows = EagleRuntime(head), len(tokens)
    cache, place = runtime.open(rows * depth), torch.arange(rows)
    cache.reserve(rows * depth)
    own, mask, states, logits = torch.eye(rows).bool(), torch.ones(rows, rows).tril().bool(), runtime.fuse(features), []
    for level in range(depth):
        states = runtime(tokens.roll(-level), states, place + level, cache, rows * level, mask)
        logits.append(runtime.logits(states))
        mask = torch.cat((mask, own), dim=1)
    return logits


def text() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(9)
    tokens = torch.randint(VOCAB, (7,), generator=generator)
    return tokens, torch.randn(7, 3 * HIDDEN, generator=generator, dtype=torch.float64)
