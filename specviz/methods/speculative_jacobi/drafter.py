"""Jacobi drafter: a window of tokens that the target itself updates in every pass (arXiv 2410.01699).

Every pass over the window yields the target's distribution at each position. Positions after the accepted ones are resampled from
their distributions in the last pass, which are the q of the next pass's ratio test. Since each sample uses fresh noise and its
distribution was fixed before, the test is the ordinary one and the output keeps the target's distribution. Positions that no pass
has reached yet are filled with the last code to their left, or at random, as point masses. The draft tree is a chain of the
window's tokens, each from its own distribution, independent of the previous token.
"""

from __future__ import annotations

import torch
from torch import Tensor

from specviz.drafting.runtimes.null import NullDrafter
from specviz.engine.interfaces import Context, Draft, Proposal, Round, TargetPass
from specviz.engine.sampling import DRAFT, EXTRA, draws
from specviz.engine.to_device import to_device
from specviz.engine.tree import DraftTree
from specviz.trace.notes.images import JacobiWindowNote


class JacobiWindow(NullDrafter):
    """Window of ``size`` positions; ``fill`` is the rule for positions new to the window; ``codes`` is the vocabulary size."""

    def __init__(self, size: int, fill: str, codes: int) -> None:
        self._size, self._fill, self._codes = size, fill, codes
        self._logits: Tensor | None = None
        """Logits [place, code] of the positions after the committed ones, from the last pass."""

    def begin(self, context: Context, prefill: TargetPass | None) -> None:
        self._logits = None

    def window(self, context: Context, most: int) -> tuple[Tensor, Tensor]:
        """Return guesses int64 [place] for at most ``most`` next positions, and the distributions [drawn, code] of those sampled
        from one, which come first; the others are point masses. All stay on the device."""
        count = min(self._size, most)
        logits = torch.empty(0, self._codes, device=context.device) if self._logits is None else self._logits[:count]
        distributions = context.warp.probabilities(logits)
        places = [(context.round, place) for place in range(len(logits))]
        drawn = draws(distributions, context.noise, places, stream=DRAFT)
        return torch.cat((drawn, self._filled(context, drawn, count))), distributions

    def _filled(self, context: Context, drawn: Tensor, count: int) -> Tensor:
        """Return the fill codes of the positions after those ``drawn``, int64 [place]."""
        fresh = range(len(drawn), count)
        if self._fill == "random":
            codes = [int(context.noise.uniform(EXTRA, context.round, place) * self._codes) for place in fresh]
            return to_device(codes, context.device)
        if len(drawn):
            return drawn[-1:].expand(len(fresh))
        root = context.ids[-1] if context.ids[-1] < self._codes else 0
        return to_device([root] * len(fresh), context.device)

    def observe(self, finished: Round) -> None:
        """Keep the logits of the next positions: row i of the pass is the distribution at position i, given the window's
        guesses."""
        self._logits = finished.target.logits[len(finished.emitted) :]


class WindowChain:
    """Tree builder: the window as a chain, with one copy to the host."""

    def build(self, drafter: JacobiWindow, context: Context) -> Draft:
        guesses, distributions = drafter.window(context, max(0, context.max_depth - 1))
        count, drawn = len(guesses), len(distributions)
        # Codes are exact in a double.
        numbers = torch.cat((guesses, distributions.gather(1, guesses[:drawn, None])[:, 0].double())).tolist()
        codes, shares = [int(code) for code in numbers[:count]], numbers[count:]
        tree = DraftTree.of([context.ids[-1], *codes], range(-1, count), context.device)
        proposals = {} if context.warp.greedy else {place: Proposal(row) for place, row in enumerate(distributions.unbind())}
        notes = context.notes(lambda: [JacobiWindowNote(codes, drawn).to_note()])
        return Draft(tree, proposals, [None, *shares, *[None] * (count - drawn)], 0, notes=notes)
