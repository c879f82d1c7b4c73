"""Jacobi drafter: a window of tokens that the target itself keeps renewing (arXiv 2410.01699).

Every pass over the window gives the target's distribution at each of its places. Places behind the accepted ones are drawn afresh
from the distribution that the last pass gave there, and that distribution is what the next pass's ratio test divides by. As each
draw uses fresh noise and its distribution was fixed before, the test is the ordinary one and the output keeps the target's
distribution. Places that no pass has reached yet are filled by repeating the last code to the left, or at random, as certain
guesses. The draft tree is a chain of the window's tokens, each from a distribution of its own and independent of the one before.
"""

from __future__ import annotations

from torch import Tensor

from specviz.drafters.null import NullDrafter
from specviz.engine.interfaces import Context, Draft, Proposal, Round, TargetPass
from specviz.engine.sampling import DRAFT, EXTRA, draw
from specviz.engine.tree import DraftTree
from specviz.trace.notes.images import JacobiWindowNote

FILLS = ("repeat", "random")


class JacobiWindow(NullDrafter):
    """``size`` places; ``fill`` says what stands at a place that is new to the window; ``codes`` is the vocabulary."""

    def __init__(self, size: int, fill: str, codes: int) -> None:
        self._size, self._fill, self._codes = size, fill, codes
        self._distributions: list[Tensor] = []
        """Logits of the places behind the last one settled, as the last pass saw them."""

    def begin(self, context: Context, prefill: TargetPass | None) -> None:
        self._distributions = []

    def window(self, context: Context, most: int) -> tuple[list[int], dict[int, Tensor]]:
        """Guesses for at most so many next places, and by place the distribution a guess was drawn from; none where it is
        certain."""
        count, codes, distributions = min(self._size, most), [], {}
        for place in range(count):
            if place < len(self._distributions):
                distribution = context.warp.probabilities(self._distributions[place])
                codes.append(draw(distribution, context.noise, context.round, place, stream=DRAFT))
                distributions[place] = distribution
            elif self._fill == "random":
                codes.append(int(context.noise.uniform(EXTRA, context.round, place) * self._codes))
            else:
                root = context.ids[-1] if context.ids[-1] < self._codes else 0
                codes.append(codes[-1] if codes else root)
        return codes, distributions

    def observe(self, finished: Round) -> None:
        """Keep the distributions of the places that come next: row i of the pass is the distribution at place i, after the
        window's guesses."""
        settled = len(finished.emitted)
        self._distributions = list(finished.target.logits[settled:])


class WindowChain:
    """Tree builder: the window as a chain."""

    def build(self, drafter: JacobiWindow, context: Context) -> Draft:
        codes, distributions = drafter.window(context, max(0, context.max_depth - 1))
        tree = DraftTree.of([context.ids[-1], *codes], range(-1, len(codes)), context.device)
        greedy = context.warp.greedy
        proposals = {} if greedy else {place: Proposal(distribution) for place, distribution in distributions.items()}
        shares = [
            None,
            *(float(distributions[place][code]) if place in distributions else None for place, code in enumerate(codes)),
        ]
        notes = context.notes(lambda: [JacobiWindowNote(codes, len(distributions)).to_note()])
        return Draft(tree, proposals, shares, 0, notes=notes)
