"""EAGLE-3's recipe: Li et al. 2025 (arXiv 2503.01840), with the target's own head kept frozen and shared.

Three hidden states of the target go in, no feature is regressed; the loss is the cross-entropy to the target's distribution over
the draft vocabulary, summed over self-fed steps with weights 0.8^j.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from specviz.drafters.networks.feature_net import FeatureNet
from specviz.training.data import IGNORED
from specviz.training.families.unrolling import starts_of, unroll
from specviz.training.features import DialogueFeatures, target_distribution
from specviz.training.parallel import evenly

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
    vocabulary has a place for. ``dialogue`` may be several joined.
    """
    rows = starts_of(dialogue, SHARES, generator)
    features = dialogue.features[:, TAPS].flatten(1)
    features = features + (2 * _uniform(features, generator) - 1) * NOISE / net.fc.scale
    words = dropped(F.embedding(dialogue.tokens, net.embedding), DROPOUT, generator)
    outputs = unroll(net, dialogue.tokens, dropped(features, DROPOUT, generator), rows, words, dialogue.lengths)
    # All steps through the head at once: on a processor casting its rows costs as much as a step.
    drafted = torch.cat([chosen + 2 + step for step, chosen in enumerate(rows)]).to(place.device)
    weight = torch.cat([torch.full((len(chosen),), DEPTH_WEIGHT**step / SHARES[step]) for step, chosen in enumerate(rows)])
    weight = weight.to(place.device) * (place[dialogue.tokens[drafted]] != IGNORED)
    distribution, at = target_distribution(net.head, dialogue)
    losses = F.cross_entropy(evenly(net.logits, torch.cat(outputs)), distribution[at[drafted]], reduction="none")
    return (losses * weight).sum() * scale


def dropped(values: Tensor, share: float, generator: torch.Generator) -> Tensor:
    """Dropout with a generator of its own: this share of the entries is zero, the others make up for it."""
    return values * (_uniform(values, generator) >= share) / (1 - share)


def _uniform(like: Tensor, generator: torch.Generator) -> Tensor:
    return torch.rand(like.shape, generator=fitting(generator, like.device), device=like.device)


def fitting(generator: torch.Generator, device: torch.device) -> torch.Generator:
    """A generator for tensors of ``device``: where the given one is of another, one that it seeds."""
    if generator.device.type == device.type:
        return generator
    return torch.Generator(device).manual_seed(int(torch.randint(1 << 62, (), generator=generator)))
