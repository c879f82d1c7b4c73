"""Loader of image models from the hub or a folder: Anole, LlamaGen, or a Janus such as deepseek-community/Janus-Pro-1B."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer, JanusForConditionalGeneration

from specviz.errors import ModelUnavailable
from specviz.models import room
from specviz.models.cache import MODELS
from specviz.models.device import dtype_name
from specviz.models.hub.cache_dir import Progress, no_progress
from specviz.models.hub.modality import type_in
from specviz.models.hub.opening import LOCAL, opening
from specviz.models.hub.prepare import prepare
from specviz.models.image.anole import load_anole
from specviz.models.image.image import LoadedImage, janus
from specviz.models.image.llamagen import load_llamagen
from specviz.models.image.prompts import ChatPrompts
from specviz.models.loading_lock import exclusive_loading

GUIDANCE = 5.0
"""Default guidance of transformers for Janus models."""


def load_hub_image(name: str, dtype: torch.dtype, device: torch.device, progress: Progress = no_progress) -> LoadedImage:
    """Load the Janus, Anole or LlamaGen model called ``name``. Raises ModelUnavailable if it is none of them or unavailable."""
    return MODELS.get(
        (name, str(dtype), str(device)),
        lambda: _load(name, prepare(name, progress), dtype, device),
        lambda: room.memory_of(name, dtype_name(dtype)),
        str(device),
    )


def _load(name: str, folder: Path, dtype: torch.dtype, device: torch.device) -> LoadedImage:
    if type_in(folder) == "chameleon":
        return load_anole(name, folder, dtype, device)
    if type_in(folder) == "llamagen":
        return load_llamagen(name, folder, dtype, device)
    if type_in(folder) == "emu3":
        raise ModelUnavailable(
            f"{name} is an Emu3: it ends each row of a picture, and the picture, with tokens of its own, which no method here "
            "drafts or forces yet; choose a Janus model, Anole or LlamaGen."
        )
    with opening(name, folder, "a Janus model"), exclusive_loading():
        tokenizer = AutoTokenizer.from_pretrained(folder, **LOCAL)
        model: Any = JanusForConditionalGeneration.from_pretrained(folder, dtype=dtype, use_safetensors=True, **LOCAL)
    model = model.to(device).eval().requires_grad_(False)
    return janus(name, model, ChatPrompts(tokenizer), GUIDANCE, name, name)
