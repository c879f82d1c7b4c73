"""Layer-parallel draft model: the attention of middle layers runs in parallel, and the cache is repaired once per round.

EasySpec (Wu et al., arXiv 2502.02493). In a group, every layer's attention reads the group's input instead of the previous
layer's output, so keys and values are slightly wrong: *fuzzy*. Each round therefore begins with an exact pass over the tokens
committed since the last exact pass. The exact pass overwrites fuzzy entries and gives the distribution of the first draft token.
Later draft tokens come from fuzzy distributions. Rejection sampling uses the same distributions, so the output stays exact.

The model is the shipped small model or a lean decoder. The small model's norms have no weights, so all layers of a group share
one normalised input. The queries, keys and values of a group are then one matrix product, the attention one batched call, and
the output projections one batched product. Feed-forward layers stay sequential.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from specviz.drafting.levels import ChainLevels
from specviz.drafting.networks.fused_decoder import FusedDecoder, FusedSession, spans
from specviz.drafting.networks.rotary import turn
from specviz.drafting.networks.small_lm import FixedRows, Rows, SmallCache, SmallLM, SmallRuntime, unit
from specviz.drafting.runtimes.language_model import Chain, ChainModel, LanguageModelDrafter, SmallModel
from specviz.engine.interfaces import Context, Pick, TargetPass
from specviz.engine.to_device import to_device
from specviz.engine.tree import DraftTree, chain
from specviz.targets.hybrid import CausalTarget
from specviz.trace.notes.models import LayerGroupsNote
from specviz.trace.schema import Note


class Fuzzy(ChainModel, Protocol):
    """State of a draft model in one run. A forward is exact or *fuzzy*, with groups of layers in parallel."""

    def entries(self, start: int, end: int) -> Tensor:
        """Return a copy of the keys and values of the tokens ``start`` to ``end``, [layer, token, number]."""


@dataclass(frozen=True)
class GroupedModel:
    """Draft model with groups of layers that run in parallel.

    ``spans``: layers of each group. ``open(capacity, calibrated)``: function that opens the model for a run of ``capacity``
    tokens. ``calibrated``: whether the first level of a round is exact.
    """

    name: str
    context_length: int
    spans: tuple[tuple[int, ...], ...]
    open: Callable[..., Fuzzy]
    devices: tuple[str, ...] = ()
    """Device of each layer; empty if all layers share one."""
    warnings: tuple[str, ...] = ()


PIECE = 256
"""Number of tokens in a pass over a prompt."""


class GroupedDrafter(LanguageModelDrafter):
    """Chain drafter with a grouped model. ``calibrated``: whether to repair fuzzy cache entries in every round."""

    _model: Fuzzy | None

    def __init__(self, model: GroupedModel, calibrated: bool = True) -> None:
        super().__init__(partial(model.open, calibrated=calibrated), model.context_length)
        self._grouped, self._calibrated = model, calibrated
        self._repair: dict[str, Any] = {}
        """Token counts of the round: in the exact pass, repaired, still fuzzy. ``likeness`` [layer, token]: cosine similarity of
        repaired and fuzzy entries."""
        self._before: tuple[int, int, Tensor] | None = None
        """Range of the tokens to repair, and a copy of the fuzzy entries."""

    def begin(self, context: Context, prefill: TargetPass | None) -> None:
        super().begin(context, prefill)
        self._agreed = len(self._fed)  # number of leading tokens with exact cache entries

    def _begin_chain(self, context: Context, text: list[int], deepest: int) -> Chain:
        """Return the levels of the round. The first level is a pass over the tokens without exact entries."""
        model, exact, same = self._model, self._agreed, self._same(text)
        assert model is not None
        self._fed, self._before = text, None
        if not self._calibrated:
            model.rewind(same)
            self._repair = {"exact": 0, "repaired": 0, "likeness": (), "fuzzy": len(text) - exact}
            return model.chain(text[same:], deepest)
        if context.record_notes and same > exact:
            with context.untimed:
                self._before = exact, same, model.entries(exact, same)
        self._repair = {"exact": len(text) - exact, "repaired": max(0, same - exact), "likeness": (), "fuzzy": 0}
        model.rewind(exact)
        self._agreed = len(text)
        return model.chain(text[exact:], deepest)

    def draft_notes(self, picks: Sequence[Pick]) -> tuple[Note, ...]:
        if not picks:  # the model did not run, so its last repair is that of an earlier round
            return ()
        spans = self._grouped.spans
        if self._before is not None and self._model is not None:
            exact, same, before = self._before
            after = self._model.entries(exact, same)
            self._repair["likeness"] = F.cosine_similarity(before.float(), after.float(), dim=-1).tolist()
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


class GroupedRuntime(SmallRuntime):
    """:class:`SmallRuntime` with the attention of up to ``group`` layers in parallel; the first and the last layer run alone."""

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

    def outputs(self, rows: Rows | FixedRows, cache: SmallCache) -> Tensor:
        x = F.linear(F.embedding(rows.pairs, self.model.embedding).flatten(-2), self.model.enter.weight)
        for span in self.spans:
            if len(span) == 1:
                x = self.layer(span[0], x, rows, cache)
                continue
            qkv, out = self._joint[span]
            # [token, layer, query/key/value, head, size]
            split = F.linear(unit(x), qkv).view(len(x), len(span), 3, self.config.heads, self.size)
            turned = turn(unit(split[:, :, :2]), *(table[:, None] for table in rows.turns))
            keys, values = (part[span[0] : span[-1] + 1, 0] for part in (cache.keys, cache.values))
            attended = self.attend(
                turned[:, :, 0].permute(1, 2, 0, 3),
                rows.put(keys, turned[:, :, 1].permute(1, 2, 0, 3)),
                rows.put(values, split[:, :, 2].permute(1, 2, 0, 3)),
                rows,
            )
            added = torch.bmm(attended.transpose(1, 2).reshape(len(span), len(x), -1), out)
            for place, own in zip(span, added, strict=True):
                _, _, up, down = self.layers[place]
                x = x + own
                x = torch.addmm(x, F.relu(F.linear(unit(x), up)).square_(), down)
        return x


class SmallFuzzy(SmallModel):
    """State of the small draft model in one run; fuzzy passes use a :class:`GroupedRuntime`."""

    def entries(self, start: int, end: int) -> Tensor:
        both = torch.stack((self._cache.keys[:, 0, :, start:end], self._cache.values[:, 0, :, start:end]))
        return both.permute(1, 3, 0, 2, 4).flatten(2).clone()


class FusedFuzzy(FusedSession):
    """State of a lean decoder in one run."""

    support: Tensor | None = None

    def __init__(self, decoder: FusedDecoder, vocab_size: int, calibrated: bool) -> None:
        super().__init__(decoder, PIECE)
        self._calibrated, self._rows = calibrated, min(vocab_size, decoder.shape.vocab_size)
        if decoder.shape.vocab_size != vocab_size:
            self.support = torch.arange(self._rows, device=decoder.device)

    def extend(self, ids: Sequence[int] | Tensor, fuzzy: bool = False) -> Tensor:
        """Append ``ids`` to the cache and return the logits [support] of the next token."""
        tokens = ids.to(self.decoder.device) if isinstance(ids, Tensor) else to_device(ids, self.decoder.device)
        for piece in tokens.clamp_max(self.decoder.shape.vocab_size - 1).split(PIECE):
            logits = self._run(DraftTree(chain(len(piece) - 1), piece), 1, fuzzy).logits
            self._cache.length += len(piece)
        return logits[-1, : self._rows]

    def chain(self, ids: Sequence[int], deepest: int) -> ChainLevels:
        """Return the levels of a round.

        The first level is exact if the model was opened as calibrated; later levels are fuzzy.
        """

        def after(token: Tensor | None) -> Tensor:
            return self.extend(ids, not self._calibrated) if token is None else self.extend(token, True)

        return ChainLevels(after, deepest)

    def entries(self, start: int, end: int) -> Tensor:
        """Return a copy on the CPU of the keys and values of the tokens ``start`` to ``end``, [layer, token, number]."""
        layers = [layer[:, :, start:end].permute(2, 0, 1, 3).flatten(1).cpu() for layer in self._cache.layers]
        return torch.stack(layers)


def grouped_model(
    name: str, model: SmallLM | FusedDecoder, target: CausalTarget, group: int = 0, warnings: tuple[str, ...] = ()
) -> GroupedModel:
    """Wrap ``model`` as the draft model ``name``. ``group``: maximum group size of a SmallLM; a FusedDecoder has its own."""
    if isinstance(model, SmallLM):
        runtime = GroupedRuntime(model, group)

        def opened(capacity: int, calibrated: bool) -> SmallFuzzy:
            return SmallFuzzy(model, capacity, None, (model.inference() if calibrated else runtime, runtime))

        return GroupedModel(name, target.context_length, runtime.spans, opened)
    places = tuple(str(layer.device) for layer in model.layers)
    devices = places if len(set(places)) > 1 else ()
    length, spans = model.shape.context_length, model.spans
    return GroupedModel(
        name, length, spans, lambda _, calibrated: FusedFuzzy(model, target.vocab_size, calibrated), devices, warnings
    )
