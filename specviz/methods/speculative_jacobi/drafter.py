"""Jacobi drafter: a window of codes that every target pass updates (arXiv 2410.01699).

A pass over the window gives the target's distribution at each position. After the accepted positions, new codes are sampled from
these distributions, which are the q of the next rejection test. Each sample uses fresh noise, so the test is the ordinary one and
the output keeps the target's distribution. Positions that no pass has reached get a random code or the code to the left, as point
masses. The draft tree is a chain of the window's codes, each sampled independently of the previous code.
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
    """Window of ``size`` positions. ``fill``: rule for new positions, "repeat" or "random". ``codes``: vocabulary size."""

    def __init__(self, size: int, fill: str, codes: int) -> None:
        self._size, self._fill, self._codes = size, fill, codes
        self._logits: Tensor | None = None
        """Logits [place, code] from the last pass, for the positions after the committed codes."""

    def begin(self, context: Context, prefill: TargetPass | None) -> None:
        self._logits = None

    def window(self, context: Context, most: int) -> tuple[Tensor, Tensor]:
        """Return codes int64 [place] for at most ``most`` positions, and distributions [drawn, code] of the leading codes.

        Codes without a distribution are point masses. Both tensors stay on the device.
        """
        count = min(self._size, most)
        logits = torch.empty(0, self._codes, device=context.device) if self._logits is None else self._logits[:count]
        distributions = context.warp.probabilities(logits)
        places = [(context.round, place) for place in range(len(logits))]
        drawn = draws(distributions, context.noise, places, stream=DRAFT)
        return torch.cat((drawn, self._filled(context, drawn, count))), distributions

    def _filled(self, context: Context, drawn: Tensor, count: int) -> Tensor:
        """Return codes int64 [place] for the positions after the ``drawn`` codes, up to ``count`` in all."""
        fresh = range(len(drawn), count)
        if self._fill == "random":
            codes = [int(context.noise.uniform(EXTRA, context.round, place) * self._codes) for place in fresh]
            return to_device(codes, context.device)
        if len(drawn):
            return drawn[-1:].expand(len(fresh))
        root = context.ids[-1] if context.ids[-1] < self._codes else 0
        return to_device([root] * len(fresh), context.device)

    def observe(self, finished: Round) -> None:
        """Keep the logits of the positions after the committed codes."""
        self._logits = finished.target.logits[len(finished.emitted) :]


class WindowChain:
    """Tree builder that drafts the window as a chain."""

    def build(self, drafter: JacobiWindow, context: Context) -> Draft:
        guesses, distributions = drafter.window(context, max(0, context.max_depth - 1))
        count, drawn = len(guesses), len(distributions)
        # A single copy to the host: float64 represents codes exactly.
        numbers = torch.cat((guesses, distributions.gather(1, guesses[:drawn, None])[:, 0].double())).tolist()
        codes, shares = [int(code) for code in numbers[:count]], numbers[count:]
        tree = DraftTree.of([context.ids[-1], *codes], range(-1, count), context.device)
        proposals = {} if context.warp.greedy else {place: Proposal(row) for place, row in enumerate(distributions.unbind())}
        notes = context.notes(lambda: [JacobiWindowNote(codes, drawn).to_note()])
        return Draft(tree, proposals, [None, *shares, *[None] * (count - drawn)], 0, notes=notes)
