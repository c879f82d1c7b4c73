"""A language model with random weights, and the resources for a run: enough for timings, without network access."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from specviz.bench.first_run.sizes import Shape, Sizes
from specviz.engine.cost import PassTimes, RunCosts, measure
from specviz.engine.loop import Decoding, Recorder
from specviz.engine.sampling import Noise, Warp
from specviz.errors import ModelUnavailable, SpecvizError
from specviz.methods.registry import TextResources, build, get
from specviz.models.device import DTYPES
from specviz.targets.text import TextTarget
from specviz.trace.schema import Step

PROMPT = 64
"""Prompt length in tokens."""


def random_llama(shape: Shape, sizes: Sizes) -> Any:
    """Return a Llama, created on the device, with the same random weights on every call."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=shape.vocab, hidden_size=shape.hidden, intermediate_size=shape.inner, num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads, num_key_value_heads=shape.kv_heads, max_position_embeddings=4096,
        tie_word_embeddings=True, bos_token_id=None, eos_token_id=None, pad_token_id=None, dtype=DTYPES[sizes.dtype],
    )  # fmt: skip
    with torch.device(sizes.device):
        model: Any = LlamaForCausalLM(config)
    return model.to(DTYPES[sizes.dtype]).eval().requires_grad_(False)


class Numbers:
    """Token texts for a model without a tokenizer: the ids in decimal."""

    def of(self, token: int) -> str:
        return f"{token} "

    def pieces(self, ids: Sequence[int], more: Sequence[int]) -> tuple[str, ...]:
        return tuple(map(self.of, more))


@dataclass
class DictMemory:
    """Memory of objects from earlier runs."""

    entries: dict[Hashable, Any] = field(default_factory=dict)

    def remember(self, key: tuple[Hashable, ...], make: Callable[[], Any]) -> Any:
        if key not in self.entries:
            self.entries[key] = make()
        return self.entries[key]


@dataclass
class RandomResources(TextResources):
    """Resources without any weights beside the target's."""

    def _none(self, *what: Any, **more: Any) -> Any:
        raise ModelUnavailable("The model with random weights has no drafter.")

    drafter_weights = draft_model = draft_models = intermediate = grouped = cost_curve_of = _none


@dataclass(frozen=True)
class Timed:
    """Steps of a run, with ``decoding`` and ``whole`` times in seconds; ``decoding`` excludes prefill and graph capture."""

    decoding: float
    whole: float
    steps: tuple[Step, ...]

    @property
    def tokens(self) -> int:
        return sum(len(step.emitted) for step in self.steps)


@dataclass
class Bench:
    """The random model as a target."""

    sizes: Sizes
    model: Any
    target: TextTarget
    resources: RandomResources
    prompt: list[int]

    @staticmethod
    def with_random_weights(sizes: Sizes, shape: Shape) -> Bench:
        model = random_llama(shape, sizes)
        target = TextTarget(model, "random weights", (), "graph")
        times = PassTimes()
        measure(target, times.learn)
        resources = RandomResources(target, Warp(), "random", DictMemory(), costs=RunCosts(lambda timed: times))
        prompt = torch.randint(0, shape.vocab, (PROMPT,), generator=torch.Generator().manual_seed(0)).tolist()
        return Bench(sizes, model, target, resources, prompt)

    def in_tier(self, tier: str) -> Bench:
        """Return the same model in another tier."""
        target = TextTarget(self.model, "random weights", (), tier)
        return replace(self, target=target, resources=replace(self.resources, target=target))

    def run(self, method: str, values: Mapping[str, Any] | None = None, record: str = "off") -> Timed:
        """Decode ``sizes.tokens`` tokens. Raises SpecvizError if the run ends earlier."""
        card = get(method)
        composition = card.compose(build(card.parameters, dict(values or {}), method), self.resources)
        decoding = Decoding(
            self.target, composition, self.prompt, Warp(), Noise(0), self.sizes.tokens, Recorder(Numbers(), record)
        )  # fmt: skip
        started = time.perf_counter()
        steps = tuple(decoding.steps())
        whole = time.perf_counter() - started
        if decoding.outcome.reason != "budget":
            raise SpecvizError(f"{method} ended with {decoding.outcome.reason}: {decoding.outcome.message}")
        return Timed(sum(step.time.total for step in steps) / 1e9, whole, steps)
