"""Small masked-diffusion language model: the small draft model's narrow layers with bidirectional attention.

One denoising step reads the text followed by a block of mask tokens, and predicts all tokens of the block at once. As in Dream
(arXiv 2508.15487), which also started from an autoregressive model, a token is predicted at the position before it. Axis names:
``batch``, ``token``, ``place`` (in the block), ``width``, ``hidden`` (of the target), ``draft`` (vocabulary).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specviz.drafting.networks.small_lm import NarrowNet, SmallConfig


class MaskedLM(NarrowNet):
    """Predictor of masked tokens among ``draft_ids``, with the target's embedding for input and output.

    The config's ``window`` is the maximum number of tokens and masks per pass.
    """

    title = "masked language model"

    def __init__(self, config: SmallConfig, embedding: Tensor, draft_ids: Tensor) -> None:
        super().__init__(config, embedding, draft_ids)
        self.blank = nn.Parameter(torch.zeros(1, config.hidden))  # embedding of the mask, which the target lacks

    def features(self, ids: Tensor, blank: Tensor, mask: Tensor | None = None) -> Tensor:
        """Map token ids and their mask flags ``blank``, both [batch, token], to features [batch, token, width]; row j predicts
        token j + 1.

        ``mask`` bool [batch, token] is False on padding. Raises ValueError if there are more tokens than ``window``.
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

    @torch.inference_mode()
    def forward(self, ids: Tensor, places: int) -> Tensor:
        """Run one denoising step. Returns logits [place, draft] of ``places`` masks after the text ``ids`` [token]."""
        if not 0 < places < self.config.window:
            raise ValueError(f"a block has 1 to {self.config.window - 1} masks, not {places}")
        text = ids[-(self.config.window - places) :]
        return self._at_masks(F.pad(text, (0, places)), len(text), places, None)

    @torch.inference_mode()
    def padded(self, ids: Tensor, count: Tensor, places: int) -> Tensor:
        """Like :meth:`forward` in a fixed shape, for CUDA graphs: only the first ``count`` [1] of ``ids`` [token] are text."""
        return self._at_masks(ids, count, places, (torch.arange(len(ids), device=ids.device) < count + places)[None])

    def _at_masks(self, ids: Tensor, count: int | Tensor, places: int, seen: Tensor | None) -> Tensor:
        blank = torch.arange(len(ids), device=ids.device) >= count
        features = self.features(ids[None], blank[None], seen)[0]
        if self._ready is None:
            self._ready = self.head().contiguous()
        rows = torch.arange(places, device=ids.device) + (count - 1)
        return F.linear(features.index_select(0, rows), self._ready, self.bias)
