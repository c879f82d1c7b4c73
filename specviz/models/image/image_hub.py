"""Janus models from the hub or a folder, such as deepseek-community/Janus-Pro-1B: the same class as the shipped ones.

The unconditional row is Janus' own: the prompt with everything but its first token and the begin-of-image token padded out.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from transformers import AutoTokenizer, JanusForConditionalGeneration

from specviz.errors import ModelUnavailable
from specviz.models import room
from specviz.models.cache import MODELS, ModelCache
from specviz.models.device import dtype_name
from specviz.models.hub.cache_dir import Progress, silent
from specviz.models.hub.modality import type_in
from specviz.models.hub.opening import opening
from specviz.models.hub.prepare import prepare
from specviz.models.image.anole import load_anole
from specviz.models.image.image import LoadedImage
from specviz.models.image.llamagen import load_llamagen
from specviz.models.image.prompts import PromptRows, checked
from specviz.models.loading_lock import exclusive_loading

OPENING = "<begin_of_image>"
GUIDANCE = 5.0
"""Default of transformers for these models."""

_SHELF: ModelCache[LoadedImage] = MODELS


class ChatPrompts:
    """Prompts as a chat turn whose answer is a picture (``models.prompts.PromptReader``)."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._opening = tokenizer.convert_tokens_to_ids(OPENING)
        if self._opening is None or self._opening == tokenizer.unk_token_id:
            raise ModelUnavailable(f"This model's tokenizer has no {OPENING}, so nothing tells it to draw; choose a Janus model.")
        self._pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else 0
        self.digest = hashlib.sha256(repr(sorted(tokenizer.get_vocab().items())[:4096]).encode()).hexdigest()[:16]

    def rows(self, prompt: str) -> PromptRows:
        token_ids = list(self._tokenizer(f"<|User|>: {checked(prompt)}\n\n<|Assistant|>:")["input_ids"])
        if token_ids[:1] != [self._tokenizer.bos_token_id] and self._tokenizer.bos_token_id is not None:
            token_ids = [self._tokenizer.bos_token_id, *token_ids]
        return PromptRows((*token_ids, self._opening), (token_ids[0], *[self._pad] * (len(token_ids) - 1), self._opening))

    def of(self, token: int) -> str:
        return str(self._tokenizer.decode([token]))


def load_hub_image(name: str, dtype: torch.dtype, device: torch.device, progress: Progress = silent) -> LoadedImage:
    """The Janus, Anole or LlamaGen model called ``name``. Raises ModelUnavailable when it is none or cannot be had."""
    return _SHELF.get(
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
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        model: Any = JanusForConditionalGeneration.from_pretrained(
            folder, dtype=dtype, use_safetensors=True, local_files_only=True, trust_remote_code=False
        )
    prompts = ChatPrompts(tokenizer)
    model = model.to(device).eval().requires_grad_(False)
    quantizer = model.model.vqmodel.quantize
    weight = quantizer.embedding.weight
    return LoadedImage(
        name=name, model=model, prompts=prompts, grid=int(quantizer.quant_state_dims[0]), codes=weight.shape[0],
        first_code=model.config.text_config.vocab_size, codebook=F.normalize(weight.float(), dim=-1), guidance=GUIDANCE,
        device=weight.device, dtype=weight.dtype, tokenizer_hash=prompts.digest, digest=name, codebook_digest=name,
    )  # fmt: skip
