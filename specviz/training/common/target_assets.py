"""Assets of the frozen target that every recipe needs: its embedding and the ids of its chat template's fixed parts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from specviz.errors import ModelUnavailable
from specviz.models.text.load import LoadedText, load_causal_lm
from specviz.training.common.data import ANSWER, PREFIX, TURN, Markers

TARGET = "smollm2-135m-instruct"


@dataclass(frozen=True)
class TargetAssets:
    """``embedding`` is float32 [vocab, hidden]; ``answer`` are the ids between a user turn and its answer."""

    target: LoadedText
    embedding: Tensor
    markers: Markers
    answer: tuple[int, ...]


def target_assets(device: str, name: str = TARGET, dtype: str = "auto") -> TargetAssets:
    """Load the target and take what training needs of it. Raises ModelUnavailable when its template is another one."""
    loaded = load_causal_lm(name, dtype, device, lambda message, fraction: print(message, flush=True))
    ids = {part: _ids(loaded.tokenizer, part) for part in (PREFIX, ANSWER, TURN)}
    end = _ids(loaded.tokenizer, "<|im_end|>")
    if len(end) != 1 or end[0] not in loaded.eos_ids or ids[ANSWER][0] != end[0]:
        raise ModelUnavailable(
            f"{name} does not end its turns with <|im_end|>, so it is no SmolLM2: the recipes are for {TARGET}."
        )
    embedding = loaded.model.get_input_embeddings().weight.detach().to(torch.float32)
    return TargetAssets(loaded, embedding, Markers(ids[PREFIX], ids[TURN], end[0]), ids[ANSWER])


def _ids(tokenizer: Any, text: str) -> tuple[int, ...]:
    return tuple(tokenizer(text, add_special_tokens=False)["input_ids"])
