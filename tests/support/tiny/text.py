"""Tiny random targets and a helper that decodes with them: what the exactness ladder stands on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import settings
from transformers import LlamaConfig, LlamaForCausalLM

from specviz.drafting.runtimes.language_model import DraftModel, SessionModel
from specviz.engine.cost import CostCurve
from specviz.engine.interfaces import Composition, Outcome, Target
from specviz.engine.loop import Decoding, Recorder
from specviz.engine.sampling import Noise, Warp
from specviz.errors import ModelUnavailable
from specviz.methods.easyspec.layer_parallel import GroupedModel
from specviz.methods.mulo_sd.coarse_rows import CoarsePartner
from specviz.methods.polybasic.intermediate import IntermediateModel
from specviz.methods.registry import ImageResources, MethodResources, TextResources, VisionLanguageResources, build, get
from specviz.models.packing import pack_int8
from specviz.targets.text import TextTarget
from specviz.trace.schema import Step

VOCAB = 48


def shortened(tokens: int) -> int:
    """As many tokens as are compared in this lane: all, and a third of them in the fast one."""
    return tokens // 3 if settings.get_current_profile_name() == "fast" else tokens


LENGTH = shortened(220)
"""Tokens of a run that is compared."""
CURVE = CostCurve((1, 40, 200), (10.0, 12.0, 40.0))


def tiny_llama(
    seed: int = 0, dtype: torch.dtype = torch.float64, vocab: int = VOCAB, context: int = 1024, device: str = "cpu"
) -> LlamaForCausalLM:
    """A two-layer random Llama whose greedy text is neither constant nor hopeless; its weights are the same on any device."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=vocab,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        initializer_range=0.25,
        max_position_embeddings=context,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    return LlamaForCausalLM(config).eval().to(dtype).requires_grad_(False).to(device)


def perturbed(model: LlamaForCausalLM, amount: float, seed: int = 1) -> LlamaForCausalLM:
    """A copy of ``model`` with noise on its weights: a draft model that is often but not always right."""
    torch.manual_seed(seed)
    copy = LlamaForCausalLM(model.config).eval().to(model.dtype).requires_grad_(False)
    copy.load_state_dict({name: value.cpu() for name, value in model.state_dict().items()})
    for weight in copy.parameters():
        weight += amount * torch.randn_like(weight)
    return copy.to(model.device)


def tiny_target(tier: str = "eager", dtype: torch.dtype = torch.float64, eos: Sequence[int] = (), **kwargs: Any) -> TextTarget:
    return TextTarget(tiny_llama(dtype=dtype, **kwargs), "tiny", eos, tier)


def int8_llama(**kwargs: Any) -> LlamaForCausalLM:
    """The tiny model in int8, float64 between its products."""
    model = tiny_llama(**{"dtype": torch.float32, **kwargs})
    pack_int8(model, "tiny")
    return model


class Letters:
    """A TokenText in which token i is the i-th character from 'A'."""

    def of(self, token: int) -> str:
        return chr(65 + token)

    def pieces(self, ids: Sequence[int], more: Sequence[int]) -> tuple[str, ...]:
        return tuple(self.of(token) for token in more)


@dataclass
class _Kept:
    """What earlier runs left, in a dict."""

    entries: dict[Any, Any]

    def remember(self, key: tuple[Any, ...], make: Callable[[], Any]) -> Any:
        if key not in self.entries:
            self.entries[key] = make()
        return self.entries[key]


@dataclass
class TinyResources(TextResources, ImageResources, VisionLanguageResources):
    """Of whatever kind is asked for; a test says what it draws on by ``using``."""

    curve: CostCurve = CURVE
    forward: float = 0.4
    """Milliseconds of a drafter's forward: measured ones would make trees, and with them drawn texts, depend on the hour."""
    drafting: TextTarget | None = None

    def cost_curve(self) -> CostCurve:
        return self.curve

    def cost_curve_of(self, draft: Target) -> CostCurve:
        return self.curve

    def forward_cost(self, network: Any, rows: int, taught: bool = True) -> float:
        return self.forward

    def draft_model(self) -> DraftModel:
        draft = self.drafting
        assert draft is not None
        return DraftModel(draft.name, draft.context_length, lambda capacity: SessionModel(draft.open(capacity), draft))

    def draft_models(self) -> dict[str, DraftModel]:
        return {"near": self.draft_model()}

    def drafter_weights(self, kind: str) -> Any:
        raise ModelUnavailable(f"this test has no {kind}")

    def intermediate(self, kind: str) -> IntermediateModel:
        raise ModelUnavailable(f"this test has no {kind}")

    def grouped(self, kind: str, group: int) -> GroupedModel:
        raise ModelUnavailable(f"this test has no {kind}")

    def neighbours(self) -> torch.Tensor:
        raise ModelUnavailable("this test draws no pictures")

    def coarse(self) -> CoarsePartner:
        raise ModelUnavailable("this test draws no pictures")


def parts_for(
    target: TextTarget, warp: Warp, draft: TextTarget | None = None, memory: dict[Any, Any] | None = None
) -> TinyResources:
    """Parts without a machine to measure: a cost curve in which forty nodes are cheap."""
    kept = {} if memory is None else memory

    return TinyResources(target, warp, "prompt", _Kept(kept), drafting=draft)


def composed(name: str, values: Mapping[str, Any], parts: MethodResources) -> Composition:
    """A method as a user gets it with these values of its parameters."""
    method = get(name)
    return method.compose(build(method.parameters, values, name), parts)


@dataclass
class Decoded:
    """What a run gave."""

    ids: list[int]
    steps: list[Step]
    outcome: Outcome


def decode(
    target: TextTarget,
    composition: Composition,
    prompt: Sequence[int],
    budget: int,
    warp: Warp | None = None,
    seed: int = 0,
    level: str = "tree",
) -> Decoded:
    """Run a composition to its end."""
    recorder = Recorder(Letters(), level)
    run = Decoding(target, composition, prompt, warp or Warp(), Noise(seed), budget, recorder)
    steps = list(run.steps())
    assert run.outcome.reason not in {"error", "out_of_memory"}, run.outcome.message
    return Decoded(run.outcome.output_ids, steps, run.outcome)
