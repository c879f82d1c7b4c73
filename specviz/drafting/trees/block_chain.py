"""Chains through a block drafter's slots, ended where the next slot is not worth its row (DSpark, arXiv 2607.05147).

Whether slot k is verified may depend on earlier tokens. It must not depend on its own token, or the output would be biased
(appendix A of the paper). Each slot's acceptance rate is therefore predicted before its token is drafted. Slots are kept up to
the first one that does not pay off; whole chains are never compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch

from specviz.drafting.runtimes.fill_drafter import FillDrafter
from specviz.drafting.trees.best_first import OFFERS
from specviz.drafting.trees.dynamic import CurrentCosts, SpeedupPolicy
from specviz.drafting.trees.sampled import Sampled
from specviz.engine.interfaces import Context, Draft, Round, TargetPass
from specviz.engine.tree import DraftTree, chain
from specviz.trace.notes.drafts import DenoisedNote, Offer
from specviz.trace.schema import Note

PRIOR, PRIOR_RATE = 4.0, 0.7
"""Weight in tokens, and value, of the prior acceptance rate at each depth, used without a confidence head."""


class BlockChain:
    """Controller that drafts a chain through the block.

    The chain ends before the first slot whose predicted acceptance rate is below ``threshold``. With ``policy``, it also ends
    before the first slot that lowers the expected number of tokens per unit of time. Rates come from the confidence head, or
    else from the run so far, by depth. ``ranked``: whether tokens are the most probable ones, as point masses, at any
    temperature.
    """

    def __init__(
        self, drafter: FillDrafter, threshold: float = 0.0, policy: SpeedupPolicy | CurrentCosts | None = None,
        ranked: bool = False,
    ) -> None:  # fmt: skip
        self.drafter, self._threshold, self._policy = drafter, threshold, policy
        self._whole = Sampled(chain(drafter.slots), ranked)
        self._reached = [0] * drafter.slots
        self._accepted = [0] * drafter.slots

    def begin(self, context: Context, prefill: TargetPass | None) -> None:
        self.drafter.begin(context, prefill)
        self._reached, self._accepted = [0] * self.drafter.slots, [0] * self.drafter.slots

    def draft(self, context: Context) -> Draft:
        whole = self._whole.build(self.drafter, context)
        tokens, drafted = whole.tree.host_tokens, len(whole.tree) - 1
        if not drafted:  # the drafter's outputs are those of an earlier round
            return whole
        rates = list(self.drafter.confidence()) or self.rates()[:drafted]
        size = self.size(rates)
        cut = [(node - 1, tokens[node], whole.confidence[node]) for node in range(size + 1, drafted + 1)]
        tree = DraftTree.of(tokens[: size + 1], range(-1, size), context.device) if cut else whole.tree
        proposals = {node: proposal for node, proposal in whole.proposals.items() if node < size}
        notes = context.notes(lambda: self._notes(context, rates, drafted))
        return Draft(tree, proposals, whole.confidence[: size + 1], whole.calls, cut, notes)

    def rates(self) -> list[float]:
        """Return the acceptance rate of each depth in the run so far, given that the shallower tokens were accepted."""
        counts = zip(self._accepted, self._reached, strict=True)
        return [(accepted + PRIOR * PRIOR_RATE) / (reached + PRIOR) for accepted, reached in counts]

    def size(self, rates: Sequence[float]) -> int:
        """Return the number of slots to verify. The decision on slot k depends only on the predicted ``rates`` up to slot k."""
        sure = next((slot for slot, rate in enumerate(rates) if rate < self._threshold), len(rates))
        if self._policy is None:
            return sure
        costs, reach, expected, speeds = self._policy.now(), 1.0, 1.0, list[float]()
        for slot in range(sure + 1):
            speeds.append(expected / (costs.cost[slot] + costs.forward))
            if slot < sure:
                reach *= rates[slot]
                expected += reach
        return next((slot for slot, (now, then) in enumerate(pairwise(speeds)) if then <= now), sure)

    def observe(self, finished: Round) -> None:
        self.drafter.observe(finished)
        kept = len(finished.verdict.path)
        for slot in range(min(kept + 1, len(finished.draft.tree) - 1)):
            self._reached[slot] += 1
            self._accepted[slot] += slot < kept

    def close(self) -> None:
        self.drafter.close()

    def _notes(self, context: Context, rates: Sequence[float], drafted: int) -> list[Note]:
        """Return a note with each slot's top tokens, by marginal or conditional probability, and predicted acceptance rate."""
        levels = self.drafter.last
        assert levels is not None
        marginal = context.warp.log_probabilities(levels.logits).exp()
        given = context.warp.log_probabilities(torch.cat(levels.conditional)).exp() if self.drafter.network.corrects else None
        best = (
            (marginal if given is None else torch.maximum(marginal, given)).topk(min(OFFERS, marginal.shape[-1]), dim=-1).indices
        )
        ids = best if self.drafter.support is None else self.drafter.support[best]
        places = [Offer(*row) for row in zip(ids.tolist(), marginal.gather(1, best).tolist(), strict=True)]
        corrected = [] if given is None else given.gather(1, best).tolist()
        return [DenoisedNote(places, corrected, rates, drafted).to_note()]
