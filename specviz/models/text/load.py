"""Loader of causal language models by name: safetensors only, never code from a repository."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoConfig, AutoModelForCausalLM, AutoTokenizer

from specviz.engine.attention import GROUPED
from specviz.errors import ModelUnavailable
from specviz.models import room
from specviz.models.cache import MODELS, ModelCache
from specviz.models.device import choose_devices, choose_dtype, cpu_has_bfloat16, dtype_name
from specviz.models.hub.cache_dir import Progress, silent
from specviz.models.hub.catalog import resolve
from specviz.models.hub.convert import conversion_warnings
from specviz.models.hub.opening import adapter_warnings, opening
from specviz.models.hub.prepare import prepare
from specviz.models.hub.vocabulary import tokenizer_hash
from specviz.models.loading_lock import exclusive_loading
from specviz.models.packing import pack
from specviz.models.pipeline import device_map, enter_at
from specviz.models.text.architecture import context_length_of, eos_ids_of
from specviz.models.text.text import TokenizerText, embedded


@dataclass(frozen=True)
class LoadedText:
    """A causal language model ready to run: weights frozen, in eval mode, shared between runs.

    ``name`` is what the user asked for; ``warnings`` are meant for the screen.
    """

    name: str
    model: Any
    tokenizer: Any
    text: TokenizerText
    eos_ids: frozenset[int]
    tokenizer_hash: str
    device: torch.device
    dtype: torch.dtype
    warnings: tuple[str, ...] = ()

    @property
    def has_template(self) -> bool:
        """Whether this is an instruct model, with a chat template."""
        return self.text.has_template


_SHELF: ModelCache[LoadedText] = MODELS


def load_causal_lm(name: str, dtype: str = "auto", device: str = "auto", progress: Progress = silent) -> LoadedText:
    """The model called ``name``: a catalogue name, hub id, folder or .gguf file. What fits stays loaded.

    ``dtype`` and ``device`` are "auto" or the user's choice; over several devices (see ``choose_devices``) the layers lie in
    order, and the model is entered and left on the last. Raises ModelUnavailable, BadInput or OutOfMemory.
    """
    devices = choose_devices(device)
    where = devices[-1]
    place = resolve(name)
    own = place.entry.dtype if place.entry is not None else ""
    how = choose_dtype(own if own and dtype == "auto" else dtype, where)
    key = (str(place.path or place.name), dtype_name(how), *map(str, devices))
    return _SHELF.get(
        key,
        lambda: _load(place.name, prepare(name, progress), how, devices, progress),
        lambda: room.memory_of(name, dtype_name(how)) // len(devices),
        str(where),
    )


def release(name: str | None = None) -> None:
    """Forget the loaded models called ``name``, or all; one that a run still holds goes when that run ends."""
    place = None if name is None else resolve(name)
    _SHELF.release(None if place is None else str(place.path or place.name))
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _load(name: str, folder: Path, dtype: torch.dtype, devices: Sequence[torch.device], progress: Progress) -> LoadedText:
    device, places = devices[-1], ", ".join(map(str, devices))
    progress(f"Loading {name} in {dtype_name(dtype)} on {places}", None)
    with opening(name, folder, places=places):
        model, tokenizer, warnings = _open(name, folder, dtype, devices)
        if len(devices) == 1:
            with exclusive_loading():
                pack(model)
        if model.config._attn_implementation == "sdpa" and device.type == "cpu":
            model.set_attn_implementation(GROUPED)
        return LoadedText(
            name=name,
            model=model,
            tokenizer=tokenizer,
            text=TokenizerText(tokenizer, name, context_length_of(model), embedded(model)),
            eos_ids=eos_ids_of(model, tokenizer),
            tokenizer_hash=tokenizer_hash(tokenizer),
            device=device,
            dtype=dtype,
            warnings=(*conversion_warnings(folder), *warnings, *_slow(dtype, device)),
        )


def _open(name: str, folder: Path, dtype: torch.dtype, devices: Sequence[torch.device]) -> tuple[Any, Any, list[str]]:
    safely: Any = {"local_files_only": True, "trust_remote_code": False}
    config: Any = AutoConfig.from_pretrained(folder, **safely)
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise ModelUnavailable(f"{name} is a {config.model_type} model, which writes no text. Choose a causal one.")
    warnings = list(adapter_warnings(name, folder))
    if dtype == torch.float64:  # torch's grouped product of experts knows no such numbers
        config._experts_implementation = "eager"
    sdpa = getattr(MODEL_FOR_CAUSAL_LM_MAPPING[type(config)], "_supports_sdpa")  # noqa: B009
    if not sdpa and getattr(config, "num_attention_heads", False):
        warnings.append(f"{name} has no fused attention in transformers; it runs with the slower eager attention.")
    with exclusive_loading():
        tokenizer = AutoTokenizer.from_pretrained(folder, **safely)
        tokenizer("a")  # a setting of another type than it should have is met at the first text alone
        opened: Any = AutoModelForCausalLM.from_pretrained(
            folder,
            config=config,
            dtype=dtype,
            use_safetensors=True,
            attn_implementation="sdpa" if sdpa else "eager",
            output_loading_info=True,
            **({"device_map": device_map(config, devices)} if len(devices) > 1 else {}),
            **safely,
        )
        model, loading_info = opened
    missing = sorted(loading_info["missing_keys"])
    if missing:
        raise ModelUnavailable(f"{name} lacks {len(missing)} of its weights ({missing[0]}, …). Get the whole model.")
    if loading_info["unexpected_keys"]:
        warnings.append(f"{len(loading_info['unexpected_keys'])} weights stored with {name} are not part of the model.")
    if len(devices) > 1:
        enter_at(model, devices[-1])
    else:
        model = model.to(devices[0])
    return model.eval().requires_grad_(False), tokenizer, warnings


def _slow(dtype: torch.dtype, device: torch.device) -> list[str]:
    if device.type == "cpu" and dtype in (torch.bfloat16, torch.float16) and not cpu_has_bfloat16():
        return [f"This CPU has no instructions for {dtype_name(dtype)}: draft trees are much slower than in float32."]
    return []
