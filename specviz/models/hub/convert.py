"""Conversion of a GGUF file into a folder of safetensors.

transformers reads few settings of a GGUF file; of rotary positions, mostly just ``rope.freq_base``. This module also reads
``rope.scaling.*``, ``rope.dimension_count`` and the tensors of divisors. A setting that changes the computation and that
transformers cannot represent is refused by name.

The loaded model's rotary frequencies are then compared with the file's, and a mismatch is refused. Sizes need no check, because
transformers refuses tensors of the wrong shape. Axis name: ``pair`` (two dimensions that rotate together).
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from gguf import MODEL_ARCH, MODEL_ARCH_NAMES, GGMLQuantizationType, GGUFReader, get_tensor_name_map
from tokenizers import pre_tokenizers
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GgufConfig, LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from specviz.errors import ModelUnavailable, OutOfMemory, SpecvizError, shown
from specviz.models.cache import exclusive_loading
from specviz.models.hub.opening import LOCAL, first_line
from specviz.paths import ASSETS

DIVISORS = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")
"""Tensors of divisors, one per pair, by which rotary frequencies are divided."""
_SCALING = frozenset(
    """type factor original_context_length attn_factor finetuned
    yarn_ext_factor yarn_attn_factor yarn_beta_fast yarn_beta_slow""".split()
)
"""Supported settings under ``rope.scaling.``; any other is refused by name, because it may change the frequencies."""
_LLAMA3 = {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
"""Rotary scaling of Llama 3.1 to 3.3 without its factor; llama.cpp's converter stores only the resulting divisors."""
_FULL, _SLIDING = "full_attention", "sliding_attention"
_TABLES = tomllib.loads((ASSETS / "gguf_settings.toml").read_text("utf-8"))
PLACES: Mapping[str, Sequence[str]] = _TABLES["places"]
"""Attributes of a transformers config for each GGUF setting; the first attribute that exists is set."""
IDLE: Mapping[str, Sequence[Any]] = _TABLES["idle"]
"""Values at which a setting without an equivalent has no effect; a file with any other value is refused."""
SIZES = frozenset(_TABLES["sizes"])
"""Settings that transformers reads, that tensor shapes imply, or that do not affect the output."""
APART = ("attention.scale", "attention.sliding_window_pattern")
"""Settings that :func:`apply_settings` handles one by one."""
_MIXED_SCALE = {"gemma2": 46, "gemma3": 62}
"""Numbers of layers of the 27B models, whose attention scale llama.cpp computes from the hidden size; files do not store it."""


def field(header: GGUFReader, name: str, default: Any) -> Any:
    """Return a setting of the file, or ``default`` if it is unset."""
    stored = header.get_field(name)
    return default if stored is None else stored.contents()


@dataclass(frozen=True)
class GgufRotary:
    """Rotary settings of a file in transformers' form, each with the number of rotating dimensions per head.

    ``full``: layers with full attention. ``sliding``: layers with a sliding window, if the file sets these apart.
    """

    full: tuple[Mapping[str, Any], int]
    sliding: tuple[Mapping[str, Any], int] | None


def read_rotary(header: GGUFReader, name: str) -> GgufRotary | None:
    """Return the rotary settings of a file, None if there are none. Raises ModelUnavailable if transformers cannot represent
    them."""
    arch = str(field(header, "general.architecture", ""))
    about = f"{arch}.rope."
    said = {key.removeprefix(about): header.fields[key].contents() for key in header.fields if key.startswith(about)}
    divisors = {tensor.name: torch.tensor(tensor.data).double() for tensor in header.tensors if tensor.name in DIVISORS}
    if not said and not divisors:
        return None
    scaling = {key.removeprefix("scaling."): value for key, value in said.items() if key.startswith("scaling.")}
    if strange := sorted(set(scaling) - _SCALING):
        raise _inexpressible(name, f"sets {about}scaling.{strange[0]}")
    heads = field(header, f"{arch}.attention.head_count", 1)
    wide = int(field(header, f"{arch}.embedding_length", 0)) // max(1, int(max(heads) if isinstance(heads, list) else heads))
    size = int(said.get("dimension_count") or field(header, f"{arch}.attention.key_length", 0) or wide)
    base, context = float(said.get("freq_base", 10000.0)), int(field(header, f"{arch}.context_length", 0))
    # llama.cpp reads a factor without a type as linear scaling; scale_linear is its old name.
    factor = float(scaling.get("factor") or said.get("scale_linear") or 1.0)
    kind = str(scaling.get("type", "linear")) if factor != 1 or "type" in scaling else "none"
    original = int(scaling.get("original_context_length") or context)
    attention = float(scaling.get("attn_factor", 1.0)) * float(scaling.get("yarn_attn_factor", 1.0))
    if any(len(divisor) != size // 2 or not bool((divisor > 0).all()) for divisor in divisors.values()):
        raise ModelUnavailable(f"{name} has rotary divisors that do not fit its {size} dimensions. Download the file again.")
    long, short, freqs = (divisors.get(f"rope_{part}.weight") for part in ("factors_long", "factors_short", "freqs"))
    if long is not None and short is not None and kind in ("none", "longrope"):
        settings = _longrope(short, long, original, attention)
    elif kind == "yarn" and freqs is None and float(scaling.get("yarn_ext_factor", 1.0)) == 1:
        settings = {
            "rope_type": "yarn", "factor": factor, "original_max_position_embeddings": original,
            "beta_fast": float(scaling.get("yarn_beta_fast", 32.0)), "beta_slow": float(scaling.get("yarn_beta_slow", 1.0)),
            "attention_factor": attention * (0.1 * math.log(factor) + 1 if factor > 1 else 1.0),
            "truncate": "gpt" not in arch,  # only gpt-oss leaves the ends of the ramp unrounded, and files do not say so
        }  # fmt: skip
    elif kind in ("none", "linear") and long is None and short is None and attention == 1:
        scale = torch.full((size // 2,), factor if kind == "linear" else 1.0).double()
        settings = _divided(scale if freqs is None else scale * freqs, base, context)
    else:
        raise _inexpressible(name, f"scales them by {kind!r} with {', '.join(sorted(divisors)) or 'unsupported settings'}")
    sliding = None
    if "freq_base_swa" in said:
        plain = {"rope_type": "default", "rope_theta": float(said["freq_base_swa"])}
        sliding = plain, int(said.get("dimension_count_swa", size))
    return GgufRotary(({**settings, "rope_theta": base}, size), sliding)


def _rates(settings: Mapping[str, Any], size: int) -> tuple[Tensor, float]:
    """Return the rotary frequencies [pair] in radians per position, and the scale of cosines and sines."""
    if settings["rope_type"] == "default":
        return settings["rope_theta"] ** -(torch.arange(0, size, 2).double() / size), 1.0
    config = LlamaConfig(head_dim=size, rope_parameters=dict(settings))
    return ROPE_INIT_FUNCTIONS[settings["rope_type"]](config, torch.device("cpu"))


def _same(rates: Tensor, wanted: Tensor) -> bool:
    return rates.shape == wanted.shape and torch.allclose(rates.double().cpu(), wanted.double(), rtol=1e-4, atol=1e-12)


def _divided(divisors: Tensor, base: float, context: int) -> dict[str, Any]:
    """Return settings for frequencies divided by ``divisors`` [pair].

    These are one linear factor, else Llama 3's rule if it yields the divisors, else longrope with equal factors for short and
    long texts.
    """
    largest = float(divisors.max())
    if bool((divisors == largest).all()):
        return {"rope_type": "default"} if largest == 1 else {"rope_type": "linear", "factor": largest}
    llama, own = {**_LLAMA3, "factor": largest}, _longrope(divisors, divisors, context, 1.0)
    computed, wanted = (_rates({**settings, "rope_theta": base}, 2 * len(divisors))[0] for settings in (llama, own))
    return llama if _same(computed, wanted) else own


def _longrope(short: Tensor, long: Tensor, original: int, attention: float) -> dict[str, Any]:
    return {
        "rope_type": "longrope", "short_factor": short.tolist(), "long_factor": long.tolist(), "factor": 1.0,
        "original_max_position_embeddings": original, "attention_factor": attention,
    }  # fmt: skip


def apply_rotary(config: Any, said: GgufRotary) -> None:
    """Write a file's rotary settings into the config that transformers read from the same file."""
    current = getattr(config, "rope_parameters", None) or {}
    nested = _FULL in current
    own = dict(current.get(_FULL) or {}) if nested else dict(current)
    settings, rotated = dict(said.full[0]), said.full[1]
    if own.get("rope_type") == "proportional":  # Gemma 4: the divisors only mark which pairs rotate, as this type does
        settings = {"rope_type": "proportional", "rope_theta": settings["rope_theta"]}
    else:
        own = {key: value for key, value in own.items() if key.startswith(("mrope", "partial"))}
        size = None if nested else getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        if size is not None and (rotated != size or "partial_rotary_factor" in own):
            own["partial_rotary_factor"] = rotated / size
    config.rope_parameters = {**current, _FULL: {**own, **settings}} if nested else {**own, **settings}
    if nested and said.sliding is not None and isinstance(current.get(_SLIDING), Mapping):
        config.rope_parameters[_SLIDING] = {**current[_SLIDING], "rope_theta": said.sliding[0]["rope_theta"]}
    if settings["rope_type"] == "longrope" and hasattr(config, "original_max_position_embeddings"):
        config.original_max_position_embeddings = settings["original_max_position_embeddings"]


def refuse_other_angles(model: Any, said: GgufRotary | None, name: str) -> None:
    """Raise ModelUnavailable if a layer of the loaded model rotates at frequencies other than the file's."""
    if said is None:
        return
    turning = [module for module in model.modules() if any(part.endswith("inv_freq") for part in module._buffers)]
    if not turning and said.full[0]["rope_type"] != "default" and bool((_rates(*said.full)[0] < 1).any()):
        raise _inexpressible(name, f"sets them for a {model.config.model_type} model, which has none in transformers")
    for module in turning:
        nested = hasattr(module, f"{_FULL}_inv_freq")
        for prefix, wanted in ((f"{_FULL}_" if nested else "", said.full), (f"{_SLIDING}_", said.sliding if nested else None)):
            own = getattr(module, f"{prefix}inv_freq", None)
            if wanted is None or own is None:
                continue
            rates, scale = _rates(*wanted)
            scaled = float(getattr(module, f"{prefix}attention_scaling", 1.0))
            if not _same(own, rates) or not math.isclose(scaled, scale, rel_tol=1e-4):
                raise _inexpressible(name, "sets angles that its model does not compute")


def _inexpressible(name: str, what: str) -> ModelUnavailable:
    return ModelUnavailable(
        f"{name} has rotary positions that transformers cannot compute: it {what}. Give the model's own folder or hub id instead."
    )


def apply_settings(config: Any, header: GGUFReader, name: str) -> tuple[str, ...]:
    """Write a file's other settings into the config that transformers read. Returns warnings about unknown settings.

    Raises ModelUnavailable for a setting that changes the computation and that transformers cannot represent.
    """
    arch = str(field(header, "general.architecture", ""))
    settings = {
        key.removeprefix(f"{arch}."): header.fields[key].contents() for key in header.fields if key.startswith(f"{arch}.")
    }
    held, unknown = config.to_dict(), []

    def without_place(key: str, value: Any) -> ModelUnavailable:
        return ModelUnavailable(
            f"{name} sets {arch}.{key} to {shown(value)}, which a {config.model_type} model in transformers cannot represent. "
            "Give the model's own folder or hub id instead."
        )

    # Scale of attention scores; llama.cpp has a default for each model.
    size = held.get("head_dim") or held.get("hidden_size", 0) // max(1, held.get("num_attention_heads") or 1)
    scale = float(settings.get("attention.scale") or 0)
    if "query_pre_attn_scalar" in held:
        wide = held["num_hidden_layers"] == _MIXED_SCALE.get(arch)
        wanted = scale**-2 if scale else held["hidden_size"] / held["num_attention_heads"] if wide else size
        config.query_pre_attn_scalar = round(wanted)
        if not math.isclose(wanted, round(wanted), rel_tol=1e-4):
            raise without_place("attention.scale", scale)
    elif scale and not (size and math.isclose(scale, size**-0.5, rel_tol=1e-4)):
        raise without_place("attention.scale", scale)
    # Layers with a sliding window, if the file lists them. A window as long as the context has no effect.
    pattern, kinds = settings.get("attention.sliding_window_pattern"), getattr(config, "layer_types", None)
    window = settings.get("attention.sliding_window", 0)
    slides = window and window < settings.get("context_length", math.inf)
    if pattern is not None and kinds:
        every = pattern if isinstance(pattern, list) else [(place + 1) % int(pattern) for place in range(len(kinds))]
        config.layer_types = [_SLIDING if one else _FULL for one in every]
    elif slides and kinds and _SLIDING not in kinds:
        raise ModelUnavailable(
            f"{name} has a sliding window of {window} tokens but does not say which {config.model_type} layers use it. "
            "Give the model's own folder or hub id instead."
        )
    for key, value in settings.items():
        place = next((place for place in PLACES.get(key, ()) if place in held), None)
        if place is not None and not isinstance(value, list):
            wanted = None if key == "attention.sliding_window" and value == 0 else value
            if held[place] != wanted:
                setattr(config, place, wanted)
        elif key == "expert_gating_func" and "scoring_func" in held:
            continue  # transformers reads it
        elif key in IDLE and value not in IDLE[key] and (slides or key != "attention.sliding_window"):
            raise without_place(key, value)
        elif key not in IDLE and key not in SIZES and not key.startswith("rope.") and key not in APART:
            unknown.append(f"{arch}.{key}")
    return (f"Unknown settings of this GGUF file were ignored: {', '.join(unknown)}.",) if unknown else ()


# Pre-tokenizers that transformers 5.23 rebuilds correctly. It replaces any other with GPT-2's, and a warning says so.
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
    splitter = str(field(header, "tokenizer.ggml.pre", ""))
    warnings = unread
    if splitter == "smollm":
        # SmolLM splits off each digit before GPT-2's rule applies, so spaces before a number stay together.
        tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
    elif splitter and splitter not in _KNOWN_SPLITTERS:
        warnings += (f"The pre-tokenizer {splitter!r} of this GGUF file is only approximated: prompts may be split differently.",)
    with exclusive_loading():
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    return warnings


def _header(gguf: Path) -> GGUFReader:
    """Read a file's header. Raises ModelUnavailable if the file is damaged, empty, or one of several parts."""
    try:
        header = GGUFReader(gguf)
        count, part = int(field(header, "split.count", 1)), int(field(header, "split.no", 0))
    except Exception as problem:  # numpy's and struct's errors on damaged bytes
        raise ModelUnavailable(f"{gguf.name} is damaged or not a GGUF file ({problem}). Download the file again.") from problem
    if count > 1:
        raise ModelUnavailable(
            f"{gguf.name} is part {part + 1} of {count} of one model. "
            "Merge them with `llama-gguf-split --merge` and give the whole file."
        )
    if not header.tensors:
        raise ModelUnavailable(f"{gguf.name} holds no weights, only a header. Download the file again.")
    return header


def _refuse_incomplete(name: str, header: GGUFReader, model: Any, loading_info: Mapping[str, Any]) -> None:
    """Raise ModelUnavailable unless the file holds all of the model's weights and nothing else.

    transformers ignores unknown tensors without a warning, so the numbers in file and model are counted. Not counted: rotary
    divisors, a stored copy of a tied head, MTP layers, and keys and values of layers that share others (Gemma 3n, 4).
    """
    config, own = model.config, int(model.config.num_hidden_layers)
    if missing := sorted(loading_info["missing_keys"]):
        raise ModelUnavailable(
            f"{name} lacks {len(missing)} of the weights of a {config.model_type} model ({missing[0]}, …). "
            "Download the whole file, or one that names its architecture correctly."
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
            f"{name} holds {strange[0]}, which a {config.model_type} model does not use. The file may name the wrong "
            "architecture. Download the file again, or give a folder or hub id with safetensors."
        )


def _storage(header: GGUFReader) -> torch.dtype:
    """Return the dtype of the unpacked matrices: float32 or float16 if any matrix is stored so, else bfloat16."""
    kinds = {tensor.tensor_type for tensor in header.tensors if len(tensor.shape) > 1}
    if GGMLQuantizationType.F32 in kinds:
        return torch.float32
    return torch.float16 if GGMLQuantizationType.F16 in kinds else torch.bfloat16
