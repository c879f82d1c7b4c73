"""Layer-parallel form of the small draft model: several layers' attention from one input, in one call.

Its norms have no weights, so layers with one input share the normalised input too: queries, keys and values of the whole
group are one product, their attention one call over a batch of layers, their outputs one batched product. Feed-forward stays
one layer after the other, each on what the layers before it added.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from specviz.drafting.networks.fused_decoder import spans
from specviz.drafting.networks.small_lm import SmallCache, SmallLM, Stepper, unit


class GroupedStepper(Stepper):
    """Like :class:`Stepper`, but layers between the first and the last attend ``group`` at a time."""

    def __init__(self, model: SmallLM, group: int) -> None:
        super().__init__(model)
        self.spans = spans(len(self.layers), group)
        self._joint = {
            span: (
                torch.cat([self.layers[place][0] for place in span]),
                torch.stack([self.layers[place][1] for place in span]),
            )
            for span in self.spans
            if len(span) > 1
        }

    def __call__(self, ids: Tensor, cache: SmallCache, last_only: bool) -> Tensor:
        model, token, start = self.model, ids.shape[0], cache.length
        x, turns = self.entered(ids, cache)
        low = max(0, start + 1 - self.config.window)
        mask = self._mask(start, token, low)
        for span in self.spans:
            if len(span) == 1:
                x = self.layer(span[0], x, turns, cache, (low, start), mask)
                continue
            qkv, out = self._joint[span]
            added = self._side_by_side(F.linear(unit(x), qkv), out, span, turns, cache, (low, start), mask)
            for place, own in zip(span, added, strict=True):
                x = x + own
                _, _, up, down = self.layers[place]
                x = torch.addmm(x, F.relu(F.linear(unit(x), up)).square_(), down)
        cache.length = start + token
        return F.linear(unit(x[-1:] if last_only else x), self.head, model.bias)

    def _side_by_side(
        self,
        mixed: Tensor,
        out: Tensor,
        span: Sequence[int],
        turns: list[Tensor],
        cache: SmallCache,
        place: tuple[int, int],
        mask: Tensor | None,
    ) -> Tensor:
        """mixed [token, layer * 3 * width] to what each layer's attention adds, [layer, token, width]."""
        (low, start), token, layers = place, len(mixed), len(span)
        end, heads, size = start + token, self.config.heads, self.size
        split = mixed.view(token, layers, 3, heads, size)
        turned = unit(split[:, :, :2])
        cosine, sine = (table[:, None] for table in turns)
        turned = torch.addcmul(turned * cosine, turned.roll(size // 2, -1), sine)
        keys, values = (part[span[0] : span[-1] + 1, 0] for part in (cache.keys, cache.values))
        keys[:, :, start:end] = turned[:, :, 1].permute(1, 2, 0, 3)
        values[:, :, start:end] = split[:, :, 2].permute(1, 2, 0, 3)
        attended = F.scaled_dot_product_attention(
            turned[:, :, 0].permute(1, 2, 0, 3),
            keys[:, :, low:end],
            values[:, :, low:end],
            attn_mask=mask,
            is_causal=mask is None and token > 1,
            scale=size**0.5,
        )
        return torch.bmm(attended.transpose(1, 2).reshape(layers, token, -1), out)
