"""Masked-diffusion drafter: masks after the text and one denoising step, which yields all positions' distributions at once.

The distributions are marginal: each position sees the text and the other masks, but not the other positions' tokens. A
distribution therefore depends on the text alone, as the ratio test requires of sampled tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from specviz.drafting.levels import ChainLevels
from specviz.drafting.networks.masked_lm import MaskedLM
from specviz.drafting.runtimes.null import NullDrafter
from specviz.engine.interfaces import Context, Pick
from specviz.engine.sampling import Warp
from specviz.engine.to_device import to_device
from specviz.trace.notes.drafts import DenoisedNote, Offer
from specviz.trace.schema import Note

SHOWN = 4
"""Number of top tokens reported per position."""


class MaskedBlock(NullDrafter):
    """Drafter of blocks of up to ``places`` masks. In a chain, the node at depth d has the distribution of mask d."""

    def __init__(self, model: MaskedLM, places: int) -> None:
        if not 0 < places < model.config.window:
            raise ValueError(f"a block of {places} places does not fit the model's window of {model.config.window}")
        self.model = model
        self.places = places
        self.support: Tensor = model.draft_ids
        self._logits = self.support.new_empty(0)
        self._warp = Warp()
        self._calls = 0

    def block(self, context: Context, places: int) -> Tensor:
        """Return logits [place, support] of ``places`` masks after the committed text, in one forward."""
        self._calls += 1
        return self.model(to_device(list(context.ids[-self.model.config.window :]), self.support.device), places)

    def levels(self, context: Context) -> ChainLevels:
        """Return a block as a chain: one forward yields all levels, independently of the sampled tokens."""
        places = min(self.places, context.max_depth - 1)
        below = iter(range(1, places))

        def after(token: Tensor | None) -> Tensor:
            if token is None:
                self._logits = self.block(context, places)
                self._warp = context.warp
                return self._logits[0]
            return self._logits[next(below)]

        return ChainLevels(after, places)

    def calls(self) -> int:
        count, self._calls = self._calls, 0
        return count

    def draft_notes(self, picks: Sequence[Pick]) -> tuple[Note, ...]:
        """Return each mask's top tokens and probabilities; node n was sampled from the distribution of mask n."""
        if not picks:
            return ()
        distributions = self._warp.log_probabilities(self._logits).exp()
        best = distributions.topk(min(SHOWN, distributions.shape[-1]), dim=-1)
        ids, shares = self.support[best.indices].tolist(), best.values.tolist()
        places = [Offer(row, share) for row, share in zip(ids, shares, strict=True)]
        return (DenoisedNote(places).to_note(),)

    def close(self) -> None:
        self._logits = self._logits[:0]
