"""Random small draft models on a tiny random target, as arms."""

from __future__ import annotations

from typing import Any

import torch

from specviz.drafters.networks.small_lm import SmallConfig, SmallLM
from specviz.engine.interfaces import Composition
from specviz.engine.sampling import Warp
from specviz.methods.hedgespec.method import DOMAINS
from specviz.methods.parameters import build
from specviz.methods.registry import get
from specviz.targets.text import TextTarget
from tests.support.tiny.text import parts_for


def arm(target: TextTarget, seed: int, draft: int = 40) -> SmallLM:
    """A random network over some of the vocabulary."""
    torch.manual_seed(seed)
    embedding = target.model.get_input_embeddings().weight.detach()
    config = SmallConfig(*embedding.shape, draft_vocab=draft, width=16, layers=2, heads=2, inner=24, window=64)
    ids = torch.randperm(len(embedding))[:draft].sort().values
    net = SmallLM(config, embedding, ids).to(target.dtype).eval().requires_grad_(False)
    net.rotary = net.rotary.to(target.dtype)
    for weight in net.parameters():
        if weight.ndim == 2:
            weight.normal_(std=2.0 * weight.shape[1] ** -0.5)
    return net.to(target.device)


def arms(target: TextTarget) -> dict[str, SmallLM]:
    """One by domain."""
    return {name: arm(target, seed) for seed, name in enumerate(DOMAINS)}


def compose(
    name: str, values: dict[str, object], target: TextTarget, warp: Warp, memory: dict[Any, Any] | None = None
) -> Composition:
    """One of the methods that choose among arms, as a user gets it."""
    method, models = get(name), arms(target)
    parts = parts_for(target, warp, memory=memory).using(drafter_weights=lambda kind: models)
    return method.compose(build(method.parameters, values, name), parts)
