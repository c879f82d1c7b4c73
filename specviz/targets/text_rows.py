"""Batch target: several rows on one causal language model, whose trees are scored in one pass."""

from __future__ import annotations

from collections.abc import Sequence

from specviz.engine.batch_cache import MOST_ROWS, PassLayout, RowCache
from specviz.engine.interfaces import Target, TargetPass
from specviz.engine.tiers import Outputs
from specviz.engine.tree import DraftTree, chain
from specviz.errors import BadInput
from specviz.targets.text import TextTarget

# Slots after the committed tokens for a tree and for holes before compaction; buffers grow if needed.
TREE_ROOM = 256


class TextRows:
    """Up to eight rows on ``target``, scored eagerly even if the target's tier is not eager.

    ``capacities``: maximum number of committed tokens of each row.
    """

    def __init__(self, target: Target, capacities: Sequence[int], taps: Sequence[int] = ()) -> None:
        if not isinstance(target, TextTarget):
            raise BadInput(
                f"{target.name} carries a state from token to token, which rows of a batch cannot share: run the prompts one "
                "after another, or choose a target with attention layers only, such as smollm2-135m-instruct."
            )
        if target.spread:
            raise BadInput(
                f"{target.name} is on several devices ({', '.join(target.spread)}), and the rows of a batch share one: run the "
                "prompts one after another, or name one device."
            )
        if not 1 <= len(capacities) <= MOST_ROWS:
            raise BadInput(f"A batch of {len(capacities)} rows is not possible; give 1 to {MOST_ROWS} prompts.")
        target.refuse(max(capacities))
        if 0 < target.boundary < max(capacities):
            raise BadInput(
                f"{target.name} changes its rotary factors beyond {target.boundary} tokens, and the rows of a batch share them: "
                "run the prompts one after another, or ask for fewer tokens."
            )
        self.target = target
        self.taps = tuple(taps)
        self.cache = RowCache(len(target.kinds), len(capacities), max(capacities) + TREE_ROOM, target.device)

    def prefill(self, row: int, ids: Sequence[int]) -> TargetPass:
        """Prefill an empty row with ``ids``. Returns logits of the last position, [1, vocab], and hidden states [position,
        hidden]."""
        tree = DraftTree.of(list(ids), chain(len(ids) - 1).parents, self.target.device)
        logits, hidden = self._run(self.cache.set_slots(row, [tree]), last=1)
        self.cache.keep(row, range(len(ids)))
        return TargetPass(logits[0], {layer: states[0] for layer, states in hidden.items()})

    def score(self, trees: Sequence[DraftTree]) -> list[TargetPass]:
        """Score one tree per row in one pass. Returns each tree's output without padding."""
        logits, hidden = self._run(self.cache.set_slots(0, trees))
        return [
            TargetPass(logits[row, : len(tree)], {layer: states[row, : len(tree)] for layer, states in hidden.items()})
            for row, tree in enumerate(trees)
        ]

    def _run(self, layout: PassLayout, last: int = 0) -> Outputs:
        """Run the model once. Returns logits [row, node, vocab] and taps [row, node, hidden]."""
        mask = self.target.mask(layout.mask, lambda: layout.positions[:, :, None] - layout.places[:, None, :])
        return self.target.forward(layout.tokens, layout.positions, mask, self.cache.cache, self.taps, last)
