"""Caption prompts: features of a caption from transformers' T5 encoder, as LlamaGen reads them.

A caption takes as many places as the empty prompt has features; a shorter one is padded on its left with zeros, which no
place behind them sees. Both rows hide the same places. Captions are lower-cased and their blanks made single; the release
strips addresses and file names of captions from the web besides, which people do not type.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import AutoTokenizer, T5EncoderModel

from specviz.errors import ModelUnavailable
from specviz.models.hub.opening import opening
from specviz.models.image.prompts import PromptRows, checked
from specviz.models.loading_lock import exclusive_loading


class CaptionPrompts:
    """Prompts that a T5 reads (``models.prompts.PromptReader``). ``empty`` [place, feature] is the empty prompt;
    ``projection`` are the two matrices [hidden, ..] which embed features."""

    def __init__(self, tokenizer: Any, encoder: Any, empty: Tensor, projection: Sequence[Tensor]) -> None:
        self._tokenizer, self._encoder, self._empty = tokenizer, encoder, empty
        self._first, self._second = projection
        self.digest = hashlib.sha256(repr(sorted(tokenizer.get_vocab().items())[:4096]).encode()).hexdigest()[:16]

    @torch.inference_mode()
    def rows(self, prompt: str) -> PromptRows:
        text, places = " ".join(checked(prompt).lower().split()), len(self._empty)
        every = self._tokenizer(text)["input_ids"]
        ids = self._tokenizer(text, truncation=True, max_length=places)["input_ids"]
        device = self._encoder.device
        features = self._encoder(input_ids=torch.tensor([ids], device=device)).last_hidden_state[0].to(self._empty)
        unseen = places - len(ids)
        padded = torch.cat((features.new_zeros(unseen, features.shape[1]), features))
        unread = "" if len(every) <= places else str(self._tokenizer.decode(every[len(ids) - 1 : -1]))
        nothing = (self._padding,) * places
        embedded = self._embedded(torch.stack((padded, self._empty)))
        return PromptRows((*nothing[:unseen], *ids), nothing, unread, embedded, unseen)

    def of(self, token: int) -> str:
        return "<pad>" if token == self._padding else str(self._tokenizer.decode([token]))

    @property
    def size(self) -> int:
        """How many ids its tokenizer gives."""
        return len(self._tokenizer)

    @property
    def _padding(self) -> int:
        return int(self._tokenizer.pad_token_id)

    def _embedded(self, features: Tensor) -> Tensor:
        """Features [row, place, feature] to embeddings [row, place, hidden]."""
        return F.linear(F.gelu(F.linear(features, self._first), approximate="tanh"), self._second)


def load_captions(name: str, folder: Path, empty: Tensor, projection: Sequence[Tensor]) -> CaptionPrompts:
    """The T5 in ``folder`` in front of a decoder. Raises ModelUnavailable where there is none, or one of another width."""
    if not (folder / "config.json").is_file():
        raise ModelUnavailable(
            f"{name} draws captions, which a T5 reads first: put google/flan-t5-xl into {folder} (`hf download google/flan-t5-xl "
            f"--local-dir {folder}`)."
        )
    safely: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
    # T5's feed-forward overflows in float16.
    dtype = torch.float32 if empty.dtype == torch.float16 else empty.dtype
    with opening(f"the T5 of {name}", folder), exclusive_loading():
        tokenizer = AutoTokenizer.from_pretrained(folder, **safely)
        encoder: Any = T5EncoderModel.from_pretrained(folder, dtype=dtype, use_safetensors=True, **safely)
    if encoder.config.d_model != empty.shape[1] or tokenizer.pad_token_id is None:
        raise ModelUnavailable(
            f"The T5 in {folder} gives {encoder.config.d_model} features, and {name} reads {empty.shape[1]}: flan-t5-xl has 2048."
        )
    return CaptionPrompts(tokenizer, encoder.to(empty.device).eval().requires_grad_(False), empty, projection)
