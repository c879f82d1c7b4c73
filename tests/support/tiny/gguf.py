"""GGUF files of tiny models, written as llama.cpp's converter names things, and their rotary divisors."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from torch import Tensor

_NORM_PLUS_ONE = ("gemma2", "gemma3", "nemotron")


def write_gguf(
    file: Path,
    model: Any,
    tokenizer: Any,
    arch: str,
    fields: Mapping[str, Any] | None = None,
    tensors: Mapping[str, Tensor] | None = None,
    without: Sequence[str] = (),
    named: str = "",
    kind: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32,
    splitter: str = "gpt-2",
) -> Path:
    """``model``, its matrices stored as ``kind``, as a GGUF of the architecture ``arch``, with more ``fields`` under its name
    and more ``tensors``, ``without`` those of these names. ``named`` is the architecture that the file claims."""
    config, named = model.config, named or arch
    writer = gguf.GGUFWriter(str(file), named)
    heads = config.num_attention_heads
    size = getattr(config, "head_dim", None) or config.hidden_size // heads
    facts = {
        "context_length": config.max_position_embeddings, "embedding_length": config.hidden_size,
        "block_count": config.num_hidden_layers, "feed_forward_length": config.intermediate_size, "head_count": heads,
        "head_count_kv": getattr(config, "num_key_value_heads", heads), "key_length": size, "value_length": size,
        "vocab_size": config.vocab_size,
    }  # fmt: skip
    for fact, value in facts.items():
        getattr(writer, f"add_{fact}")(value)
    for eps in ("rms_norm_eps", "layer_norm_eps", "norm_epsilon", "norm_eps"):
        if hasattr(config, eps):
            (writer.add_layer_norm_rms_eps if eps in ("rms_norm_eps", "norm_eps") else writer.add_layer_norm_eps)(
                getattr(config, eps)
            )
    for name, value in {"rope.dimension_count": size, **(fields or {})}.items():
        kinds = {
            bool: writer.add_bool,
            int: writer.add_uint32,
            float: writer.add_float32,
            str: writer.add_string,
            list: writer.add_array,
        }
        add = kinds[type(value)]
        add(f"{named}.{name}" if not name.startswith("split.") else name, value)
    _add_tokenizer(writer, tokenizer, config.vocab_size, splitter)
    names = gguf.get_tensor_name_map(
        next(kind for kind, name in gguf.MODEL_ARCH_NAMES.items() if name == arch), config.num_hidden_layers
    )
    stored = {}
    for own, value in model.state_dict().items():
        base, _, part = own.rpartition(".")
        if own == "lm_head.weight" and config.tie_word_embeddings:
            continue
        if arch == "llama" and ("q_proj" in own or "k_proj" in own):
            value = value.unflatten(0, (-1, 2, size // 2)).transpose(1, 2).flatten(0, 2)
        stored[f"{names.get_name(base)}.{part}"] = value + 1 if arch in _NORM_PLUS_ONE and own.endswith("norm.weight") else value
    for name, value in {**stored, **(tensors or {})}.items():
        if name not in without:
            form = kind if value.ndim == 2 else gguf.GGMLQuantizationType.F32
            whole = np.ascontiguousarray(value.detach().float().numpy())
            writer.add_tensor(name, gguf.quants.quantize(whole, form), raw_dtype=form)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def _add_tokenizer(writer: gguf.GGUFWriter, tokenizer: Any, rows: int, splitter: str) -> None:
    words = sorted(tokenizer.get_vocab(), key=tokenizer.get_vocab().get)
    words += [f"[PAD{place}]" for place in range(len(words), rows)]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(splitter)
    writer.add_token_list(words)
    writer.add_token_types([3 if word.startswith(("<|", "[PAD")) else 1 for word in words])
    merges = json.loads(tokenizer.backend_tokenizer.to_str())["model"]["merges"]
    writer.add_token_merges([" ".join(pair) for pair in merges])
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(0)
    if tokenizer.chat_template:
        writer.add_chat_template(tokenizer.chat_template)


def llama3_divisors(settings: Mapping[str, Any], size: int) -> Tensor:
    """``rope_freqs.weight`` as llama.cpp's converter computes it from Llama 3.1's settings."""
    low, high, original = (settings[name] for name in ("low_freq_factor", "high_freq_factor", "original_max_position_embeddings"))
    divisors = []
    for rate in settings["rope_theta"] ** -(torch.arange(0, size, 2) / size):
        wavelength = 2 * math.pi / float(rate)
        smooth = (original / wavelength - low) / (high - low)
        divisors.append(1 / ((1 - min(1, max(0, smooth))) / settings["factor"] + min(1, max(0, smooth))))
    return torch.tensor(divisors)
