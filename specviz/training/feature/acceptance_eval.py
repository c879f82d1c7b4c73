"""How well a feature drafter foresees the target, on held-out greedy answers the target itself wrote.

A greedy answer is the target's argmax at every position, so going along it with the network's own features *is* chain
drafting from every position of the answer; the target need not run again.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from specviz.drafters.networks.feature_net import FeatureNet
from specviz.training.common.features import FeatureStore
from specviz.training.feature.unrolling import sampled_starts, unroll


def greedy_only(store: FeatureStore, held_out: Sequence[int]) -> list[int]:
    """Those of the held-out dialogues whose answers are the target's argmax."""
    return [number for number in held_out if store.dialogues.temperature[number] == 0]


@torch.inference_mode()
def foresight(net: FeatureNet, store: FeatureStore, columns: slice, numbers: Sequence[int], depth: int) -> dict[str, float]:
    """By depth, among positions whose shallower drafts were all right: was the truth drafted first (``first1``, ...), or
    among five (``five1``, ...). ``tau``: mean tokens a step of chain drafting emits, the bonus included."""
    reached, right, near = torch.zeros(depth), torch.zeros(depth), torch.zeros(depth)
    starts = 0
    chance = torch.Generator()
    for seen in store.get(numbers):
        length = len(seen.tokens)
        rows = sampled_starts(seen.first, length, [1.0] * depth, chance, seen.tokens.device)
        if len(rows) < depth:
            continue
        whole = rows[-1]  # starts whose last draft is still inside the answer
        outputs = unroll(net, seen.tokens, seen.features[:, columns].flatten(1), [whole] * depth)
        alive = torch.ones(len(whole), dtype=torch.bool, device=whole.device)
        starts += len(whole)
        for step, output in enumerate(outputs):
            hit = _best(net, output) == seen.tokens[whole + 2 + step][:, None]
            reached[step] += int(alive.sum())
            near[step] += int(hit.any(1)[alive].sum())
            alive &= hit[:, 0]
            right[step] += int(alive.sum())
    deep = reached.clamp_min(1)
    found = {f"first{step + 1}": float(right[step] / deep[step]) for step in range(depth)}
    found |= {f"five{step + 1}": float(near[step] / deep[step]) for step in range(depth)}
    return {"tau": 1 + float(right.sum()) / max(1, starts), **found}


def _best(net: FeatureNet, output: Tensor) -> Tensor:
    """The five likeliest tokens [start, 5]."""
    best = net.logits(output).topk(5).indices
    return best if net.draft_ids is None else net.draft_ids[best]
