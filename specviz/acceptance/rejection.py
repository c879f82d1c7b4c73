"""Speculative rejection sampling on a chain, and without replacement among the siblings of a tree.

Chains: algorithm 1 of Leviathan et al. (arXiv 2211.17192) and Chen et al. (arXiv 2302.01318). Trees: the recursive form of
SpecInfer and EAGLE. A child is accepted with probability min(1, r/q), where r is the target's residual. Exact for children
sampled from q and judged in the order sampled. Deterministically chosen children count as point masses (q = 1).
"""

from __future__ import annotations

from specviz.acceptance.match import Match, statuses
from specviz.acceptance.residual import remaining
from specviz.acceptance.tree_probabilities import TreeProbabilities
from specviz.engine.interfaces import Context, Draft, TargetPass, Verdict
from specviz.engine.sampling import ACCEPT, draw
from specviz.trace.notes.verdicts import OverlapNote, OverlapPosition


class Rejection:
    """Top-down rejection sampling; greedy matching at temperature 0."""

    def judge(self, draft: Draft, target: TargetPass, context: Context) -> Verdict:
        if context.warp.greedy:
            return Match().judge(draft, target, context)
        tree, probabilities = draft.tree, TreeProbabilities(draft, target, context.warp)
        shape, tokens = tree.shape, tree.host_tokens
        visited, judged = [0], list[int]()
        thresholds, draws, overlaps = dict[int, float](), dict[int, float](), list[OverlapPosition]()
        node, children = 0, shape.children[0]
        while children:
            sampled, table = node in draft.proposals, probabilities.table(node)
            left = remaining(probabilities.row(node), table, sampled)
            if context.record_notes and sampled:
                with context.untimed:  # judging the children will change the residual
                    overlaps.append(left.overlap(node))
            for child in children:
                judged.append(child)
                thresholds[child] = left.threshold(tokens[child])
                # Keyed by round too, because a later round may judge the same position again and needs a fresh draw.
                draws[child] = context.noise.uniform(ACCEPT, context.round, child)
                if draws[child] < thresholds[child]:
                    visited.append(child)
                    node, children = child, shape.children[child]
                    break
                left.reject(tokens[child])
            else:  # no child was accepted, so the bonus is drawn from the residual
                break
        path, rest = tuple(visited[1:]), left.distribution() if children else probabilities.row(node)
        return Verdict(
            rule="ratio" if all(len(row) <= 1 for row in shape.children) else "without_replacement",
            path=path,
            bonus=draw(rest, context.noise, context.position + 1 + shape.depths[node]),
            source="residual" if children else "target",
            statuses=statuses(shape, path, judged),
            visited=tuple(visited),
            thresholds=thresholds,
            draws=draws,
            certain=not draft.proposals,
            notes=context.notes(lambda: [OverlapNote(overlaps).to_note()] if overlaps else []),
        )
