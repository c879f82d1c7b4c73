"""Tiny random models with Mamba-2 layers: a hybrid and a pure one, and plain sequential references of the recurrence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from transformers import BambaConfig, BambaForCausalLM, Mamba2Config, Mamba2ForCausalLM

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


def _lively(model: Any, dtype: torch.dtype) -> Any:
    """Time steps, decays and skips that differ from head to head, and a text that is not constant."""
    with torch.no_grad():
        for module in model.modules():
            if hasattr(module, "dt_bias"):
                module.dt_bias.copy_(torch.randn_like(module.dt_bias) - 1)
                module.A_log.copy_(torch.rand_like(module.A_log) * 2)
                module.D.copy_(torch.randn_like(module.D))
                module.conv1d.weight.mul_(2)
        model.get_output_embeddings().weight.mul_(4)
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
