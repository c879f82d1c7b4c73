"""How well a feature drafter foresees the target, on held-out greedy answers the target itself wrote.

A greedy answer is the target's argmax at every position, so going along it with the network's own features *is* chain
drafting from every position of the answer; the target need not run again.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from specviz.drafters.networks.feature_net import FeatureNet
from specviz.engine.tree import shape_from_counts
from specviz.methods.eagle import PUBLISHED
from specviz.methods.medusa.cartesian_tree import paths_of
from specviz.training.common.features import FeatureStore
from specviz.training.feature.unrolling import sampled_starts, unroll

BREADTH = 5


@torch.inference_mode()
def acceptance_figures(
    net: FeatureNet, store: FeatureStore, columns: slice, numbers: Sequence[int], depth: int
) -> dict[str, float]:
    """By depth, among positions whose shallower drafts were all right: was the truth drafted first (``first1``, ...), or
    among five (``five1``, ...). ``tau``: mean tokens a step of chain drafting emits, the bonus included; ``tree``: the same
    with EAGLE's tree of 25 nodes, as far as ``depth`` reaches."""
    reached, right, near = torch.zeros(depth), torch.zeros(depth), torch.zeros(depth)
    paths = {path[:depth] for path in paths_of(shape_from_counts(PUBLISHED))}
    in_tree = 0
    starts = 0
    generator = torch.Generator()
    for dialogue in store.get(numbers):
        length = len(dialogue.tokens)
        rows = sampled_starts(dialogue.first, length, [1.0] * depth, generator, dialogue.tokens.device)
        if len(rows) < depth:
            continue
        inside = rows[-1]  # starts whose last draft is still inside the answer
        outputs = unroll(net, dialogue.tokens, dialogue.features[:, columns].flatten(1), [inside] * depth)
        alive = torch.ones(len(inside), dtype=torch.bool, device=inside.device)
        starts += len(inside)
        ranks = []
        for step, output in enumerate(outputs):
            hit = _best(net, output) == dialogue.tokens[inside + 2 + step][:, None]
            reached[step] += int(alive.sum())
            near[step] += int(hit.any(1)[alive].sum())
            alive &= hit[:, 0]
            right[step] += int(alive.sum())
            ranks.append(torch.where(hit.any(1), hit.int().argmax(1), BREADTH))
        along = torch.stack(ranks, dim=1).tolist()
        in_tree += sum(tuple(row[: level + 1]) in paths for row in along for level in range(depth))
    counts = reached.clamp_min(1)
    figures = {f"first{step + 1}": float(right[step] / counts[step]) for step in range(depth)}
    figures |= {f"five{step + 1}": float(near[step] / counts[step]) for step in range(depth)}
    return {"tau": 1 + float(right.sum()) / max(1, starts), "tree": 1 + in_tree / max(1, starts), **figures}


def _best(net: FeatureNet, output: Tensor) -> Tensor:
    """The likeliest tokens [start, BREADTH]."""
    best = net.logits(output).topk(BREADTH).indices
    return best if net.draft_ids is None else net.draft_ids[best]
