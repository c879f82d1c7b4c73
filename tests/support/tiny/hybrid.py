"""Tiny random models with recurrent layers: Mamba-2's in a hybrid, a pure and Granite's model, the delta rule's in Qwen's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import transformers as tf

from specviz.targets.hybrid import HybridTarget

VOCAB = 48
_BASE: dict[str, Any] = {
    "hidden_size": 32, "initializer_range": 0.25, "tie_word_embeddings": False, "bos_token_id": None, "eos_token_id": None,
    "pad_token_id": None,
}  # fmt: skip
_MAMBA: dict[str, Any] = {
    "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "mamba_n_heads": 4, "mamba_d_head": 16,
    "mamba_d_state": 8, "mamba_n_groups": 2, "mamba_d_conv": 4, "mamba_chunk_size": 8,
}  # fmt: skip
"""Mamba-2 layers with two groups beside attention."""
_DELTA: dict[str, Any] = {
    "intermediate_size": 48, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 12,
    "linear_conv_kernel_dim": 4,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5,
                        "mrope_section": [2, 1, 1], "mrope_interleaved": True},
}  # fmt: skip
"""A shape of Qwen3.5 in which no two sizes are the same by chance."""
SHAPE: dict[str, Any] = {
    "attn_layer_indices": [0], "mamba_n_heads": 4, "mamba_d_head": 8, "mamba_d_state": 8, "mamba_n_groups": 2, "mamba_expand": 1,
    "mamba_chunk_size": 8, "mamba_proj_bias": True,
}  # fmt: skip
"""Shape of a mixer in the tiny Llama's second layer."""
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "shared_expert_intermediate_size": 24}


def _made(kind: type, config: type, seed: int, dtype: torch.dtype, vocab: int, shape: dict[str, Any]) -> Any:
    torch.manual_seed(seed)
    return _lively(kind(config(vocab_size=vocab, **_BASE | shape)), dtype)


def hybrid(seed: int = 0, dtype: torch.dtype = torch.float64, context: int = 1024, vocab: int = VOCAB) -> Any:
    """Two Mamba-2 layers around one of attention, decays and time steps that matter."""
    shape = _MAMBA | {"intermediate_size": 48, "attn_layer_indices": [1], "max_position_embeddings": context}
    return _made(tf.BambaForCausalLM, tf.BambaConfig, seed, dtype, vocab, shape)


def pure(seed: int = 0, dtype: torch.dtype = torch.float64, vocab: int = VOCAB, **changes: Any) -> Any:
    """Three Mamba-2 layers and nothing else."""
    shape = {
        "num_hidden_layers": 3, "expand": 2, "num_heads": 4, "head_dim": 16, "state_size": 8, "n_groups": 2, "conv_kernel": 4,
        "chunk_size": 8, "residual_in_fp32": False,
    }  # fmt: skip
    return _made(tf.Mamba2ForCausalLM, tf.Mamba2Config, seed, dtype, vocab, shape | changes)


def granite(seed: int = 0, dtype: torch.dtype = torch.float64, context: int = 1024, vocab: int = VOCAB, experts: int = 0) -> Any:
    """Granite 4.0 H's shape: two Mamba-2 layers, one of attention without positions, four multipliers."""
    shape = _MAMBA | {
        "intermediate_size": 24, "shared_intermediate_size": 48, "layer_types": ["mamba", "attention", "mamba"],
        "mamba_expand": 2, "num_local_experts": experts, "num_experts_per_tok": 2 if experts else 0,
        "position_embedding_type": "nope", "embedding_multiplier": 3.0, "logits_scaling": 2.0, "residual_multiplier": 0.7,
        "attention_multiplier": 0.3, "max_position_embeddings": context,
    }  # fmt: skip
    return _made(tf.GraniteMoeHybridForCausalLM, tf.GraniteMoeHybridConfig, seed, dtype, vocab, shape)


def delta(seed: int = 0, dtype: torch.dtype = torch.float64, context: int = 1024, vocab: int = VOCAB, **changes: Any) -> Any:
    """Qwen3.5's text model: three layers of the gated delta rule, one of gated attention."""
    shape = _DELTA | {"max_position_embeddings": context} | changes
    return _made(tf.Qwen3_5ForCausalLM, tf.Qwen3_5TextConfig, seed, dtype, vocab, shape)


def delta_experts(
    seed: int = 0, dtype: torch.dtype = torch.float64, context: int = 1024, vocab: int = VOCAB, **changes: Any
) -> Any:
    """Qwen3-Next: the same with experts, and projections dealt out by key head."""
    rope = {name: value for name, value in _DELTA["rope_parameters"].items() if "mrope" not in name}
    shape = _DELTA | EXPERTS | {"max_position_embeddings": context, "rope_parameters": rope} | changes
    return _made(tf.Qwen3NextForCausalLM, tf.Qwen3NextConfig, seed, dtype, vocab, shape)


def delta_moe(seed: int = 0) -> Any:
    """Qwen3.5's text model with experts, its time steps as they are drawn."""
    shape = {name: value for name, value in _DELTA.items() if name != "intermediate_size"} | EXPERTS
    torch.manual_seed(seed)
    config = tf.Qwen3_5MoeTextConfig(vocab_size=VOCAB, max_position_embeddings=256, **_BASE | shape)
    return as_drawn(tf.Qwen3_5MoeForCausalLM(config))


def as_drawn(model: Any) -> Any:
    """The model as it was initialised, with a louder head."""
    model.set_experts_implementation("eager")  # the fused one has no float64
    with torch.no_grad():
        model.get_output_embeddings().weight.mul_(4)
    return model.eval().double().requires_grad_(False)


def _lively(model: Any, dtype: torch.dtype) -> Any:
    """Time steps, decays and skips that differ from head to head, and a text that is not constant."""
    with torch.no_grad():
        for module in model.modules():
            if hasattr(module, "dt_bias"):
                module.dt_bias.copy_(torch.randn_like(module.dt_bias) - 1)
                module.A_log.copy_(torch.rand_like(module.A_log) * 2 - (2 if hasattr(module, "head_k_dim") else 0))
                module.conv1d.weight.mul_(2)
            if hasattr(module, "D"):
                module.D.copy_(torch.randn_like(module.D))
            if type(module).__name__ in {"Qwen3_5RMSNorm", "Qwen3NextRMSNorm"}:
                module.weight.copy_(0.2 * torch.randn_like(module.weight))  # stored as the distance from one
        model.get_output_embeddings().weight.mul_(4)
    if hasattr(model, "set_experts_implementation"):
        model.set_experts_implementation("eager")  # the fused one has no float64
    return model.eval().to(dtype).requires_grad_(False)


def target(model: Any, eos: Sequence[int] = (), tier: str = "auto") -> HybridTarget:
    return HybridTarget(model, "tiny", eos, tier)


def random_parents(nodes: int, generator: np.random.Generator, branch: float = 0.5) -> tuple[int, ...]:
    """A tree in which a node hangs from the one before it, or with probability ``branch`` from any before it."""
    return (-1, *(i - 1 if generator.random() > branch else int(generator.integers(0, i)) for i in range(1, nodes)))


def near(model: Any, amount: float, seed: int = 1) -> Any:
    """A copy of ``model`` with noise on its matrices: a draft model that is often but not always right."""
    torch.manual_seed(seed)
    copy = type(model)(model.config).eval().to(model.dtype).requires_grad_(False)
    copy.load_state_dict(model.state_dict())
    for weight in copy.parameters():
        if weight.ndim == 2:
            weight += amount * torch.randn_like(weight)
    return copy.to(model.device)
