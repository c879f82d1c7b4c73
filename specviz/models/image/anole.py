"""Anole: transformers' Chameleon whose head learned to draw (Chern et al. 2024, arXiv 2407.06135): leloy/Anole-7b-v0.1-hf.

Codes are tokens of the one vocabulary, and a picture follows the token that opens it: prompts are [begin, words, separator,
opening], the empty one [begin, opening], as LANTERN's authors draw with it. ``model.forward`` bars codes from being written, so
layers and head are called by themselves. transformers has no pixel decoder for it: a picture is shown in colours of its codes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import AutoTokenizer, ChameleonForConditionalGeneration

from specviz.errors import ModelUnavailable
from specviz.models.hub.opening import opening
from specviz.models.image.codebook import direction_colours
from specviz.models.image.image import LoadedImage
from specviz.models.image.prompts import PromptRows, checked
from specviz.models.loading_lock import exclusive_loading

OPENING, SEPARATOR = "<racm3:break>", "<reserved08706>"
GUIDANCE = 3.0
"""What LANTERN draws with."""
COLOURS = (
    "No pixel decoder comes with this model: the picture shows each code as a colour, which its three main directions in the "
    "codebook give."
)


class AnolePrompts:
    """Prompts of Anole (``models.prompts.PromptReader``)."""

    def __init__(self, tokenizer: Any, name: str) -> None:
        self._tokenizer = tokenizer
        self._opening, self._separator = (tokenizer.convert_tokens_to_ids(mark) for mark in (OPENING, SEPARATOR))
        for mark, token in ((OPENING, self._opening), (SEPARATOR, self._separator)):
            if token is None or token == tokenizer.unk_token_id:
                raise ModelUnavailable(f"The tokenizer of {name} has no {mark}, so nothing tells it to draw; choose Anole.")
        if tokenizer.bos_token_id is None:
            raise ModelUnavailable(f"The tokenizer of {name} has no token that begins a text; choose Anole.")
        self.digest = hashlib.sha256(repr(sorted(tokenizer.get_vocab().items())[:4096]).encode()).hexdigest()[:16]

    def rows(self, prompt: str) -> PromptRows:
        words = list(self._tokenizer(checked(prompt), add_special_tokens=False)["input_ids"])
        begin = int(self._tokenizer.bos_token_id)
        padding = (-1,) * (len(words) + 1)
        return PromptRows((begin, *words, self._separator, self._opening), (*padding, begin, self._opening))

    def of(self, token: int) -> str:
        return str(self._tokenizer.decode([token]))


@dataclass(frozen=True)
class LoadedAnole(LoadedImage):
    """A Chameleon that draws. ``code_ids`` [code] are its codes' token ids, in the codebook's order."""

    code_ids: Tensor = torch.empty(0, dtype=torch.long)

    @property
    def stack(self) -> Any:
        return self.model.model

    @property
    def head(self) -> Callable[[Tensor], Tensor]:
        weight = self._head_of_codes
        return lambda hidden: F.linear(hidden, weight)

    @cached_property
    def _head_of_codes(self) -> Tensor:
        return self.model.lm_head.weight[self.code_ids]

    @property
    def table(self) -> Tensor:
        every = self.model.get_input_embeddings().weight
        return torch.cat((every[self.code_ids], every))

    @property
    def side(self) -> int:
        return self.grid

    def pixels(self, codes: Tensor) -> Tensor:
        return self._colours[codes].view(self.grid, self.grid, 3)

    @cached_property
    def _colours(self) -> Tensor:
        return direction_colours(self.codebook)


def load_anole(name: str, folder: Path, dtype: torch.dtype, device: torch.device) -> LoadedAnole:
    """The model in ``folder``. Raises ModelUnavailable when it is none, or its weights are not whole."""
    safely: Any = {"local_files_only": True, "trust_remote_code": False}
    with opening(name, folder, "a Chameleon model"), exclusive_loading():
        tokenizer = AutoTokenizer.from_pretrained(folder, **safely)
        opened: Any = ChameleonForConditionalGeneration.from_pretrained(
            folder, dtype=dtype, use_safetensors=True, output_loading_info=True, **safely
        )
        model, info = opened
    missing = [key for key in sorted(info["missing_keys"]) if "vqmodel.encoder" not in key and "quant_conv" not in key]
    if missing:
        raise ModelUnavailable(f"{name} lacks {len(missing)} of its weights ({missing[0]}, …). Get the whole model.")
    model = model.to(device).eval().requires_grad_(False)
    prompts, codebook = AnolePrompts(tokenizer, name), model.model.vqmodel.quantize.embedding.weight.float()
    token_of = model.model.vocabulary_mapping.img2bpe
    code_ids = torch.tensor([token_of[code] for code in range(len(codebook))], device=device)
    return LoadedAnole(
        name=name, model=model, prompts=prompts, grid=_grid(model.config.vq_config), codes=len(codebook), first_code=0,
        codebook=codebook, guidance=GUIDANCE, device=codebook.device, dtype=model.dtype, tokenizer_hash=prompts.digest,
        digest=name, codebook_digest=name, code_ids=code_ids,
    )  # fmt: skip


def _grid(vq: Any) -> int:
    """Codes a row of a picture: its pixels, halved by every level of the encoder but the last."""
    return int(vq.resolution) // 2 ** (len(vq.channel_multiplier) - 1)
