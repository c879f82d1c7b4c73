"""Layer-parallel draft model (EasySpec): middle layers' attention runs in parallel, and the cache is corrected once per round.

EasySpec (Wu et al., arXiv 2502.02493). A layer that reads its group's input, instead of the previous layer's output, computes
slightly wrong keys and values. Each round therefore begins with one exact pass over the tokens committed since the last exact
pass. It overwrites the fuzzy entries and yields the first drafted token's distribution. Later tokens are sampled from fuzzy
distributions, and the ratio test uses those same distributions, so it stays exact.

The model is the shipped small model or a lean decoder. The small model's norms have no weights, so layers that read the same
input also share its normalised form. A group's queries, keys and values are then one matrix product, its attention is one call
over a batch of layers, and its outputs are one batched product. The feed-forwards stay sequential.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from specviz.drafting.networks.fused_decoder import LeanDecoder, spans
from specviz.drafting.networks.rotary import turn
from specviz.drafting.networks.small_lm import SmallCache, SmallLM, Stepper, unit
from specviz.drafting.runtimes.language_model import ChainModel, LanguageModelDrafter, SmallModel
from specviz.engine.interfaces import Context, Pick, TargetPass
from specviz.engine.tiers import tree_attention_mask
from specviz.engine.to_device import to_device
from specviz.engine.tree import DraftTree, chain
from specviz.targets.hybrid import CausalTarget
from specviz.trace.notes.models import LayerGroupsNote
from specviz.trace.schema import Note


class Fuzzy(ChainModel, Protocol):
    """A draft model's state in one run, whose forwards are exact or run groups of layers in parallel."""

    def extend(self, ids: Sequence[int] | Tensor, fuzzy: bool = False) -> Tensor:
        """Append ``ids`` (a sequence, or int64 [token] on the model's device); return logits [support] after them."""

    def entries(self, start: int, end: int) -> Tensor:
        """Return a copy of these tokens' keys and values, [layer, token, number]."""


@dataclass(frozen=True)
class GroupedModel:
    """A draft model, its groups of layers with parallel attention, and a function that opens it with a capacity in tokens."""

    name: str
    context_length: int
    spans: tuple[tuple[int, ...], ...]
    open: Callable[[int], Fuzzy]
    devices: tuple[str, ...] = ()
    """Device of each layer, if they differ."""
    warnings: tuple[str, ...] = ()


PIECE = 256
"""Number of tokens in a pass over a prompt."""


class GroupedDrafter(LanguageModelDrafter):
    """Chain drafter on a grouped model. With ``calibrated`` False, fuzzy entries are never repaired, to show their long-run
    effect."""

    _model: Fuzzy | None

    def __init__(self, model: GroupedModel, calibrated: bool = True) -> None:
        super().__init__(model.open, model.context_length)
        self._grouped, self._calibrated = model, calibrated
        self._repair: dict[str, Any] = {}
        """Token counts of the round (in its exact pass, repaired by that pass, still fuzzy), and ``likeness`` [layer, token]: the
        cosine similarity of repaired entries to their fuzzy versions."""

    def begin(self, context: Context, prefill: TargetPass | None) -> None:
        super().begin(context, prefill)
        self._agreed = len(self._fed)  # length of the cache's prefix with exact entries

    def _after(self, context: Context, token: Tensor | None) -> Tensor:
        assert self._model is not None
        self._calls += 1
        if token is None:
            return self._first(self._model, context, list(context.ids))
        self._unseen += 1
        return self._model.extend(token, True)

    def _first(self, model: Fuzzy, context: Context, text: list[int]) -> Tensor:
        """Return the round's first logits, from an exact pass over the committed tokens without exact entries (fuzzy if not
        calibrated)."""
        exact, same = self._agreed, self._same(text)
        if not self._calibrated:
            model.rewind(same)
            self._repair = {"exact": 0, "repaired": 0, "likeness": (), "fuzzy": len(text) - exact}
            logits = model.extend(text[same:], True)
        else:
            watched = context.record_notes and same > exact
            with context.untimed if watched else nullcontext():
                before = model.entries(exact, same) if watched else None
            model.rewind(exact)
            logits = model.extend(text[exact:])
            likeness = list[list[float]]()
            if before is not None:
                with context.untimed:
                    after = model.entries(exact, same)
                    likeness = F.cosine_similarity(before.float(), after.float(), dim=-1).tolist()
            repaired = max(0, same - exact)
            self._repair = {"exact": len(text) - exact, "repaired": repaired, "likeness": likeness, "fuzzy": 0}
            self._agreed = len(text)
        self._fed, self._unseen = text, 0
        return logits

    def draft_notes(self, picks: Sequence[Pick]) -> tuple[Note, ...]:
        spans = self._grouped.spans
        note = LayerGroupsNote(
            layers=sum(map(len, spans)),
            groups=[list(span) for span in spans],
            stages=len(spans),
            calibrated=self._calibrated,
            cached=len(self._fed) + self._unseen,
            drafted=len(picks),
            devices=list(self._grouped.devices),
            **self._repair,
        )
        return (note.to_note(),)


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
        tokens = ids.to(self._decoder.device) if isinstance(ids, Tensor) else to_device(list(ids), self._decoder.device)
        for piece in tokens.clamp_max(self._decoder.shape.vocab_size - 1).split(PIECE):
            logits = self._pass(DraftTree(chain(len(piece) - 1), piece), fuzzy)
        return logits[-1, : self._rows]

    def _pass(self, tree: DraftTree, fuzzy: bool) -> Tensor:
        start, nodes, device = self._cache.length, len(tree), self._decoder.device
        self._cache.reserve(start + nodes)
        self._decoder.reach(start + nodes)
        places = torch.arange(start, start + nodes, device=device)
        mask = tree_attention_mask(tree, start, start + nodes, nodes, device) if nodes > 1 else None
        logits = self._decoder(tree.tokens, places, self._cache, mask, together=fuzzy, last=1)[0]
        self._cache.length += nodes
        return logits

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
    name: str, model: SmallLM | LeanDecoder, target: CausalTarget, group: int = 0, warnings: tuple[str, ...] = ()
) -> GroupedModel:
    """Wrap ``model`` as the draft model ``name``. A SmallLM runs up to ``group`` layers' attention in parallel; a LeanDecoder has
    its own grouping."""
    if isinstance(model, SmallLM):
        stepper = GroupedStepper(model, group)
        return GroupedModel(name, target.context_length, stepper.spans, lambda capacity: SmallFuzzy(model, stepper, capacity))
    places = tuple(str(layer.device) for layer in model.layers)
    devices = places if len(set(places)) > 1 else ()
    length, spans = model.shape.context_length, model.spans
    return GroupedModel(name, length, spans, lambda capacity: LeanFuzzy(model, target.vocab_size), devices, warnings)
