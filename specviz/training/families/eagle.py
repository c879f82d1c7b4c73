"""EAGLE's recipe: Li et al. 2024 (arXiv 2401.15077), regression of the target's next feature, and of what its head reads.

The loss is SmoothL1 between features plus 0.1 times the cross-entropy between what the target's own head makes of them.
Features come in with uniform noise, since while drafting they are the network's own and only nearly right.
"""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from specviz.drafters.networks.feature_net import FeatureNet
from specviz.training.families.eagle3 import DROPOUT, dropped, fitting
from specviz.training.families.unrolling import starts_of, unroll
from specviz.training.features import DialogueFeatures
from specviz.training.parallel import evenly

TAPS = slice(3, 4)
TOKEN_WEIGHT = 0.1
NOISE = 0.2 * 512
"""Width of the noise in a text of one token; in a longer one it is that much weaker."""


def loss(net: FeatureNet, dialogue: DialogueFeatures, generator: torch.Generator, scale: float) -> Tensor:
    """Sum over the answer's tokens of the loss, times ``scale``; the regression is a mean over the feature's entries.
    ``dialogue`` may be several joined."""
    features, lengths = dialogue.features[:, TAPS].flatten(1), dialogue.lengths
    noise = torch.rand(features.shape, generator=fitting(generator, features.device), device=features.device) - 0.5
    width = torch.cat([torch.full((length, 1), NOISE / length) for length in lengths]).to(features.device)
    rows = starts_of(dialogue, [1.0], generator)
    words = dropped(F.embedding(dialogue.tokens, net.embedding), DROPOUT, generator)
    noisy = dropped(features + noise * width, DROPOUT, generator)
    output = unroll(net, dialogue.tokens, noisy, rows, words, lengths)[0]
    target_features = features[rows[0].to(features.device) + 1]
    regression = F.smooth_l1_loss(output, target_features, reduction="sum") / output.shape[1]
    with torch.no_grad():
        distribution = evenly(partial(F.linear, weight=net.head), target_features).softmax(-1)
    tokens = F.cross_entropy(evenly(net.logits, output), distribution, reduction="sum")
    return (regression + TOKEN_WEIGHT * tokens) * scale
