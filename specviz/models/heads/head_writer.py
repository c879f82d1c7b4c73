"""Writer of feature heads in the layouts that engines serve: the speculators library's, and the flat one of EAGLE's authors.

vLLM and the library itself read this project's EAGLE-3 heads in the library's layout. By default the embedding, which engines
share with the target, is left out. Raises ModelUnavailable if a layout cannot express a feature of the head.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from specviz.drafting.networks.feature_head import FeatureHead
from specviz.drafting.networks.head_config import EACH, TOGETHER, HeadConventions
from specviz.errors import ModelUnavailable

SPECULATORS = "speculators"
FLAT = "flat"
_GREEDY = {"proposal_type": "greedy", "speculative_tokens": 5, "verifier_accept_k": 1, "accept_tolerance": 0.0}


def write_head(head: FeatureHead, folder: Path, layout: str, verifier: str, own_embedding: bool = False) -> Path:
    """Write ``model.safetensors`` (float32) and ``config.json`` into ``folder`` and return it. ``verifier`` is the hub id of the
    target; ``own_embedding`` writes the embedding too."""
    _refuse(head, layout)
    tensors = {name: value.detach().cpu().float().contiguous().clone() for name, value in head.tensors.items()}
    tensors["lm_head.weight"] = head.head.detach().cpu().float().contiguous().clone()
    if own_embedding:
        tensors["embed_tokens.weight"] = head.embedding.detach().cpu().float().contiguous().clone()
    tensors |= _vocabulary(head)
    if layout == FLAT:
        tensors = {name.replace("layers.0.", "midlayer.", 1): value for name, value in tensors.items()}
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config = LAYOUTS[layout](head, verifier)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    return folder


def _refuse(head: FeatureHead, layout: str) -> None:
    config, how = head.config, head.config.how
    if layout not in LAYOUTS:
        raise ModelUnavailable(f"There is no layout {layout}; choose {' or '.join(LAYOUTS)}.")
    plain = HeadConventions(how.taps)
    fixed = ("head_norm", "embedding_first", "rotary_pairs", "sections", "rates", "rotary_scale")
    strange = [name for name in fixed if getattr(how, name) != getattr(plain, name)]
    if not config.wide or strange:
        what = "projects [embedding; state] (EAGLE-1/2)" if not config.wide else f"computes with {strange[0]}"
        raise ModelUnavailable(f"A head that {what} has no place in the layout {layout}.")
    if layout == FLAT and config.layers > 1:
        raise ModelUnavailable(f"A head of {config.layers} layers has no place in the flat layout; choose {SPECULATORS}.")
    if layout == SPECULATORS and config.bias:
        raise ModelUnavailable(f"A head with a bias in its projection has no place in the layout {SPECULATORS}.")


def _vocabulary(head: FeatureHead) -> dict[str, Tensor]:
    if head.draft_ids is None:
        return {}
    ids = head.draft_ids.cpu().long()
    known = torch.zeros(head.config.vocab_size, dtype=torch.bool).index_fill(0, ids, True)
    return {"d2t": ids - torch.arange(len(ids)), "t2d": known}


def _decoder(head: FeatureHead) -> dict[str, Any]:
    """Settings of the decoder's layers, common to both layouts."""
    config, how = head.config, head.config.how
    settings: dict[str, Any] = {
        "model_type": "qwen3" if config.head_norms else "llama",
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden,
        "intermediate_size": config.inner,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_size,
        "num_hidden_layers": config.layers,
        "hidden_act": "silu",
        "rms_norm_eps": how.eps,
        "attention_bias": config.attention_bias,
        "mlp_bias": config.mlp_bias,
        "max_position_embeddings": 8192,
        "tie_word_embeddings": False,
    }
    if any(how.windows):
        settings["layer_types"] = ["sliding_attention" if window else "full_attention" for window in how.windows]
        settings |= {"sliding_window": max(how.windows), "use_sliding_window": True}
    return settings


def _flags(head: FeatureHead) -> dict[str, Any]:
    how = head.config.how
    return {
        "norm_before_residual": how.normed_residual,
        "norm_before_fc": how.entry_norm == TOGETHER,
        "fc_norm": how.entry_norm == EACH,
        "norm_output": how.feeds_normed,
        "eagle_aux_hidden_state_layer_ids": list(how.taps),
        "draft_vocab_size": len(head.head),
    }


def _speculators(head: FeatureHead, verifier: str) -> dict[str, Any]:
    rope = {"rope_type": "default", "rope_theta": head.config.how.theta}
    return {
        "architectures": ["Eagle3DraftModel"],
        "speculators_model_type": "eagle3",
        "speculators_version": "0.9.0",
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [_GREEDY],
            "verifier": {"name_or_path": verifier, "architectures": ["LlamaForCausalLM"]},
        },
        **_flags(head),
        "target_hidden_size": None,
        "tie_word_embeddings": False,
        "dtype": "float32",
        "transformer_layer_config": {**_decoder(head), "rope_parameters": rope},
    }


def _flat(head: FeatureHead, verifier: str) -> dict[str, Any]:
    settings = {**_decoder(head), **_flags(head), "model_type": "llama"}
    return {"architectures": ["LlamaForCausalLMEagle3"], **settings, "rope_theta": head.config.how.theta, "rope_scaling": None}


LAYOUTS: dict[str, Callable[[FeatureHead, str], dict[str, Any]]] = {SPECULATORS: _speculators, FLAT: _flat}
"""Layouts that can be written, each with the function that makes its config.json."""
