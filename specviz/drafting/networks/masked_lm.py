"""Small masked-diffusion language model: the small draft model's narrow layers with bidirectional attention.

One denoising step reads the text with a block of masks behind it and gives every masked place a distribution at once. As in Dream
(arXiv 2508.15487), which also began as an autoregressive model, the row before a place predicts it.
Axis names: ``batch``, ``token``, ``place`` (in the block), ``width``, ``hidden`` (of the target), ``draft`` (vocabulary).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specviz.drafting.networks.small_lm import SmallBlock, SmallConfig, rotary
from specviz.drafting.networks.weights import read_weights, write_weights
from specviz.errors import ModelUnavailable


class MaskedLM(nn.Module):
    """Predicts masked tokens among ``draft_ids``, read and written by the target's embedding. ``window`` of the config is
    how many tokens of text and masks it reads at a time."""

    embedding: Tensor
    draft_ids: Tensor
    rotary: Tensor

    def __init__(self, config: SmallConfig, embedding: Tensor, draft_ids: Tensor) -> None:
        super().__init__()
        if embedding.shape != (config.vocab_size, config.hidden):
            raise ModelUnavailable(
                f"This masked language model was made for an embedding of {config.vocab_size} x {config.hidden}, "
                f"the target has {embedding.shape[0]} x {embedding.shape[1]}: choose the target it was trained for."
            )
        self.config = config
        self.enter = nn.Linear(2 * config.hidden, config.width, bias=False)
        self.blocks = nn.ModuleList(SmallBlock(config) for _ in range(config.layers))
        self.leave = nn.Linear(config.width, config.hidden, bias=False)
        self.bias = nn.Parameter(torch.zeros(config.draft_vocab))
        self.blank = nn.Parameter(torch.zeros(1, config.hidden))  # a mask's embedding, which the target has none of
        self.register_buffer("embedding", embedding, persistent=False)
        self.register_buffer("draft_ids", draft_ids.long(), persistent=False)
        self.register_buffer("rotary", rotary(config, config.window).to(embedding), persistent=False)
        self._head: Tensor | None = None

    def head(self) -> Tensor:
        """The target's head seen from this model's width, [draft, width]."""
        return self.embedding[self.draft_ids] @ self.leave.weight

    def features(self, ids: Tensor, blank: Tensor, mask: Tensor | None = None) -> Tensor:
        """Token ids and which of them are masked, both [batch, token], to [batch, token, width]: row j foresees j + 1.

        ``mask`` bool [batch, token] is False on padding. Raises ValueError on more tokens than the window.
        """
        if ids.shape[1] > self.config.window:
            raise ValueError(f"{ids.shape[1]} tokens do not fit the window of {self.config.window}")
        cosine, sine = self.rotary[0, : ids.shape[1]], self.rotary[1, : ids.shape[1]]
        embedded = torch.where(blank[..., None], self.blank.to(self.embedding), F.embedding(ids, self.embedding))
        before = F.embedding(torch.zeros_like(ids[:, :1]), self.embedding)
        x = self.enter(torch.cat((torch.cat((before, embedded[:, :-1]), 1), embedded), -1))
        attention_mask = None if mask is None else mask[:, None, None]
        for block in self.blocks:
            x = block(x, cosine, sine, causal=False, mask=attention_mask)
        return F.rms_norm(x, (x.shape[-1],))

    def train(self, mode: bool = True) -> MaskedLM:
        """Weights that may change make the folded head stale."""
        self._head = None
        return super().train(mode)

    @torch.inference_mode()
    def forward(self, ids: Tensor, places: int) -> Tensor:
        """One denoising step: logits [place, draft] of ``places`` masks behind the text ``ids`` [token]."""
        if not 0 < places < self.config.window:
            raise ValueError(f"a block has 1 to {self.config.window - 1} places, not {places}")
        text = ids[-(self.config.window - places) :]
        blank = torch.arange(len(text) + places, device=ids.device) >= len(text)
        features = self.features(F.pad(text, (0, places))[None], blank[None])[0]
        if self._head is None:
            self._head = self.head().contiguous()
        return F.linear(features[len(text) - 1 : -1], self._head, self.bias)


def save(model: MaskedLM, path: Path, card: Mapping[str, str]) -> None:
    """Write the learned weights (row-wise int8), the vocabulary and ``card``; the target's own are left out."""
    tensors = {name: value.detach() for name, value in model.state_dict().items()}
    tensors["draft_ids"] = model.draft_ids
    path.parent.mkdir(parents=True, exist_ok=True)
    write_weights(path, tensors, {**card, "config": json.dumps(asdict(model.config))})


def load(path: Path, embedding: Tensor, dtype: torch.dtype, device: torch.device) -> MaskedLM:
    """The model in ``path``, tied to ``embedding``. Raises ModelUnavailable when they do not fit."""
    tensors, card = read_weights(path)
    if "config" not in card or "draft_ids" not in tensors:
        raise ModelUnavailable(f"{path.name} is no masked language model: choose a file that `train masked_lm` wrote.")
    config = SmallConfig(**json.loads(card["config"]))
    ids = tensors.pop("draft_ids")
    model = MaskedLM(config, embedding.detach().to(device, dtype), ids.to(device))
    try:
        model.load_state_dict(tensors)
    except RuntimeError as problem:
        raise ModelUnavailable(f"{path.name} does not hold this model's weights: fetch the file again.") from problem
    return model.to(device, dtype).eval().requires_grad_(False)
