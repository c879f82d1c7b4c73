"""Masked-diffusion drafter: masks behind the text and one denoising step, which gives every position its distribution at
once.

The distributions are marginal ones: each place sees the text and the other masks, and none knows what the others will hold. A
distribution therefore depends on the text alone, which is what the ratio test needs of one that was sampled from.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from specviz.drafters.networks.masked_lm import MaskedLM
from specviz.drafters.null import NullDrafter
from specviz.engine.interfaces import Context, Pick, Proposal
from specviz.engine.to_device import to_device
from specviz.trace.notes.drafts import DenoisedNote, Offer
from specviz.trace.schema import Note

SHOWN = 4
"""So many of the likeliest tokens are told of each place."""


class MaskedBlock(NullDrafter):
    """Blocks of up to ``places`` masks. As a drafter of chains it gives the node at depth d the distribution of place d."""

    def __init__(self, model: MaskedLM, places: int) -> None:
        if not 0 < places < model.config.window:
            raise ValueError(f"a block of {places} places does not fit the model's window of {model.config.window}")
        self.model = model
        self.places = places
        self.support: Tensor = model.draft_ids
        self._distributions: Tensor | None = None
        self._calls = 0

    def block(self, context: Context, places: int) -> Tensor:
        """Logits [place, support] of ``places`` masks behind the committed text: one forward."""
        self._calls += 1
        return self.model(to_device(list(context.ids[-self.model.config.window :]), self.support.device), places)

    def rows(
        self, context: Context, tokens: Sequence[int], parents: Sequence[int], nodes: Sequence[int]
    ) -> list[Proposal | None]:
        """The warped distribution of the next place (the plain softmax at temperature 0); the root asks for the whole block."""
        assert list(nodes) == [len(tokens) - 1], "this drafter grows chains"
        if nodes[0] == 0:
            places = min(self.places, context.max_depth - 1)
            self._distributions = context.warp.log_probabilities(self.block(context, places)).exp()
        assert self._distributions is not None
        return [Proposal(self._distributions[nodes[0]], self.support) if nodes[0] < len(self._distributions) else None]

    def calls(self) -> int:
        count, self._calls = self._calls, 0
        return count

    def draft_notes(self, picks: Sequence[Pick]) -> tuple[Note, ...]:
        """Every place with its likeliest tokens and how sure it is; node n was taken from the distribution of place n."""
        if not picks or self._distributions is None:
            return ()
        best = self._distributions.topk(min(SHOWN, self._distributions.shape[-1]), dim=-1)
        ids, shares = self.support[best.indices].tolist(), best.values.tolist()
        places = [Offer(row, share) for row, share in zip(ids, shares, strict=True)]
        return (DenoisedNote(places).to_note(),)

    def close(self) -> None:
        self._distributions = None
