"""Tiny feature drafters on tiny random targets, and a check of every logit they give."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from specviz.drafting.networks.feature_net import FeatureConfig, FeatureNet
from specviz.drafting.runtimes.feature_drafter import FeatureDrafter
from specviz.engine.interfaces import Context, Round
from specviz.training.families.feature import unroll
from tests.support.tiny.networks import shared, sizes, some


def tiny_net(model: Any, wide: bool, support: int | None = None, seed: int = 3) -> FeatureNet:
    """A random network on the model's own embedding and head."""
    taps = (1, 1, 0) if wide else (model.config.num_hidden_layers,)
    config = FeatureConfig(**sizes(model), taps=taps, wide=wide, bias=not wide)
    torch.manual_seed(seed)
    ids = None if support is None else some(config.vocab_size, support)
    net = FeatureNet(config, *shared(model), ids).to(model.dtype).requires_grad_(False)
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


class Audited(FeatureDrafter):
    """A drafter whose every answer is compared with the network run from scratch on the committed text and the path."""

    def __init__(self, net: FeatureNet, model: Any, context_length: int = 1024) -> None:
        super().__init__(net.runtime(), context_length)
        self.net, self.model = net, model
        self._truth: tuple[list[int], Tensor] = ([], torch.empty(0))
        self.checked = self.silent = 0
        self.worst = 0.0
        self.accepted: list[int] = []

    def observe(self, finished: Round) -> None:
        self.accepted.append(len(finished.verdict.path))
        super().observe(finished)

    def levels(self, context: Context) -> Any:
        found = super().levels(context)
        if found is None:
            self.silent += 1
        return None if found is None else AuditedLevels(self, context, found)

    def compare(self, context: Context, row: Tensor, path: list[int]) -> None:
        """An answer after ``path``, the tokens below the root."""
        net = self.net
        if self._truth[0] != list(context.ids):
            self._truth = list(context.ids), true_features(self.model, net.config.taps, context.ids)
        features = self._truth[1]
        text = torch.tensor([*context.ids, *path])
        starts = [torch.tensor([context.position - 1])] * (len(path) + 1)
        wanted = net.logits(unroll(net, text, _padded(features, len(text)), starts)[-1])[0]
        self.worst = max(self.worst, float((row - wanted).abs().max() / wanted.abs().max()))
        self.checked += 1


class AuditedLevels:
    """A round's levels, each of whose rows is compared."""

    def __init__(self, drafter: Audited, context: Context, levels: Any) -> None:
        self._drafter, self._context, self._levels = drafter, context, levels
        self._paths: list[list[int]] = [[]]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._levels, name)

    def first(self) -> Tensor:
        return self._compared(self._levels.first())

    def below(self, tokens: Tensor, parents: Tensor) -> Tensor:
        self._paths = [[*self._paths[above], token] for token, above in zip(tokens.tolist(), parents.tolist(), strict=True)]
        return self._compared(self._levels.below(tokens, parents))

    def ask(self, tokens: Tensor | None = None, parents: Tensor | None = None) -> Tensor:
        return self.first() if tokens is None or parents is None else self.below(tokens, parents)

    def _compared(self, logits: Tensor) -> Tensor:
        for row, path in zip(logits, self._paths, strict=True):
            self._drafter.compare(self._context, row, path)
        return logits


def _padded(features: Tensor, length: int) -> Tensor:
    """Rows for drafted tokens, so wrong that nobody can have read them."""
    return torch.cat((features, torch.full((length - len(features), features.shape[1]), 1e4, dtype=features.dtype)))
