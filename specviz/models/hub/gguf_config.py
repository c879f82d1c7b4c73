"""Settings of a GGUF file as a transformers configuration: those that change the computation are set there or refused by name.

transformers reads a few settings, by a table for each architecture, and ignores the rest. Of rotary positions it
reads ``rope.freq_base`` of most architectures and nothing else. Here ``rope.scaling.*``, ``rope.dimension_count`` and the
tensors of divisors become settings too. The loaded model is then compared with the angles that llama.cpp computes from the
file; a model with other angles is refused, whatever the reason. Sizes need no reading, since tensors of another shape are
refused. Axis name: ``pair`` (two dimensions that turn together).
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from gguf import GGUFReader
from torch import Tensor
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from specviz.errors import ModelUnavailable, shown
from specviz.paths import ASSETS

DIVISORS = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")
"""Tensors that hold no weights, but the divisor of each pair's angle."""
_SCALING = frozenset(
    """type factor original_context_length attn_factor finetuned
    yarn_ext_factor yarn_attn_factor yarn_beta_fast yarn_beta_slow""".split()
)
"""Settings under ``rope.scaling.`` that are read; another may change the angles and is refused by its name."""
_LLAMA3 = {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
"""Llama 3.1's to 3.3's rule without its factor: llama.cpp's converter writes the resulting divisors."""
_FULL, _SLIDING = "full_attention", "sliding_attention"
_TABLES = tomllib.loads((ASSETS / "gguf_settings.toml").read_text("utf-8"))
PLACES: Mapping[str, Sequence[str]] = _TABLES["places"]
"""Attributes of a transformers configuration by setting of the file; the first that exists is set."""
IDLE: Mapping[str, Sequence[Any]] = _TABLES["idle"]
"""The values at which a setting without an equivalent changes nothing; with any other value the file is refused."""
SIZES = frozenset(_TABLES["sizes"])
"""Settings that transformers reads, that tensors' shapes imply, or that do not affect the text."""
APART = ("attention.scale", "attention.sliding_window_pattern")
"""Settings that need more than copying."""
_MIXED_SCALE = {"gemma2": 46, "gemma3": 62}
"""Number of layers of the 27B models, whose attention scale llama.cpp computes from the hidden size: files do not hold it."""


def field(header: GGUFReader, name: str, default: Any) -> Any:
    """A setting of the file, or ``default`` if the file has none."""
    stored = header.get_field(name)
    return default if stored is None else stored.contents()


@dataclass(frozen=True)
class Rotary:
    """``rates`` [pair] in radians per position, and the ``scale`` of cosines and sines."""

    rates: Tensor
    scale: float = 1.0


@dataclass(frozen=True)
class GgufRotary:
    """Rotary positions of a file. ``rotary`` is for layers that see the whole text, ``sliding`` for the others where the file
    distinguishes them; ``settings`` are those by which transformers computes ``rotary``."""

    rotary: Rotary
    sliding: Rotary | None
    settings: Mapping[str, Any]
    sliding_base: float | None


def read_rotary(header: GGUFReader, name: str) -> GgufRotary | None:
    """Read the rotary positions of a file; None if it sets none. Raises ModelUnavailable for settings without an equivalent in
    transformers."""
    about = str(field(header, "general.architecture", "")) + ".rope."
    said = {key.removeprefix(about): header.fields[key].contents() for key in header.fields if key.startswith(about)}
    divisors = {tensor.name: torch.tensor(tensor.data).double() for tensor in header.tensors if tensor.name in DIVISORS}
    if not said and not divisors:
        return None
    scaling = {key.removeprefix("scaling."): value for key, value in said.items() if key.startswith("scaling.")}
    if strange := sorted(set(scaling) - _SCALING):
        raise _inexpressible(name, f"sets {about}scaling.{strange[0]}")
    base, size = float(said.get("freq_base", 10000.0)), _rotated(header, said, about)
    plain = base ** -(torch.arange(0, size, 2, dtype=torch.float64) / size)
    # llama.cpp treats a factor without a type as linear scaling, whose old name is scale_linear.
    factor = float(scaling.get("factor") or said.get("scale_linear") or 1.0)
    kind = str(scaling.get("type", "linear")) if factor != 1 or "type" in scaling else "none"
    context = int(field(header, about.replace(".rope.", ".context_length"), 0))
    original = int(scaling.get("original_context_length") or context)
    attention = float(scaling.get("attn_factor", 1.0)) * float(scaling.get("yarn_attn_factor", 1.0))
    if any(len(divisor) != size // 2 or not bool((divisor > 0).all()) for divisor in divisors.values()):
        raise ModelUnavailable(f"{name} has rotary divisors that do not fit its {size} dimensions. Get the file again.")
    long, short, freqs = (divisors.get(f"rope_{part}.weight") for part in ("factors_long", "factors_short", "freqs"))
    settings: dict[str, Any]
    if long is not None and short is not None and kind in ("none", "longrope"):
        rotary = Rotary(plain / short, attention)
        settings = _longrope(short, long, original, attention)
    elif kind == "yarn" and freqs is None and float(scaling.get("yarn_ext_factor", 1.0)) == 1:
        fast, slow = (float(scaling.get(f"yarn_beta_{end}", usual)) for end, usual in (("fast", 32.0), ("slow", 1.0)))
        truncated = "gpt" not in about  # gpt-oss alone does not round the ends of the ramp, which no file records
        attention *= 0.1 * math.log(factor) + 1 if factor > 1 else 1.0
        rotary = Rotary(_yarn(plain, factor, base, original, (fast, slow), truncated), attention)
        settings = {
            "rope_type": "yarn", "factor": factor, "original_max_position_embeddings": original, "beta_fast": fast,
            "beta_slow": slow, "attention_factor": attention, "truncate": truncated,
        }  # fmt: skip
    elif kind in ("none", "linear") and long is None and short is None and attention == 1:
        factor = factor if kind == "linear" else 1.0
        rotary = Rotary(plain / factor if freqs is None else plain / freqs / factor)
        if freqs is None or bool((freqs == 1).all()):
            settings = {"rope_type": "default"} if factor == 1 else {"rope_type": "linear", "factor": factor}
        else:
            settings = _divided(freqs * factor, rotary.rates, base, context)
    else:
        raise _inexpressible(name, f"scales them by {kind!r} with {', '.join(sorted(divisors)) or 'settings of its own'}")
    sliding_base = float(said["freq_base_swa"]) if "freq_base_swa" in said else None
    narrow = int(said.get("dimension_count_swa", size))
    sliding = None if sliding_base is None else Rotary(sliding_base ** -(torch.arange(0, narrow, 2).double() / narrow))
    return GgufRotary(rotary, sliding, {**settings, "rope_theta": base, "rotated": size}, sliding_base)


def apply_rotary(config: Any, said: GgufRotary) -> None:
    """Set a file's rotary positions in the configuration that transformers read from it."""
    current = getattr(config, "rope_parameters", None) or {}
    nested = _FULL in current
    settings, own = dict(said.settings), dict(current.get(_FULL) or {}) if nested else dict(current)
    rotated = settings.pop("rotated")
    if own.get("rope_type") == "proportional":  # Gemma 4's: the divisors encode which pairs turn, as this type does
        settings = {"rope_type": "proportional", "rope_theta": settings["rope_theta"]}
    else:
        own = {key: value for key, value in own.items() if key.startswith(("mrope", "partial"))}
        size = None if nested else getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        if size is not None and (rotated != size or "partial_rotary_factor" in own):
            own["partial_rotary_factor"] = rotated / size
    if nested:
        config.rope_parameters = {**current, _FULL: {**own, **settings}}
        if said.sliding_base is not None and isinstance(current.get(_SLIDING), Mapping):
            config.rope_parameters[_SLIDING] = {**current[_SLIDING], "rope_theta": said.sliding_base}
    else:
        config.rope_parameters = {**own, **settings}
    if settings["rope_type"] == "longrope" and hasattr(config, "original_max_position_embeddings"):
        config.original_max_position_embeddings = settings["original_max_position_embeddings"]


def refuse_other_angles(model: Any, said: GgufRotary | None, name: str) -> None:
    """Raise ModelUnavailable unless every layer of the loaded model rotates by the file's angles."""
    turning = [
        module for module in model.modules() if any(part.endswith("inv_freq") for part, _ in module.named_buffers(recurse=False))
    ]
    if said is None:
        return
    if not turning and bool((said.rotary.rates < 1).any()) and said.settings["rope_type"] != "default":
        raise _inexpressible(name, f"sets them for a {model.config.model_type} model, which has none in transformers")
    for module in turning:
        nested = hasattr(module, f"{_FULL}_inv_freq")
        for prefix, wanted in (("", said.rotary), *((("sliding_attention_", said.sliding),) if nested else ())):
            where = f"{_FULL}_" if nested and not prefix else prefix
            rates = getattr(module, f"{where}inv_freq", None)
            if wanted is None or rates is None:
                continue
            scale = float(getattr(module, f"{where}attention_scaling", 1.0))
            if not _same(rates, wanted.rates) or not math.isclose(scale, wanted.scale, rel_tol=1e-4):
                raise _inexpressible(name, "turns at angles that its model computes otherwise")


def _same(rates: Tensor, wanted: Tensor) -> bool:
    return rates.shape == wanted.shape and torch.allclose(rates.double().cpu(), wanted, rtol=1e-4, atol=1e-12)


def _rotated(header: GGUFReader, said: Mapping[str, Any], about: str) -> int:
    """Number of a head's dimensions that rotate."""
    arch = about.removesuffix("rope.")
    heads = field(header, arch + "attention.head_count", 1)
    wide = int(field(header, arch + "embedding_length", 0)) // max(1, int(max(heads) if isinstance(heads, list) else heads))
    return int(said.get("dimension_count") or field(header, arch + "attention.key_length", 0) or wide)


def _divided(divisors: Tensor, rates: Tensor, base: float, context: int) -> dict[str, Any]:
    """Settings for angles divided one by one: Llama 3's rule if it gives these divisors, else longrope. Its divisors are the same
    within and beyond the original context, so that it never switches."""
    settings = {**_LLAMA3, "factor": float(divisors.max())}
    config = LlamaConfig(head_dim=2 * len(divisors), rope_parameters={**settings, "rope_theta": base})
    computed, _ = ROPE_INIT_FUNCTIONS["llama3"](config, torch.device("cpu"))
    return settings if _same(computed, rates) else _longrope(divisors, divisors, context, 1.0)


def _longrope(short: Tensor, long: Tensor, original: int, attention: float) -> dict[str, Any]:
    return {
        "rope_type": "longrope", "short_factor": short.tolist(), "long_factor": long.tolist(), "factor": 1.0,
        "original_max_position_embeddings": original, "attention_factor": attention,
    }  # fmt: skip


def _yarn(plain: Tensor, factor: float, base: float, original: int, betas: tuple[float, float], truncated: bool) -> Tensor:
    """YaRN's rates: pairs that turn more than ``betas[0]`` times in the original context stay, those below ``betas[1]`` are
    divided by ``factor``, and those between are interpolated."""
    size = 2 * len(plain)
    low, high = (size * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(base)) for turns in betas)
    if truncated:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, size - 1)
    divided = ((torch.arange(len(plain)).double() - low) / max(0.001, high - low)).clamp(0, 1)
    return plain / factor * divided + plain * (1 - divided)


def _inexpressible(name: str, what: str) -> ModelUnavailable:
    return ModelUnavailable(
        f"{name} has rotary positions that transformers cannot compute: it {what}. Give the model's own folder or hub id instead."
    )


def apply_settings(config: Any, header: GGUFReader, name: str) -> tuple[str, ...]:
    """Set a file's other settings in the configuration that transformers read from it. Returns warnings of unknown settings.

    Raises ModelUnavailable for a setting that changes the computation and has no equivalent in transformers' class.
    """
    arch = str(field(header, "general.architecture", ""))
    settings = {
        key.removeprefix(f"{arch}."): header.fields[key].contents() for key in header.fields if key.startswith(f"{arch}.")
    }
    held = config.to_dict()
    unknown = []
    _scale_attention(config, held, arch, settings, name)
    _slide(config, settings, name)
    for key, value in settings.items():
        place = next((place for place in PLACES.get(key, ()) if place in held), None)
        if place is not None and not isinstance(value, list):
            wanted = None if key == "attention.sliding_window" and value == 0 else value
            if held[place] != wanted:
                setattr(config, place, wanted)
        elif key == "expert_gating_func" and "scoring_func" in held:
            continue  # transformers reads it
        elif key in IDLE and value not in IDLE[key] and not _beyond(key, value, settings):
            raise _without_place(name, config, arch, key, value)
        elif key not in IDLE and key not in SIZES and not key.startswith("rope.") and key not in APART:
            unknown.append(f"{arch}.{key}")
    return (f"Settings of this GGUF that nothing here reads: {', '.join(unknown)}.",) if unknown else ()


def _scale_attention(config: Any, held: Mapping[str, Any], arch: str, settings: Mapping[str, Any], name: str) -> None:
    """Set the factor of attention scores in the configuration, by default llama.cpp's own for the model."""
    size = held.get("head_dim") or held.get("hidden_size", 0) // max(1, held.get("num_attention_heads") or 1)
    scale = float(settings.get("attention.scale") or 0)
    if "query_pre_attn_scalar" in held:
        wide = held["num_hidden_layers"] == _MIXED_SCALE.get(arch)
        default = held["hidden_size"] / held["num_attention_heads"] if wide else size
        wanted = scale**-2 if scale else default
        config.query_pre_attn_scalar = round(wanted)
        if not math.isclose(wanted, round(wanted), rel_tol=1e-4):
            raise _without_place(name, config, arch, "attention.scale", scale)
    elif scale and not (size and math.isclose(scale, size**-0.5, rel_tol=1e-4)):
        raise _without_place(name, config, arch, "attention.scale", scale)


def _slide(config: Any, settings: Mapping[str, Any], name: str) -> None:
    """Set the layers with a sliding window in the configuration, where the file names them."""
    pattern, kinds = settings.get("attention.sliding_window_pattern"), getattr(config, "layer_types", None)
    window = settings.get("attention.sliding_window", 0)
    if pattern is not None and kinds:
        every = (
            [place % int(pattern) < int(pattern) - 1 for place in range(len(kinds))] if not isinstance(pattern, list) else pattern
        )
        config.layer_types = [_SLIDING if slides else _FULL for slides in every]
    elif window and kinds and _SLIDING not in kinds and not _beyond("attention.sliding_window", window, settings):
        raise ModelUnavailable(
            f"{name} has a sliding window of {window} tokens and does not say which layers of a {config.model_type} model slide. "
            "Give the model's own folder or hub id instead."
        )


def _beyond(key: str, value: Any, settings: Mapping[str, Any]) -> bool:
    """Whether a sliding window is as long as the context, so that it never slides."""
    return key == "attention.sliding_window" and value >= settings.get("context_length", math.inf)


def _without_place(name: str, config: Any, arch: str, key: str, value: Any) -> ModelUnavailable:
    return ModelUnavailable(
        f"{name} sets {arch}.{key} to {shown(value)}, for which a {config.model_type} model of transformers has no place. "
        "Give the model's own folder or hub id instead."
    )
