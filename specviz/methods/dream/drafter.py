"""DREAM's drafter: cross-attention to the target's features, with only the most important image tokens.

DREAM (arXiv 2505.19201): the visual tokens with the most attention from the target's last layer are kept. A pruned token is
removed from both embeddings and target features; the other tokens keep their positions. The rows' attention is reported. Axis
names: ``token``, ``hidden``, ``row``, ``column``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from itertools import chain, islice
from typing import Any

import torch
from torch import Tensor

from specviz.drafting.networks.cross_net import CrossRuntime
from specviz.drafting.runtimes.feature_drafter import FeatureDrafter
from specviz.drafting.runtimes.feature_levels import FeatureLevels, FixedLevels
from specviz.drafting.runtimes.visual_context import EMBEDDINGS, Layout, View
from specviz.engine.interfaces import Context, Pick, TargetPass
from specviz.targets.attention_maps import entropies, importance, middle_layers, most_attended, text_part
from specviz.trace.notes.images import AttentionEntropyNote, AttentionLook
from specviz.trace.schema import Note

Hidden = Mapping[int, Tensor]

ARCS = 6
"""Number of positions reported per row, by attention weight."""
ROWS = 40


class CrossDrafter(FeatureDrafter):
    """Feature drafter with cross-attention. ``share``: fraction of the visual tokens to keep. ``taps``: deepest target layer
    that the network reads.
    """

    def __init__(self, network: CrossRuntime, layout: Layout, target: Any, share: float) -> None:
        super().__init__(network)
        self.taps = (max(network.config.taps),)
        self._text = text_part(target.model)
        self.reads = tuple(range(len(self._text.layers) + 1))
        """The target's hidden states that the drafter reads: those of all layers, which yield the attention weights."""
        self._shared, self._layout, self._share = network, layout, share
        self._view: View | None = None
        self._kept_places: tuple[int, ...] = layout.visual
        self._embeddings: Tensor | None = None
        self._thoughts: Tensor | None = None
        self._map: AttentionEntropyNote | None = None

    def begin(self, context: Context, prefill: TargetPass | None) -> None:
        if prefill is None:
            raise ValueError("a prompt with a picture has more than one token")
        self._kept_places = self._chosen(prefill.hidden)
        kept_places = frozenset(self._kept_places)
        view = self._view = View(self._layout.length, [place for place in self._layout.visual if place not in kept_places])
        self._map = None
        if context.record_notes:
            with context.untimed:
                self._map = self._entropy_note(prefill.hidden)
        self._shared.reach(len(context.ids) + context.max_depth + 2)
        prefill = view.prefill(prefill)
        self._embeddings, self._thoughts = prefill.hidden[EMBEDDINGS], prefill.hidden[self.taps[0]]
        super().begin(view.context(context), prefill)
        self._embeddings = self._thoughts = None

    @torch.inference_mode()
    def levels(self, context: Context) -> FeatureLevels | None:
        """Return the feature drafter's levels on the pruned prompt."""
        assert self._view is not None
        if (watched := self.network.watched) is not None:
            watched.clear()
        levels = super().levels(self._view.context(context))
        if watched:
            with context.untimed:
                watched[:] = [watched[-1][-1:]]  # the root's row, the last committed one
        return levels

    def _open(self, context: Context) -> None:
        assert self._embeddings is not None and self._thoughts is not None
        watched = context.record_notes and not self._fixed
        self.network = self._shared.watching(context.untimed) if watched else self._shared
        super()._open(context)
        levels: Any = self._levels
        first = self._places(torch.tensor([-1], device=self._embeddings.device))
        self.network.lead(levels.cache, self._embeddings[:1], first, self._thoughts)

    def _acquired(self, columns: int) -> FeatureLevels:
        assert self._view is not None
        levels = super()._acquired(columns + self._view.shift)  # rotary factors reach to the end of the unpruned text
        if self._fixed:
            shift = levels.numbers([1 + self._view.shift])
            levels.positions = lambda places: places + shift  # a round's rows follow the picture
        return levels

    def _allows_fixed_shapes(self) -> bool:
        return True

    @torch.inference_mode()
    def _entropy_note(self, hidden: Hidden) -> AttentionEntropyNote:
        """Return every layer's attention entropy at every prompt position, and each position's middle layer of minimum
        entropy."""
        layers = len(self._text.layers)
        entropy = entropies(self._text, range(layers), hidden, _places(hidden))
        middle = middle_layers(layers)
        chosen = entropy[list(middle)].argmin(0)
        return AttentionEntropyNote(
            looks=(),
            entropy=[[round(value, 3) for value in row] for row in entropy.tolist()],
            middle=list(middle),
            chosen=[middle[place] for place in chosen.tolist()],
        )

    @torch.inference_mode()
    def _chosen(self, hidden: Hidden) -> tuple[int, ...]:
        """Return the indices of the kept visual tokens, ascending."""
        visual = self._layout.visual
        if self._share >= 1 or not visual:
            return visual
        weights = importance(self._text, hidden, _places(hidden), visual)
        return tuple(visual[rank] for rank in most_attended(weights, self._share))

    def _places(self, places: Tensor) -> Tensor:
        """Return the positions, in the unpruned text, of rows ``places``; row i holds the view's token i + 1."""
        assert self._view is not None
        return self._view.places(places + 1)

    def _visual_inputs(self, tokens: Tensor, first: int) -> dict[str, Tensor]:
        return {} if self._embeddings is None else {"embedded": self._embeddings[first : first + len(tokens)]}

    @torch.inference_mode()
    def draft_notes(self, picks: Sequence[Pick]) -> tuple[Note, ...]:
        paths: list[list[tuple[int, ...]]] = [[()]]
        runtime, levels = self.network, self._levels
        if isinstance(levels, FixedLevels) and levels.trail:  # a captured graph records no weights for display
            runtime = self._shared.watching(nullcontext())
            levels.again(runtime)
            assert runtime.watched is not None
            runtime.watched[0] = runtime.watched[0][levels.count - 1 : levels.count]
        for tokens, parents in levels.rows if levels is not None else ():
            paths.append([(*paths[-1][parent], token) for token, parent in zip(tokens.tolist(), parents.tolist(), strict=True)])
        watched = zip(chain.from_iterable(paths), chain.from_iterable(runtime.watched or ()), strict=False)
        note = (self._map or AttentionEntropyNote(())).replace(looks=[self._look(*seen) for seen in islice(watched, ROWS)])
        self._map = None
        return (*super().draft_notes(picks), self._layout.note(self._kept_places), note.to_note())

    def _look(self, path: tuple[int, ...], row: Tensor) -> AttentionLook:
        """Return one row's attention to the picture: the top positions and the total weight.

        Column c holds the feature of the view's token c - 1.
        """
        assert self._view is not None
        pictured = frozenset(self._kept_places)
        columns = {place: 1 + index for index, place in enumerate(self._view.kept_places) if place in pictured}
        values, places = row[list(columns.values())], list(columns)
        best = values.topk(min(ARCS, len(values)))
        looks = [
            (places[index], round(weight, 4)) for index, weight in zip(best.indices.tolist(), best.values.tolist(), strict=True)
        ]
        return AttentionLook(list(path), round(float(values.sum()), 4), looks)


def _places(hidden: Hidden) -> Tensor:
    return torch.arange(len(hidden[0]), device=hidden[0].device)
