"""Conversion of a GGUF file into a folder of safetensors."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from gguf import MODEL_ARCH, MODEL_ARCH_NAMES, GGMLQuantizationType, GGUFReader, get_tensor_name_map
from tokenizers import pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GgufConfig

from specviz.errors import ModelUnavailable, OutOfMemory, SpecvizError
from specviz.models.cache import exclusive_loading
from specviz.models.hub.gguf_config import DIVISORS, apply_rotary, apply_settings, field, read_rotary, refuse_other_angles
from specviz.models.hub.opening import LOCAL, first_line

# Splitters that transformers 5.23 rebuilds correctly; it treats any other as GPT-2's, which a warning reports.
_KNOWN_SPLITTERS = frozenset(
    "default gpt-2 llama-bpe llama-v3 llama3 llama4 falcon3 smaug-bpe tekken pixtral qwen2 qwen35 deepseek-r1-qwen "
    "megrez gpt-4o minimax-m2 lfm2".split()
)


def convert(gguf: Path, folder: Path) -> tuple[str, ...]:
    header = _header(gguf)
    where: Any = {"gguf_file": gguf.name, **LOCAL}
    unpacked = {"dtype": _storage(header), "quantization_config": GgufConfig(dequantize=True), "output_loading_info": True}
    try:
        rotary = read_rotary(header, gguf.name)
        with exclusive_loading():
            tokenizer = AutoTokenizer.from_pretrained(gguf.parent, **where)
            config = AutoConfig.from_pretrained(gguf.parent, **where)
            if rotary is not None and hasattr(config, "rope_parameters"):
                apply_rotary(config, rotary)
            unread = apply_settings(config, header, gguf.name)
            opened: Any = AutoModelForCausalLM.from_pretrained(gguf.parent, config=config, **where, **unpacked)
            model, loading_info = opened
    except SpecvizError:
        raise
    except MemoryError as problem:
        raise OutOfMemory(f"{gguf.name} does not fit into memory. Choose a smaller model.") from problem
    except Exception as problem:  # an untrusted file passes through three libraries, each with its own errors
        raise ModelUnavailable(
            f"{gguf.name} cannot be read by transformers ({first_line(problem)}). "
            "Give a folder or hub id with safetensors instead."
        ) from problem
    _refuse_incomplete(gguf.name, header, model, loading_info)
    refuse_other_angles(model, rotary, gguf.name)
    warnings = (*unread, *_mend_splitter(tokenizer, str(field(header, "tokenizer.ggml.pre", ""))))
    # The weights are plain tensors now; transformers refuses to save a model that is still marked as quantised.
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.is_quantized = False
    model.hf_quantizer = None
    with exclusive_loading():
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    return warnings


def _header(gguf: Path) -> GGUFReader:
    """Read a file's header. Raises ModelUnavailable for a file that is damaged, empty, or one part of several."""
    try:
        header = GGUFReader(gguf)
        count, part = int(field(header, "split.count", 1)), int(field(header, "split.no", 0))
    except Exception as problem:  # numpy and struct on damaged bytes
        raise ModelUnavailable(f"{gguf.name} is damaged or no GGUF file ({problem}). Get the file again.") from problem
    if count > 1:
        raise ModelUnavailable(
            f"{gguf.name} is part {part + 1} of {count} of one model. "
            "Merge them with `llama-gguf-split --merge` and give the whole file."
        )
    if not header.tensors:
        raise ModelUnavailable(f"{gguf.name} holds no weights, only a header. Get the file again.")
    return header


def _refuse_incomplete(name: str, header: GGUFReader, model: Any, loading_info: Mapping[str, Any]) -> None:
    """Raise ModelUnavailable unless the file holds all of the model's weights and no others.

    transformers silently ignores unknown tensors, so the numbers in file and model are counted and must be equal. A tied head may
    be stored once more. The file may hold layers after the model's own, which only draft (MTP), and keys and values of layers
    that take them from an earlier one (Gemma 3n and 4).
    """
    config, own = model.config, int(model.config.num_hidden_layers)
    if missing := sorted(loading_info["missing_keys"]):
        raise ModelUnavailable(
            f"{name} lacks {len(missing)} of the weights of a {config.model_type} model ({missing[0]}, …). "
            "Get the whole file, or one that names its architecture rightly."
        )
    shared = own - int(getattr(config, "num_kv_shared_layers", 0) or 0)

    def unused(tensor: str) -> bool:
        block = re.match(r"blk\.(\d+)\.(attn_[kv])?", tensor)
        idle = block is not None and int(block[1]) >= (shared if block[2] else own)
        return idle or tensor in DIVISORS or (config.tie_word_embeddings and tensor == "output.weight")

    stored = {tensor.name: int(tensor.n_elements) for tensor in header.tensors if not unused(tensor.name)}
    held = {value.data_ptr(): value.numel() for value in model.state_dict().values() if value.numel()}
    strange = sorted(loading_info["unexpected_keys"])
    if strange or sum(stored.values()) != sum(held.values()):
        kind = next((arch for arch, kind in MODEL_ARCH_NAMES.items() if kind == config.model_type), MODEL_ARCH.LLAMA)
        names = get_tensor_name_map(kind, own)
        known = {f"{names.get_name(ours.rpartition('.')[0])}.{ours.rpartition('.')[2]}" for ours in model.state_dict()}
        strange += [*sorted(set(stored) - known), "more numbers than it needs"]
        raise ModelUnavailable(
            f"{name} holds {strange[0]}, which a {config.model_type} model has no place for: it may name another architecture "
            "than its own. Get the file again, or give a folder or hub id with safetensors."
        )


def _storage(header: GGUFReader) -> torch.dtype:
    """Number format for the file's matrices: float32 or float16 where they are stored so, bfloat16 where quantised."""
    kinds = {tensor.tensor_type for tensor in header.tensors if len(tensor.shape) > 1}
    if GGMLQuantizationType.F32 in kinds:
        return torch.float32
    return torch.float16 if GGMLQuantizationType.F16 in kinds else torch.bfloat16


def _mend_splitter(tokenizer: Any, splitter: str) -> tuple[str, ...]:
    """Set the splitter that the file names on the tokenizer where transformers does not. Returns warnings.

    "smollm" splits off every digit before GPT-2's rule applies, so that spaces before a number stay together.
    """
    if splitter == "smollm":
        tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
    elif splitter and splitter not in _KNOWN_SPLITTERS:
        return (f"This GGUF cuts text by the rule {splitter!r}, which may be rebuilt only nearly: prompts can differ.",)
    return ()
