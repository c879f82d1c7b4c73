"""Layer-parallel draft models, as used in one run: several consecutive layers' attention is computed in parallel.

The model is either the shipped small model or a lean decoder. The small model's norms have no weights, so layers that read the
same input also share its normalised form. A group's queries, keys and values are then one matrix product, its attention is one
call over a batch of layers, and its outputs are one batched product. The feed-forwards stay sequential.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from specviz.drafting.networks.fused_decoder import LeanDecoder, spans
from specviz.drafting.networks.rotary import turn
from specviz.drafting.networks.small_lm import SmallCache, SmallLM, Stepper, unit
from specviz.drafting.runtimes.language_model import SmallModel
from specviz.engine.tiers import tree_attention_mask
from specviz.engine.to_device import to_device
from specviz.engine.tree import DraftTree, chain
from specviz.methods.easyspec.drafter import GroupedModel
from specviz.targets.causal import CausalTarget

PIECE = 256


class GroupedStepper(Stepper):
    """Like :class:`Stepper`, but the attention of up to ``group`` layers between the first and the last runs in parallel."""

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
        """Map mixed [token, layer * 3 * width] to each layer's attention output, [layer, token, width]."""
        (low, start), token, layers = place, len(mixed), len(span)
        end, heads, size = start + token, self.config.heads, self.size
        split = mixed.view(token, layers, 3, heads, size)
        turned = unit(split[:, :, :2])
        turned = turn(turned, *(table[:, None] for table in turns))
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


class SmallFuzzy(SmallModel):
    """Per-run state of the small draft model. Exact passes run the model itself, fuzzy ones ``stepper``."""

    def __init__(self, model: SmallLM, stepper: GroupedStepper, capacity: int) -> None:
        super().__init__(model, capacity)
        self._stepper = stepper

    @torch.inference_mode()
    def extend(self, ids: Sequence[int] | Tensor, fuzzy: bool = False) -> Tensor:
        """Append ``ids``; return logits [support] after them."""
        if not fuzzy or len(ids) > self._model.config.window:
            return super().extend(ids)
        tokens = ids if isinstance(ids, Tensor) else to_device(list(ids), self._model.draft_ids.device)
        return self._stepper(tokens, self._cache, True)[-1]

    def entries(self, start: int, end: int) -> Tensor:
        """Return these tokens' keys and values, [layer, token, number]."""
        both = torch.stack((self._cache.keys[:, 0, :, start:end], self._cache.values[:, 0, :, start:end]))
        return both.permute(1, 3, 0, 2, 4).flatten(2).clone()


class LeanFuzzy:
    """Per-run state of a lean decoder."""

    support: Tensor | None = None

    def __init__(self, decoder: LeanDecoder, vocab_size: int) -> None:
        self._decoder = decoder
        self._cache = decoder.open(512)
        self._rows = min(vocab_size, decoder.shape.vocab_size)
        if decoder.shape.vocab_size != vocab_size:
            self.support = torch.arange(self._rows, device=decoder.device)

    def extend(self, ids: Sequence[int] | Tensor, fuzzy: bool = False) -> Tensor:
        """Append ``ids``; return logits [support] after them."""
        if isinstance(ids, Tensor):
            known = ids.to(self._decoder.device).clamp_max(self._decoder.shape.vocab_size - 1)
            only = self._pass(DraftTree(chain(len(ids) - 1), known), fuzzy)
            self._cache.length += len(ids)
            return only[-1, : self._rows]
        logits = None
        for first in range(0, len(ids), PIECE):
            piece = [min(token, self._decoder.shape.vocab_size - 1) for token in ids[first : first + PIECE]]
            logits = self._pass(DraftTree.of(piece, chain(len(piece) - 1).parents, self._decoder.device), fuzzy)
            self._cache.length += len(piece)
        assert logits is not None
        return logits[-1, : self._rows]

    def _pass(self, tree: DraftTree, fuzzy: bool) -> Tensor:
        start, nodes, device = self._cache.length, len(tree), self._decoder.device
        self._cache.reserve(start + nodes)
        self._decoder.reach(start + nodes)
        places = torch.arange(start, start + nodes, device=device)
        mask = tree_attention_mask(tree, start, start + nodes, nodes, device) if nodes > 1 else None
        return self._decoder(tree.tokens, places, self._cache, mask, together=fuzzy, last=1)[0]

    def rewind(self, length: int) -> None:
        """Keep the first ``length`` tokens."""
        self._cache.length = min(length, self._cache.length)

    def entries(self, start: int, end: int) -> Tensor:
        """Return these tokens' keys and values, [layer, token, number]."""
        layers = [layer[:, :, start:end].permute(2, 0, 1, 3).flatten(1).cpu() for layer in self._cache.layers]
        return torch.stack(layers)

    def close(self) -> None:
        """Drop the cache."""
        self._cache = self._decoder.open(1)


def grouped_model(
    name: str, model: SmallLM | LeanDecoder, group: int, target: CausalTarget, warnings: tuple[str, ...] = ()
) -> GroupedModel:
    """Wrap ``model`` as the draft model ``name``. A SmallLM runs up to ``group`` layers' attention in parallel; a LeanDecoder has
    its own grouping."""
    if isinstance(model, LeanDecoder):
        return of_decoder(name, model, target, warnings)
    stepper = GroupedStepper(model, group)
    return GroupedModel(name, target.context_length, stepper.spans, lambda capacity: SmallFuzzy(model, stepper, capacity))


def of_decoder(name: str, decoder: LeanDecoder, target: CausalTarget, warnings: tuple[str, ...] = ()) -> GroupedModel:
    """Wrap a lean decoder as a draft model for this target."""
    places = tuple(str(layer.device) for layer in decoder.layers)
    return GroupedModel(
        name,
        decoder.shape.context_length,
        decoder.spans,
        lambda capacity: LeanFuzzy(decoder, target.vocab_size),
        places if len(set(places)) > 1 else (),
        warnings,
    )
