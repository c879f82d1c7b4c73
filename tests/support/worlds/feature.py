"""Tiny feature drafters on tiny random targets, and what they should say."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from specviz.drafting.networks.eagle_head import EagleConfig, EagleHead
from specviz.training.families.feature import unroll
from tests.support.tiny.networks import shared, sizes, some


def tiny_net(model: Any, wide: bool, support: int | None = None, seed: int = 3) -> EagleHead:
    """A random network on the model's own embedding and head."""
    taps = (1, 1, 0) if wide else (model.config.num_hidden_layers,)
    config = EagleConfig(**sizes(model), taps=taps, wide=wide, bias=not wide)
    torch.manual_seed(seed)
    ids = None if support is None else some(config.vocab_size, support)
    net = EagleHead(config, *shared(model), ids).to(model.dtype).requires_grad_(False)
    for name, weight in net.named_parameters():
        if weight.ndim == 1:
            weight.add_(0.2 * torch.randn_like(weight))
        else:
            weight.normal_(std=1.5 * weight.shape[1] ** -0.5)
    net.fc.scale.uniform_(0.5, 2)
    return net.to(model.device)


def true_features(model: Any, taps: Sequence[int], ids: Sequence[int]) -> Tensor:
    """[token, tap * hidden] from one plain pass over the text."""
    with torch.no_grad():
        found = model(torch.tensor([list(ids)]), output_hidden_states=True)
    return torch.cat([found.hidden_states[tap][0] for tap in taps], dim=-1)


def _padded(features: Tensor, length: int) -> Tensor:
    """Rows for drafted tokens, so wrong that nobody can have read them."""
    return torch.cat((features, torch.full((length - len(features), features.shape[1]), 1e4, dtype=features.dtype)))


def wanted(net: EagleHead, model: Any, ids: Sequence[int], path: Sequence[int]) -> Tensor:
    """Logits [support] after ``path``, the tokens below the root, by the network run from scratch on the committed ``ids``."""
    text = torch.tensor([*ids, *path])
    starts = [torch.tensor([len(ids) - 2])] * (len(path) + 1)
    features = _padded(true_features(model, net.config.taps, ids), len(text))
    return net.logits(unroll(net, text, features, starts)[-1])[0]
