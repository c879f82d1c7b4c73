"""Anole: transformers' Chameleon whose head was trained to draw (Chern et al. 2024, arXiv 2407.06135): leloy/Anole-7b-v0.1-hf.

Codes are tokens of the text vocabulary, and a special token opens a picture. ``model.forward`` masks the codes'
logits, so layers and head are called directly. transformers has no pixel decoder for it: a picture shows colours of its codes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import AutoTokenizer, ChameleonForConditionalGeneration

from specviz.models.hub.opening import LOCAL, opening, refuse_missing
from specviz.models.image.codebook import direction_colours
from specviz.models.image.image import LoadedImage
from specviz.models.image.prompts import AnolePrompts
from specviz.models.loading_lock import exclusive_loading

GUIDANCE = 3.0
"""LANTERN's guidance scale."""
COLOURS = (
    "No pixel decoder comes with this model: the picture shows each code as a colour, which its three main directions in the "
    "codebook give."
)


@dataclass(frozen=True)
class LoadedAnole(LoadedImage):
    """A Chameleon that draws. ``code_ids`` [code] are its codes' token ids, in the codebook's order."""

    code_ids: Tensor

    @property
    def stack(self) -> Any:
        return self.model.model

    @cached_property
    def head(self) -> Callable[[Tensor], Tensor]:
        weight = self.model.lm_head.weight[self.code_ids]
        return lambda hidden: F.linear(hidden, weight)

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
    """Load the model in ``folder``. Raises ModelUnavailable if it is no Chameleon, or weights are missing."""
    with opening(name, folder, "a Chameleon model"), exclusive_loading():
        tokenizer = AutoTokenizer.from_pretrained(folder, **LOCAL)
        opened: Any = ChameleonForConditionalGeneration.from_pretrained(
            folder, dtype=dtype, use_safetensors=True, output_loading_info=True, **LOCAL
        )
        model, info = opened
    refuse_missing(name, (key for key in info["missing_keys"] if "vqmodel.encoder" not in key and "quant_conv" not in key))
    model = model.to(device).eval().requires_grad_(False)
    codebook, vq = model.model.vqmodel.quantize.embedding.weight.float(), model.config.vq_config
    grid = int(vq.resolution) // 2 ** (len(vq.channel_multiplier) - 1)  # every level of the encoder but the last halves a side
    token_of = model.model.vocabulary_mapping.img2bpe
    code_ids = torch.tensor([token_of[code] for code in range(len(codebook))], device=device)
    return LoadedAnole(name, model, AnolePrompts(tokenizer, name), grid, 0, codebook, GUIDANCE, name, name, code_ids)
