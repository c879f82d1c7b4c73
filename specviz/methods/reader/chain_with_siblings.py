"""Chain with siblings: each level's most likely token is extended, the next best ones remain leaves."""

from __future__ import annotations

from specviz.drafting.runtimes.language_model import LanguageModelDrafter
from specviz.engine.interfaces import Context, Draft
from specviz.engine.tree import DraftTree


class Ladder:
    """Tree builder of ``depth`` levels with the top ``width`` tokens each; it stops once the chain's probability is below
    ``floor``. The tokens are chosen deterministically, so every child is a point mass."""

    def __init__(self, depth: int, width: int, floor: float = 0.1) -> None:
        self.depth = depth
        self.width = width
        self.floor = floor

    def build(self, drafter: LanguageModelDrafter, context: Context) -> Draft:
        chain, tokens, parents = [context.ids[-1]], [context.ids[-1]], [-1]
        confidence: list[float | None] = [None]
        end, probability = 0, 1.0
        for depth in range(min(self.depth, context.max_depth - 1)):
            (distribution,) = drafter.rows(context, chain, range(-1, depth), [depth])
            if distribution is None:
                break
            best = distribution.probability.topk(min(self.width, distribution.probability.numel()))
            ids = best.indices if distribution.ids is None else distribution.ids[best.indices]
            for token, q in zip(ids.tolist(), best.values.tolist(), strict=True):
                tokens.append(int(token))
                parents.append(end)
                confidence.append(float(q))
            end = len(tokens) - len(ids)
            chain.append(tokens[end])
            probability *= confidence[end] or 0.0
            if probability < self.floor:
                break
        tree = DraftTree.of(tokens, parents, context.device)
        return Draft(tree, confidence=confidence, calls=drafter.calls())
