"""Random draft models on a tiny random target, as arms: the small ones that ship, or whole ones that a user names."""

from __future__ import annotations

from typing import Any

import torch

from specviz.drafting.networks.small_lm import SmallConfig, SmallLM
from specviz.drafting.runtimes.language_model import DraftModel, SessionModel
from specviz.engine.interfaces import Composition
from specviz.engine.sampling import Warp
from specviz.methods.hedgespec.method import DOMAINS
from specviz.methods.parameters import build
from specviz.methods.registry import get
from specviz.targets.hybrid import HybridTarget
from specviz.targets.text import TextTarget
from tests.support.tiny.hybrid import hybrid
from tests.support.tiny.text import parts_for, perturbed


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


def named(target: TextTarget) -> dict[str, DraftModel]:
    """Whole models of the target's vocabulary, as a user names them: one often right, one seldom, one of recurrent layers."""
    near, far = (TextTarget(perturbed(target.model, amount), label, []) for label, amount in (("near", 0.01), ("far", 0.2)))
    recurrent = HybridTarget(hybrid(dtype=target.dtype), "recurrent", ())
    return {model.name: _draft_model(model) for model in (near, far, recurrent)}


def _draft_model(model: TextTarget | HybridTarget) -> DraftModel:
    return DraftModel(model.name, model.context_length, lambda capacity: SessionModel(model.open(capacity), model))


def compose_named(
    name: str, values: dict[str, object], target: TextTarget, warp: Warp, memory: dict[Any, Any] | None = None
) -> Composition:
    """The same over the drafters of :func:`named`."""
    method, models = get(name), named(target)
    parts = parts_for(target, warp, memory=memory).using(draft_models=lambda: models, uses_shipped_weights=False)
    return method.compose(build(method.parameters, values, name), parts)


def compose(
    name: str, values: dict[str, object], target: TextTarget, warp: Warp, memory: dict[Any, Any] | None = None
) -> Composition:
    """One of the methods that choose among arms, as a user gets it."""
    method, models = get(name), arms(target)
    parts = parts_for(target, warp, memory=memory).using(drafter_weights=lambda kind: models)
    return method.compose(build(method.parameters, values, name), parts)
