"""Loader of causal language models by name: safetensors only, never code from a repository; over one device or several.

Over several devices the layers are split in order, by accelerate's device maps. Embedding, last norm and head are on the last
device. So are token ids, logits, hidden states and the drafter, which reads the target's embedding and head. Only one hidden
state per row is copied between two devices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch
from accelerate import init_empty_weights
from accelerate.hooks import AlignDevicesHook, add_hook_to_module
from torch import nn
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoConfig, AutoModelForCausalLM, AutoTokenizer

from specviz.engine.attention import GROUPED
from specviz.errors import ModelUnavailable, TokenizerMismatch
from specviz.models.cache import exclusive_loading, load_once
from specviz.models.device import choose_devices, cpu_has_bfloat16, dtype_name
from specviz.models.hub.cache_dir import Progress, no_progress
from specviz.models.hub.catalog import resolve
from specviz.models.hub.opening import LOCAL, loading_warnings, opening
from specviz.models.hub.prepare import conversion_warnings, prepare
from specviz.models.packing import pack, pack_int8
from specviz.models.text.text import TokenizerText, rules_of, tokenizer_hash, tokens_by_id

# Tokens that end an answer if the chat template contains them, even where the generation config omits them.
_TURN_ENDS = ("<|im_end|>", "<|eot_id|>", "<|end_of_turn|>", "<end_of_turn>", "<|end|>", "<|return|>", "</s>")


@dataclass(frozen=True)
class LoadedText:
    """Causal language model ready to run: weights frozen, in eval mode, shared between runs.

    ``name``: name given by the user. ``warnings``: shown to the user.
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

    @classmethod
    def of(cls, name: str, model: Any, tokenizer: Any, **more: Any) -> Self:
        """Build from a model and its tokenizer. ``more``: further fields, or replacements for those derived from the model."""
        text = TokenizerText(tokenizer, name, context_length_of(model), int(model.get_input_embeddings().num_embeddings))
        return cls(name, model.eval().requires_grad_(False), tokenizer, text, **{
            "eos_ids": eos_ids_of(model, tokenizer), "tokenizer_hash": tokenizer_hash(tokenizer), "device": model.device,
            "dtype": model.dtype, **more,
        })  # fmt: skip


def load_causal_lm(name: str, dtype: str = "auto", device: str = "auto", progress: Progress = no_progress) -> LoadedText:
    """Load the model called ``name``: a catalogue name, hub id, folder or .gguf file. Models stay loaded while they fit.

    ``dtype`` and ``device`` are "auto" or the user's choice; over several devices (see ``choose_devices``) the layers are split
    in order, with inputs and outputs on the last. Raises ModelUnavailable, BadInput or OutOfMemory.
    """
    devices = choose_devices(device)
    return load_once(name, dtype, devices, lambda how: _load(resolve(name).name, prepare(name, progress), how, devices, progress))


def _load(name: str, folder: Path, dtype: torch.dtype, devices: Sequence[torch.device], progress: Progress) -> LoadedText:
    device, places = devices[-1], ", ".join(map(str, devices))
    progress(f"Loading {name} in {dtype_name(dtype)} on {places}", None)
    with opening(name, folder, places=places):
        config: Any = AutoConfig.from_pretrained(folder, **LOCAL)
        if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
            raise ModelUnavailable(
                f"{name} is a {config.model_type} model, which generates no text. Choose a causal language model."
            )
        if dtype == torch.float64:  # torch's grouped product of experts does not support float64
            config._experts_implementation = "eager"
        sdpa = getattr(MODEL_FOR_CAUSAL_LM_MAPPING[type(config)], "_supports_sdpa")  # noqa: B009
        with exclusive_loading():
            tokenizer = AutoTokenizer.from_pretrained(folder, **LOCAL)
            tokenizer("a")  # a setting of a wrong type fails only at the first text
            opened: Any = AutoModelForCausalLM.from_pretrained(
                folder,
                config=config,
                dtype="auto" if dtype == torch.int8 else dtype,
                use_safetensors=True,
                attn_implementation="sdpa" if sdpa else "eager",
                output_loading_info=True,
                **({"device_map": device_map(config, devices)} if len(devices) > 1 else {}),
                **LOCAL,
            )
            model, loading_info = opened
        warnings = (*conversion_warnings(folder), *loading_warnings(name, folder, loading_info))
        if not sdpa and getattr(config, "num_attention_heads", False):
            warnings += (f"{name} has no fused attention in transformers; it runs with the slower eager attention.",)
        if len(devices) > 1:
            enter_at(model, device)
        elif dtype == torch.int8:
            with exclusive_loading():
                pack_int8(model, name)
        else:
            model = model.to(device)
            with exclusive_loading():
                pack(model)
        if model.config._attn_implementation == "sdpa" and device.type == "cpu":
            model.set_attn_implementation(GROUPED)
        if device.type == "cpu" and dtype in (torch.bfloat16, torch.float16) and not cpu_has_bfloat16():
            warnings += (f"This CPU has no instructions for {dtype_name(dtype)}: draft trees are much slower than in float32.",)
        return LoadedText.of(name, model, tokenizer, device=device, dtype=dtype, warnings=warnings)


def same_tokenizer(target: LoadedText, draft: LoadedText, further: bool = False) -> None:
    """Raise TokenizerMismatch, naming both models and the first difference, unless they share their tokens.

    ``further``: allow tokens of the target that the draft lacks, such as those for pictures; no draft proposes them.
    """
    if target.tokenizer_hash == draft.tokenizer_hash:
        return
    target_ids, draft_ids = (tokens_by_id(model.tokenizer) for model in (target, draft))
    if further and draft_ids.items() <= target_ids.items() and rules_of(target.tokenizer) == rules_of(draft.tokenizer):
        return
    first = min((index for index, _ in target_ids.items() ^ draft_ids.items()), default=None)
    if first is None:
        reason = "the same tokens, but text is split by different rules"
    else:
        reason = f"token {first} is {target_ids.get(first)!r} in one and {draft_ids.get(first)!r} in the other"
    raise TokenizerMismatch(
        f"The target {target.name} ({len(target_ids)} tokens) and the draft {draft.name} ({len(draft_ids)} tokens) do not share "
        f"a tokenizer: {reason}. Choose a draft model of the target's own family."
    )


def context_length_of(model: Any) -> int:
    """Context length of a loaded model in tokens, answer included; 2²⁰ for a recurrent model, which has no window."""
    return int(getattr(model.config.get_text_config(decoder=True), "max_position_embeddings", 0) or 1 << 20)


def eos_ids_of(model: Any, tokenizer: Any) -> frozenset[int]:
    """All tokens that end an answer, from the generation config, the config, the tokenizer, and the chat template."""
    sources = (getattr(model, "generation_config", None), model.config.get_text_config(decoder=True), tokenizer)
    ends = [getattr(source, "eos_token_id", None) for source in sources]
    template, vocabulary = tokenizer.chat_template or "", tokenizer.get_vocab()
    written = template if isinstance(template, str) else "".join(template.values())
    ends += [vocabulary.get(end) for end in _TURN_ENDS if end in written]
    return frozenset(int(one) for end in ends if end is not None for one in (end if isinstance(end, list | tuple) else [end]))


def device_map(config: Any, devices: Sequence[torch.device]) -> dict[str, str]:
    """Map every part of a model with this ``config`` to a device: the same number of layers on each, the other parts on the
    last.

    Raises ModelUnavailable for a model with fewer layers than there are devices.
    """
    with init_empty_weights():
        model: nn.Module = AutoModelForCausalLM.from_config(config)
    count = int(config.get_text_config().num_hidden_layers)
    if count < len(devices):
        raise ModelUnavailable(f"A model of {count} layers cannot be spread over {len(devices)} devices; name fewer devices.")
    lists = (name for name, module in model.named_modules() if isinstance(module, nn.ModuleList) and len(module) == count)
    if (layers := next(lists, None)) is None:
        raise ModelUnavailable(f"{type(model).__name__} has no list of {count} layers to spread; choose one device.")
    tensors = (
        name
        for name, _ in (*model.named_parameters(remove_duplicate=False), *model.named_buffers())
        if not name.startswith(f"{layers}.")
    )
    placement = {f"{layers}.{layer}": str(devices[layer * len(devices) // count]) for layer in range(count)}
    return {**{name.rpartition(".")[0]: str(devices[-1]) for name in tensors}, **placement}


def enter_at(model: Any, device: torch.device) -> None:
    """Move inputs of the dispatched ``model`` to ``device``, and its outputs to the device of its inputs.

    By default accelerate may pick any of the devices.
    """
    hook = AlignDevicesHook(execution_device=device, io_same_device=True, skip_keys=list(model._skip_keys_device_placement))
    add_hook_to_module(model, hook)
