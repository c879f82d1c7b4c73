"""Compressed image in a drafter's prompt: outputs of a few learned queries replace it (ViSpec, arXiv 2509.15235).

All outputs but the last take the image's last positions and enter the first layer without projection. The last output is added to
the states after the image. Positions remain those of the whole prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from specviz.drafting.networks.feature_head import FeatureRuntime
from specviz.drafting.runtimes.feature_drafter import FeatureDrafter
from specviz.drafting.runtimes.visual_context import EMBEDDINGS, AllRows, Layout, TextAlone, View
from specviz.engine.interfaces import Context, Pick, TargetPass
from specviz.trace.schema import Note


class _Rows(FeatureDrafter[Any]):
    """Drafter on the shortened prompt. ``stands``: indices of the query outputs in that prompt. ``end``: first index after
    them.
    """

    def __init__(self, network: FeatureRuntime, view: View, stands: Sequence[int], end: int) -> None:
        super().__init__(network)
        self._network, self._view, self._stands, self._end = network, view, tuple(stands), end
        self._answers: Tensor | None = None
        self._behind: Tensor | None = None

    def look(self, picture: Tensor | None) -> None:
        """Set the image embeddings [visual, hidden], or None for no image."""
        self._answers = self._behind = None
        if picture is not None:
            self._answers = self._network.compressed(picture)
            self._behind = self._network.behind(self._answers[-1])

    def _places(self, places: Tensor) -> Tensor:
        return self._view.places(places + 1) - 1

    def _beside(self, tokens: Tensor, first: int) -> dict[str, Tensor]:
        if self._answers is None or self._behind is None:
            return {}
        here = torch.arange(first, first + len(tokens), device=tokens.device)
        embedded, direct = F.embedding(tokens, self._network.embedding), torch.zeros_like(here, dtype=torch.bool)
        for answer, place in zip(self._answers, self._stands, strict=False):
            if first <= place < first + len(tokens):
                embedded[place - first], direct[place - first] = answer, True
        return {"embedded": embedded, "direct": direct, "behind": torch.where((here >= self._end)[:, None], self._behind, 0)}

    def _beside_drafted(self) -> dict[str, Tensor]:
        return {} if self._behind is None else {"behind": self._behind}


class CompressedPicture(TextAlone):
    """Drafter that uses a published head's learned queries on a prompt with an image."""

    def __init__(self, network: FeatureRuntime, layout: Layout) -> None:
        kept = layout.visual[len(layout.visual) - network.queries + 1 :] if network.queries > 1 else ()
        left_out = layout.visual[: len(layout.visual) - len(kept)]
        self._seen, self._kept = layout, kept
        view = View(layout.length, left_out)
        place_of = {place: index for index, place in enumerate(view.kept_places)}
        end = sum(place <= layout.visual[-1] for place in view.kept_places) if layout.visual else 0
        self._rows = _Rows(network, view, [place_of[place] for place in kept], end)
        super().__init__(self._rows, replace(layout, hidden=left_out))

    @property
    def reads(self) -> tuple[int, ...]:
        """The target's hidden states that the drafter reads: the network's taps, and the target's input."""
        return tuple(sorted({*self._rows.taps, EMBEDDINGS}))

    @torch.inference_mode()
    def begin(self, context: Context, prefill: TargetPass | None) -> None:
        visual = list(self._seen.visual)
        self._rows.look(None if prefill is None or not visual else prefill.hidden[EMBEDDINGS][visual])
        super().begin(context, prefill)

    def draft_notes(self, picks: Sequence[Pick]) -> tuple[Note, ...]:
        return (*self._rows.draft_notes(picks), self._seen.note(self._kept))


def with_picture(network: FeatureRuntime, layout: Layout) -> AllRows | CompressedPicture:
    """Return the drafter of ``network`` for a prompt with an image."""
    if network.queries:
        return CompressedPicture(network, layout)
    return AllRows(network, layout)
