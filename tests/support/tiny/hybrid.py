"""Tiny random models with recurrent layers: Mamba-2's in a hybrid, a pure and Granite's model, the delta rule's in Qwen's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from transformers import (
    BambaConfig,
    BambaForCausalLM,
    GraniteMoeHybridConfig,
    GraniteMoeHybridForCausalLM,
    Mamba2Config,
    Mamba2ForCausalLM,
    Qwen3_5ForCausalLM,
    Qwen3_5TextConfig,
    Qwen3NextConfig,
    Qwen3NextForCausalLM,
)

from specviz.targets.hybrid import HybridTarget

VOCAB = 48


def hybrid(seed: int = 0, dtype: torch.dtype = torch.float64, context: int = 1024, vocab: int = VOCAB) -> Any:
    """Two Mamba-2 layers around one of attention, two groups, decays and time steps that matter."""
    torch.manual_seed(seed)
    config = BambaConfig(
        vocab_size=vocab, hidden_size=32, intermediate_size=48, num_hidden_layers=3, attn_layer_indices=[1],
        num_attention_heads=4, num_key_value_heads=2, mamba_n_heads=4, mamba_d_head=16, mamba_d_state=8,
        mamba_n_groups=2, mamba_d_conv=4, mamba_chunk_size=8, initializer_range=0.25, tie_word_embeddings=False,
        max_position_embeddings=context, bos_token_id=None, eos_token_id=None, pad_token_id=None,
    )  # fmt: skip
    return _lively(BambaForCausalLM(config), dtype)


def pure(seed: int = 0, dtype: torch.dtype = torch.float64, vocab: int = VOCAB, **changes: Any) -> Any:
    """Three Mamba-2 layers and nothing else."""
    torch.manual_seed(seed)
    shape: dict[str, Any] = {
        "vocab_size": vocab, "hidden_size": 32, "num_hidden_layers": 3, "expand": 2, "num_heads": 4, "head_dim": 16,
        "state_size": 8, "n_groups": 2, "conv_kernel": 4, "chunk_size": 8, "residual_in_fp32": False,
        "initializer_range": 0.25, "tie_word_embeddings": False, "bos_token_id": None, "eos_token_id": None,
        "pad_token_id": None,
    }  # fmt: skip
    return _lively(Mamba2ForCausalLM(Mamba2Config(**shape | changes)), dtype)


def granite(seed: int = 0, dtype: torch.dtype = torch.float64, context: int = 1024, vocab: int = VOCAB, experts: int = 0) -> Any:
    """Granite 4.0 H's shape: two Mamba-2 layers, one of attention without positions, four multipliers."""
    torch.manual_seed(seed)
    config = GraniteMoeHybridConfig(
        vocab_size=vocab, hidden_size=32, intermediate_size=24, shared_intermediate_size=48, num_hidden_layers=3,
        layer_types=["mamba", "attention", "mamba"], num_attention_heads=4, num_key_value_heads=2, mamba_n_heads=4,
        mamba_d_head=16, mamba_d_state=8, mamba_n_groups=2, mamba_d_conv=4, mamba_chunk_size=8, mamba_expand=2,
        initializer_range=0.25, num_local_experts=experts, num_experts_per_tok=2 if experts else 0,
        position_embedding_type="nope", embedding_multiplier=3.0, logits_scaling=2.0, residual_multiplier=0.7,
        attention_multiplier=0.3, max_position_embeddings=context, tie_word_embeddings=False, bos_token_id=None,
        eos_token_id=None, pad_token_id=None,
    )  # fmt: skip
    return _lively(GraniteMoeHybridForCausalLM(config), dtype)


DELTA: dict[str, Any] = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 16, "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8,
    "linear_value_head_dim": 12, "linear_conv_kernel_dim": 4, "initializer_range": 0.25, "tie_word_embeddings": False,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5,
                        "mrope_section": [2, 1, 1], "mrope_interleaved": True},
    "bos_token_id": None, "eos_token_id": None, "pad_token_id": None,
}  # fmt: skip
"""A shape of Qwen3.5 in which no two sizes are the same by chance."""


def delta(seed: int = 0, dtype: torch.dtype = torch.float64, context: int = 1024, vocab: int = VOCAB, **changes: Any) -> Any:
    """Qwen3.5's text model: three layers of the gated delta rule, one of gated attention."""
    torch.manual_seed(seed)
    config = Qwen3_5TextConfig(vocab_size=vocab, max_position_embeddings=context, **DELTA | changes)
    return _lively(Qwen3_5ForCausalLM(config), dtype)


def delta_experts(
    seed: int = 0, dtype: torch.dtype = torch.float64, context: int = 1024, vocab: int = VOCAB, **changes: Any
) -> Any:
    """Qwen3-Next: the same with experts, and projections dealt out by key head."""
    torch.manual_seed(seed)
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "shared_expert_intermediate_size": 24}
    rope = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}
    shape = DELTA | experts | {"rope_parameters": rope} | changes
    return _lively(Qwen3NextForCausalLM(Qwen3NextConfig(vocab_size=vocab, max_position_embeddings=context, **shape)), dtype)


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


def target(model: Any, eos: Sequence[int] = ()) -> HybridTarget:
    return HybridTarget(model, "tiny", eos)


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
