"""Tiny random models with a picture, drafters on them, and what those drafters should say, worked out from scratch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from specviz.drafting.networks.cross_net import CrossConfig, CrossNet, CrossRuntime, attend
from specviz.drafting.networks.eagle_head import EagleConfig, EagleHead
from specviz.drafting.networks.small_lm import SmallConfig, SmallLM
from specviz.drafting.runtimes.language_model import DraftModel, SmallModel
from specviz.drafting.runtimes.visual_context import Layout
from specviz.engine.interfaces import Composition
from specviz.engine.sampling import Warp
from specviz.methods.registry import MethodResources
from specviz.targets.image_prompt import sight
from specviz.targets.vision_language import VisionLanguageTarget, family_of
from tests.support.tiny.networks import shared, sizes
from tests.support.tiny.text import LENGTH, Decoded, composed, decode, parts_for
from tests.support.tiny.vision import TinyVision, tiny_vision

GREEDY, WARM = Warp(), Warp(0.8)
WARPS = {"greedy": GREEDY, "warm": WARM}
STEPS = 3


@dataclass(frozen=True)
class World:
    """A target with its picture, and the prompt as a drafter's layout."""

    tiny: TinyVision
    target: VisionLanguageTarget
    layout: Layout

    @property
    def prompt(self) -> list[int]:
        return list(self.tiny.prompt.ids)


def world(
    kind: str = "smolvlm",
    tier: str = "eager",
    dtype: torch.dtype = torch.float64,
    eos: Sequence[int] = (),
    context: int = 0,
    seed: int = 0,
    device: str = "cpu",
) -> World:
    tiny = tiny_vision(kind, dtype=dtype, seed=seed, device=device)
    prompt = tiny.prompt
    seen = sight(tiny.model, prompt.ids, prompt.inputs, family_of(tiny.model, kind).axes)
    target = VisionLanguageTarget(tiny.model, kind, eos, seen, tier)
    if context:
        target.context_length = context
    return World(tiny, target, Layout(len(prompt.ids), prompt.visual, prompt.hidden, seen.positions, seen.shift))


def scattered(net: torch.nn.Module, seed: int) -> None:
    """Random weights large enough that the network has opinions."""
    torch.manual_seed(seed)
    for weight in net.parameters():
        if weight.ndim == 1:
            weight.data.add_(0.2 * torch.randn_like(weight))
        else:
            weight.data.normal_(std=1.5 * weight.shape[1] ** -0.5)
    net.requires_grad_(False)


def eagle_head(model: Any, seed: int = 3) -> EagleHead:
    """A random narrow network on the model's own embedding and head."""
    layers = model.config.get_text_config().num_hidden_layers
    config = EagleConfig(**sizes(model), taps=(layers,), wide=False, bias=True)
    net = EagleHead(config, *shared(model), None).to(model.dtype)
    scattered(net, seed)
    net.fc.scale.uniform_(0.5, 2)
    return net.to(model.device)


def step_vectors(model: Any, seed: int = 4) -> Tensor:
    """[step, hidden] of vectors that change what a network says."""
    hidden = model.config.get_text_config().hidden_size
    return torch.randn(STEPS, hidden, generator=torch.Generator().manual_seed(seed)).to(model.device, model.dtype)


def cross_net(model: Any, seed: int = 6, open_gates: bool = True) -> CrossNet:
    """A random network that looks across; its gates are open unless told otherwise."""
    layers = model.config.get_text_config().num_hidden_layers
    net = CrossNet(CrossConfig(**sizes(model), taps=(0, layers), wide=False, keep=0.5), *shared(model)).to(model.dtype)
    scattered(net, seed)
    net.reading.gates.data = torch.tensor([0.8, -0.6] if open_gates else [0.0, 0.0], dtype=model.dtype)
    return net.to(model.device)


def text_model(model: Any, seed: int = 5) -> SmallLM:
    """A random small language model on the model's embedding, over most of its vocabulary."""
    text = model.config.get_text_config()
    torch.manual_seed(seed)
    config = SmallConfig(text.vocab_size, text.hidden_size, draft_vocab=80, width=32, layers=2, heads=2, inner=48, window=128)
    ids = torch.arange(8, 88)
    net = SmallLM(config, model.get_input_embeddings().weight.detach().float(), ids).to(model.dtype)
    net.rotary = net.rotary.to(model.dtype)
    return net.eval().requires_grad_(False).to(model.device)


def parts_of(here: World, warp: Warp) -> MethodResources:
    model = here.tiny.model

    def heads(kind: str) -> Any:
        if kind == "dream":
            return CrossRuntime(cross_net(model))
        runtime = eagle_head(model).runtime()
        return (runtime, step_vectors(model)) if kind == "hivis" else runtime

    def draft() -> DraftModel:
        net = text_model(model)
        # It knows which words are common, so that it is right now and then.
        common = Counter(baseline(here.tiny.name, "eager", torch.float64, WARM, 60)).most_common(12)
        for token, _ in common:
            net.bias[net.draft_ids == token] += 7.0
        return DraftModel("tiny", here.target.context_length, lambda capacity: SmallModel(net, capacity))

    return parts_for(here.target, warp).using(drafter_weights=heads, draft_model=draft, picture=here.layout)


def compose(name: str, values: dict[str, object], here: World, warp: Warp) -> Composition:
    return composed(name, values, parts_of(here, warp))


def decoded(
    name: str, values: dict[str, object], here: World, warp: Warp = GREEDY, budget: int = LENGTH, level: str = "tree"
) -> Decoded:
    return decode(here.target, compose(name, values, here, warp), here.prompt, budget, warp, 7, level)


@cache
def baseline(kind: str, tier: str, dtype: torch.dtype, warp: Warp, budget: int = LENGTH) -> list[int]:
    """The tiny target's own text about its picture, decoded once for all the tests that compare with it."""
    return decoded("autoregressive", {}, world(kind, tier, dtype), warp, budget).ids


def expected(net: EagleHead, words: Tensor, features: Tensor, drafted: Sequence[int], steps: Tensor | None) -> Tensor:
    """Logits [support] after ``drafted`` tokens, by the definition: every input attends to every earlier one.

    ``words`` [token, hidden] are the committed tokens as the drafter sees them, ``features`` those of all but the last.
    """

    def fed(own: Tensor, step: int) -> Tensor:
        return own if steps is None else own + steps[min(step, len(steps) - 1)]

    xs = [net.mix(word[None], fed(own[None], 0)) for word, own in zip(words[1:], features, strict=True)]
    for step in range(len(drafted) + 1):
        places = torch.arange(len(xs))
        net.reach(len(xs))
        inputs = torch.cat([one for one, _ in xs])
        keys, values = net.keys_values(inputs, places)
        seen = attend(net.queries(inputs[-1:], places[-1:]), keys, values, torch.zeros(1, len(xs), dtype=torch.bool))
        output = net.finish(xs[-1][1], seen)
        if step < len(drafted):
            xs.append(net.mix(net.embedding[drafted[step]][None], fed(output, step + 1)))
    return net.logits(output)[0]
