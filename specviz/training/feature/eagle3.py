"""EAGLE-3's recipe: Li et al. 2025 (arXiv 2503.01840), with the target's own head kept frozen and shared.

Three hidden states of the target go in, no feature is regressed; the loss is the cross-entropy to the target's distribution over
the draft vocabulary, summed over self-fed steps with weights 0.8^j.
"""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from specviz.drafters.networks.feature_net import FeatureNet
from specviz.training.common.data import IGNORED
from specviz.training.common.features import DialogueFeatures
from specviz.training.common.parallel import evenly
from specviz.training.feature.unrolling import sampled_starts, unroll

DEPTH_WEIGHT = 0.8
# Shares of the starts that go on to each self-fed step. Every start counts as much as it would if all did: the fewer,
# the heavier. Deeper steps weigh less and cost as much, so they get fewer.
SHARES = (1.0, 0.35, 0.25, 0.15, 0.1)
TAPS = slice(0, 3)
NOISE = 0.2
"""Half the width of the uniform noise on the features, in units of what each varies by. Without it and DROPOUT a network of
this size soon knows its dialogues by heart (τ 3.2 on those it learned, 1.9 on others)."""
DROPOUT = 0.1
"""Share of the features and of the embeddings' entries that are left out, others at each place."""


def loss(net: FeatureNet, place: Tensor, dialogue: DialogueFeatures, generator: torch.Generator, scale: float) -> Tensor:
    """Weighted sum over steps and starts of the cross-entropy (nats), times ``scale``.

    ``place`` [vocab] is a token's place in the draft vocabulary. Only answer tokens count, and of them those the draft
    vocabulary has a place for.
    """
    rows = sampled_starts(dialogue.first, len(dialogue.tokens), SHARES, generator, dialogue.tokens.device)
    features = dialogue.features[:, TAPS].flatten(1)
    features = features + (2 * _uniform(features, generator) - 1) * NOISE / net.fc.scale
    words = dropped(F.embedding(dialogue.tokens, net.embedding), DROPOUT, generator)
    outputs = unroll(net, dialogue.tokens, dropped(features, DROPOUT, generator), rows, words)
    distribution = target_distribution(net, dialogue)
    in_vocabulary = place[dialogue.tokens] != IGNORED
    inside = [in_vocabulary[chosen + 2 + step] for step, chosen in enumerate(rows)]
    target_distributions = [
        distribution[chosen[mask] + 2 + step - dialogue.first]
        for step, (chosen, mask) in enumerate(zip(rows, inside, strict=True))
    ]
    weight = [torch.full((int(mask.sum()),), DEPTH_WEIGHT**step / SHARES[step]) for step, mask in enumerate(inside)]
    # All steps through the head at once: on a processor casting its rows costs as much as a step.
    logits = evenly(net.logits, torch.cat([output[mask] for output, mask in zip(outputs, inside, strict=True)]))
    losses = F.cross_entropy(logits, torch.cat(target_distributions), reduction="none")
    return (losses * torch.cat(weight).to(losses.device)).sum() * scale


def dropped(values: Tensor, share: float, generator: torch.Generator) -> Tensor:
    """Dropout with a generator of its own: this share of the entries is zero, the others make up for it."""
    return values * (_uniform(values, generator) >= share) / (1 - share)


def _uniform(like: Tensor, generator: torch.Generator) -> Tensor:
    return torch.rand(like.shape, generator=generator).to(like.device)


@torch.no_grad()
def target_distribution(net: FeatureNet, dialogue: DialogueFeatures) -> Tensor:
    """The target's distribution of each answer token, restricted to the draft vocabulary and renormalised, [answer, support]."""
    return evenly(partial(F.linear, weight=net.head), dialogue.features[dialogue.first - 1 : -1, -1]).softmax(-1)
