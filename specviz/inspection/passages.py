"""Answers that the target wrote itself, with its hidden states and its distribution at every place."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specviz.errors import BadInput, ModelUnavailable
from specviz.models.text.load import LoadedText, load_causal_lm
from specviz.request import Request
from specviz.runner import prepare
from specviz.targets.causal import causal_target
from specviz.targets.hybrid import HybridTarget
from specviz.targets.text import TextTarget

Report = Callable[[str], object]


@dataclass(frozen=True)
class Passage:
    """A prompt and the greedy answer. ``ids`` [token]; the answer starts at ``first``; ``states`` by layer, [token, hidden], in
    transformers' numbering; ``logits`` [place, vocab] of the target at the answer's places, the first one's from the token
    before it."""

    ids: Tensor
    first: int
    states: dict[int, Tensor]
    logits: Tensor


def open_target(name: str, dtype: str = "auto") -> tuple[LoadedText, TextTarget | HybridTarget]:
    """The target by name. Raises ModelUnavailable for one that cannot verify trees."""
    loaded = load_causal_lm(name, dtype)
    return loaded, causal_target(loaded.model, loaded.name, loaded.eos_ids, "eager")


def passages(
    name: str, target: TextTarget | HybridTarget, prompts: Sequence[str], tokens: int, layers: Sequence[int], dtype: str = "auto"
) -> Iterator[Passage]:
    """What the target writes for each prompt, up to ``tokens`` tokens, with the hidden states of these ``layers``."""
    for prompt in prompts:
        prepared = prepare(Request(method="autoregressive", prompt=prompt, target=name, max_new_tokens=tokens, temperature=0.0,
                                   dtype=dtype, tier="eager", record="off"))  # fmt: skip
        decoding = prepared.decoding(prepared.compose(), 0, prepared.request.record, threading.Event())
        for _ in decoding.steps():
            pass
        if decoding.outcome.reason in ("error", "out_of_memory"):
            raise ModelUnavailable(f"{name} broke off while it wrote an answer ({decoding.outcome.message}).")
        yield passage(target, prepared.prompt_ids, list(decoding.outcome.output_ids), layers)


@torch.inference_mode()
def passage(target: TextTarget | HybridTarget, prompt: Sequence[int], answer: Sequence[int], layers: Sequence[int]) -> Passage:
    """One pass of the target over prompt and answer."""
    ids = torch.tensor([*prompt, *answer], device=target.device)
    output = target.model(input_ids=ids[None], output_hidden_states=True, use_cache=False)
    states = {layer: output.hidden_states[layer][0].clone() for layer in layers}
    return Passage(ids, len(prompt), states, output.logits[0, len(prompt) - 1 : -1].clone())


def prompts_in(text: str) -> tuple[str, ...]:
    """One prompt a line, empty ones left out. Raises BadInput where there is none."""
    prompts = tuple(line.strip() for line in text.splitlines() if line.strip())
    if not prompts:
        raise BadInput("The file with prompts is empty; write one prompt a line.")
    return prompts
