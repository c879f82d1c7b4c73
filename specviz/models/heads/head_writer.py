"""Writer of feature heads in layouts that engines serve: the speculators library's, and the flat layout of EAGLE's authors.

vLLM and the library itself read this project's EAGLE-3 heads in the library's layout. By default the embedding is left out,
because engines share the target's.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from specviz.drafting.networks.eagle_head import PublishedEagleHead
from specviz.drafting.networks.head_config import EACH, TOGETHER, HeadConventions
from specviz.errors import ModelUnavailable
from specviz.paths import ASSETS

SPECULATORS, FLAT = "speculators", "flat"


def write_head(head: PublishedEagleHead, folder: Path, layout: str, verifier: str, own_embedding: bool = False) -> Path:
    """Write ``model.safetensors`` (float32) and ``config.json`` into ``folder``, and return ``folder``.

    ``verifier``: hub id of the target. ``own_embedding``: whether to write the embedding too. Raises ModelUnavailable if the
    layout cannot express a feature of the head.
    """
    config, how = head.config, head.config.how
    if layout not in (SPECULATORS, FLAT):
        raise ModelUnavailable(f"There is no layout {layout}; choose {SPECULATORS} or {FLAT}.")
    plain = HeadConventions(how.taps)
    fixed = ("head_norm", "embedding_first", "rotary_pairs", "sections", "rates", "rotary_scale")
    strange = [name for name in fixed if getattr(how, name) != getattr(plain, name)]
    if not config.wide or strange:
        what = "projects [embedding; state] (EAGLE-1/2)" if not config.wide else f"computes with {strange[0]}"
        raise ModelUnavailable(f"A head that {what} does not fit the layout {layout}.")
    if layout == FLAT and config.layers > 1:
        raise ModelUnavailable(f"A head of {config.layers} layers does not fit the flat layout; choose {SPECULATORS}.")
    if layout == SPECULATORS and config.bias:
        raise ModelUnavailable(f"A head with a bias in its projection does not fit the layout {SPECULATORS}.")
    named: dict[str, Tensor] = {**head.tensors, "lm_head.weight": head.head}
    if own_embedding:
        named["embed_tokens.weight"] = head.embedding
    tensors = {name: value.detach().cpu().float().contiguous().clone() for name, value in named.items()}
    if head.draft_ids is not None:
        ids = head.draft_ids.cpu().long()
        known = torch.zeros(config.vocab_size, dtype=torch.bool).index_fill(0, ids, True)
        tensors |= {"d2t": ids - torch.arange(len(ids)), "t2d": known}
    if layout == FLAT:
        tensors = {name.replace("layers.0.", "midlayer.", 1): value for name, value in tensors.items()}
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    settings = json.dumps(_config(head, layout, verifier), indent=2)
    (folder / "config.json").write_text(settings + "\n", encoding="utf-8")
    return folder


def _config(head: PublishedEagleHead, layout: str, verifier: str) -> dict[str, Any]:
    config, how, fixed = head.config, head.config.how, json.loads((ASSETS / "configs.json").read_text("utf-8"))
    decoder: dict[str, Any] = {
        **fixed["decoder"],
        "model_type": "qwen3" if config.head_norms else "llama",
        **{name: getattr(config, field) for name, field in fixed["fields"].items()},
        "rms_norm_eps": how.eps,
    }
    if any(how.windows):
        decoder["layer_types"] = ["sliding_attention" if window else "full_attention" for window in how.windows]
        decoder |= {"sliding_window": max(how.windows), "use_sliding_window": True}
    flags = {
        "norm_before_residual": how.normed_residual,
        "norm_before_fc": how.entry_norm == TOGETHER,
        "fc_norm": how.entry_norm == EACH,
        "norm_output": how.feeds_normed,
        "eagle_aux_hidden_state_layer_ids": list(how.taps),
        "draft_vocab_size": len(head.head),
    }
    if layout == FLAT:
        return {**decoder, **flags, **fixed[FLAT], "rope_theta": how.theta}
    whole = {**fixed[SPECULATORS], **flags}
    whole["speculators_config"]["verifier"]["name_or_path"] = verifier
    rope = {"rope_type": "default", "rope_theta": how.theta}
    return {**whole, "transformer_layer_config": {**decoder, "rope_parameters": rope}}
