"""EAGLE-3's recipe: Li et al. 2025 (arXiv 2503.01840), with the target's own head kept frozen and shared.

Three hidden states of the target go in, no feature is regressed; the loss is the cross-entropy to the target's law over
the draft vocabulary, summed over self-fed steps with weights 0.8^j.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from specviz.drafters.networks.feature_net import FeatureNet
from specviz.training.common.features import Seen
from specviz.training.feature.feature_training import IGNORED
from specviz.training.feature.unrolling import sampled_starts, unroll

DEPTH_WEIGHT = 0.8
# Shares of the starts that go on to each self-fed step. Every start counts as much as it would if all did: the fewer,
# the heavier. Deeper steps weigh less and cost as much, so they get fewer.
SHARES = (1.0, 0.5, 0.4, 0.3, 0.25)
TAPS = slice(0, 3)


def loss(net: FeatureNet, place: Tensor, seen: Seen, chance: torch.Generator, scale: float) -> Tensor:
    """Weighted sum over steps and starts of the cross-entropy (nats), times ``scale``.

    ``place`` [vocab] is a token's place in the draft vocabulary. Only answer tokens count, and of them those the draft
    vocabulary has a place for.
    """
    rows = sampled_starts(seen.first, len(seen.tokens), SHARES, chance, seen.tokens.device)
    outputs = unroll(net, seen.tokens, seen.features[:, TAPS].flatten(1), rows)
    law = target_law(net, seen)
    counted = place[seen.tokens] != IGNORED
    total = torch.zeros((), device=seen.tokens.device)
    for step, (chosen, output) in enumerate(zip(rows, outputs, strict=True)):
        inside = counted[chosen + 2 + step]
        if inside.any():
            wanted = law[chosen[inside] + 2 + step - seen.first]
            found = F.cross_entropy(net.logits(output[inside]), wanted, reduction="sum")
            total = total + found * (DEPTH_WEIGHT**step / SHARES[step])
    return total * scale


@torch.no_grad()
def target_law(net: FeatureNet, seen: Seen) -> Tensor:
    """The target's law of each answer token, restricted to the draft vocabulary and renormalised, [answer, support]."""
    return F.linear(seen.features[seen.first - 1 : -1, -1], net.head).softmax(-1)
