"""Speculative rejection sampling: the ratio test on a chain, and without replacement among the siblings of a tree.

Leviathan et al. (arXiv 2211.17192) algorithm 1 and Chen et al. (arXiv 2302.01318) for the chain; for siblings the
recursive form of SpecInfer and EAGLE. Each child is accepted with probability min(1, r/q), where r is the target's
residual. Exact only for children drawn from q, in draw order. A node without a stored distribution has children chosen
deterministically; each then counts as a point mass (q = 1).
"""

from __future__ import annotations

from specviz.acceptance.match import Match, statuses
from specviz.acceptance.residual import remaining
from specviz.acceptance.tree_probabilities import TreeProbabilities
from specviz.engine.interfaces import Context, Draft, TargetPass, Verdict
from specviz.engine.sampling import ACCEPT, draw
from specviz.trace.notes.verdicts import OverlapNote, OverlapPosition


class Rejection:
    """Top-down rejection. At temperature 0 both distributions are point masses and the rule is plain greedy matching."""

    def judge(self, draft: Draft, target: TargetPass, context: Context) -> Verdict:
        if context.warp.greedy:
            return Match().judge(draft, target, context)
        tree, probabilities = draft.tree, TreeProbabilities(draft, target, context.warp)
        shape, tokens = tree.shape, tree.host_tokens
        visited, judged = [0], list[int]()
        thresholds, draws, overlaps = dict[int, float](), dict[int, float](), list[OverlapPosition]()
        node, children = 0, shape.children[0]
        while children:
            drawn, table = node in draft.proposals, probabilities.table(node)
            left = remaining(probabilities.row(node), table, drawn)
            if context.record_notes and drawn:
                with context.untimed:  # before the children are judged, which changes the residual
                    overlaps.append(left.overlap(node))
            for child in children:
                judged.append(child)
                thresholds[child] = left.threshold(tokens[child])
                # Keyed by round as well: a later round may try a position again, with a fresh uniform draw.
                draws[child] = context.noise.uniform(ACCEPT, context.round, child)
                if draws[child] < thresholds[child]:
                    visited.append(child)
                    node, children = child, shape.children[child]
                    break
                left.reject(tokens[child])
            else:  # no child was accepted, and the residual is the distribution of the token that replaces them
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
