"""Loader of layer-parallel draft models: the small one that ships, a copy of the target, or one named by the user.

Over several GPUs the layers of a named draft model are dealt out in turn (see ``placement``). The attention of a group then runs
on all of them at once; kernels are queued on each GPU without waiting for the others.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from specviz.drafting.networks.fused_decoder import LeanDecoder
from specviz.drafting.networks.small_lm import SmallLM
from specviz.drafting.runtimes.layer_groups import GroupedModel
from specviz.drafting.runtimes.small_groups import GroupedStepper
from specviz.engine.tiers import tree_attention_mask
from specviz.engine.to_device import to_device
from specviz.engine.tree import DraftTree, chain
from specviz.models.heads.drafts import SMALL, named_draft, shipped_small
from specviz.models.heads.intermediate_models import copies
from specviz.models.heads.placement import several
from specviz.models.heads.quantised_copy import check_copy, lean_copy
from specviz.models.hub.cache_dir import Progress
from specviz.models.text.load import LoadedText
from specviz.targets.causal import CausalTarget

PIECE = 256


class SmallFuzzy:
    """The small draft model in one run. Exact passes are its own, fuzzy ones those of ``stepper``."""

    def __init__(self, model: SmallLM, stepper: GroupedStepper, capacity: int) -> None:
        self._model, self._stepper = model, stepper
        self._cache = model.open(capacity)
        self.support: Tensor | None = model.draft_ids

    @property
    def length(self) -> int:
        """Tokens in the cache."""
        return self._cache.length

    @torch.inference_mode()
    def extend(self, ids: Sequence[int] | Tensor, fuzzy: bool) -> Tensor:
        """Logits [support] after ``ids`` were appended."""
        tokens = ids if isinstance(ids, Tensor) else to_device(list(ids), self._model.draft_ids.device)
        if fuzzy and len(tokens) <= self._model.config.window:
            return self._stepper(tokens, self._cache, True)[-1]
        return self._model(tokens, self._cache, last_only=True)[-1]

    def rewind(self, length: int) -> None:
        """Keep the first ``length`` tokens."""
        self._cache.keep(length)

    def entries(self, start: int, end: int) -> Tensor:
        """Keys and values of these tokens, [layer, token, number]."""
        both = torch.stack((self._cache.keys[:, 0, :, start:end], self._cache.values[:, 0, :, start:end]))
        return both.permute(1, 3, 0, 2, 4).flatten(2).clone()

    def close(self) -> None:
        """The cache goes with this object."""


class LeanFuzzy:
    """A lean decoder in one run."""

    support: Tensor | None = None

    def __init__(self, decoder: LeanDecoder, vocab_size: int) -> None:
        self._decoder = decoder
        self._cache = decoder.open(512)
        self._rows = min(vocab_size, decoder.shape.vocab_size)
        if decoder.shape.vocab_size != vocab_size:
            self.support = torch.arange(self._rows, device=decoder.device)

    @property
    def length(self) -> int:
        """Tokens in the cache."""
        return self._cache.length

    def extend(self, ids: Sequence[int] | Tensor, fuzzy: bool) -> Tensor:
        """Logits [support] after ``ids`` were appended."""
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
        start, nodes, device = self.length, len(tree), self._decoder.device
        self._cache.reserve(start + nodes)
        self._decoder.reach(start + nodes)
        places = torch.arange(start, start + nodes, device=device)
        mask = tree_attention_mask(tree, start, start + nodes, nodes, device) if nodes > 1 else None
        return self._decoder(tree.tokens, places, self._cache, mask, together=fuzzy, last=1)[0]

    def rewind(self, length: int) -> None:
        """Keep the first ``length`` tokens."""
        self._cache.length = min(length, self._cache.length)

    def entries(self, start: int, end: int) -> Tensor:
        """Keys and values of these tokens, [layer, token, number]."""
        layers = [layer[:, :, start:end].permute(2, 0, 1, 3).flatten(1).cpu() for layer in self._cache.layers]
        return torch.stack(layers)

    def close(self) -> None:
        """Drop the cache."""
        self._cache = self._decoder.open(1)


def grouped_model(
    kind: str, group: int, draft: str | None, loaded: LoadedText, target: CausalTarget, progress: Progress
) -> GroupedModel:
    """The draft model of this ``kind`` ("small_draft", "copy", or "draft" for the model named ``draft``).

    Raises ModelUnavailable where there is none, or where it is of a build whose layers cannot be taken apart.
    """
    if kind == "copy":
        return of_decoder("the target in 8 bits", copies(target, group, progress), target)
    if kind == "draft" and draft and draft != SMALL:
        model, warnings = named_draft(draft, loaded, target, progress)
        check_copy(model)
        spread = several(model.device, int(model.config.num_hidden_layers))
        return of_decoder(model.name, lean_copy(model, group=group, device_map=spread), target, warnings)
    small = shipped_small(loaded, target)
    stepper = GroupedStepper(small, group)
    return GroupedModel(SMALL, target.context_length, stepper.spans, lambda capacity: SmallFuzzy(small, stepper, capacity))


def of_decoder(name: str, decoder: LeanDecoder, target: CausalTarget, warnings: tuple[str, ...] = ()) -> GroupedModel:
    """A lean decoder as a draft model for this target."""
    places = tuple(str(layer.device) for layer in decoder.layers)
    return GroupedModel(
        name,
        decoder.shape.context_length,
        decoder.spans,
        lambda capacity: LeanFuzzy(decoder, target.vocab_size),
        places if len(set(places)) > 1 else (),
        warnings,
    )
