"""Answers of the target, with its hidden states and its distribution at every position."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from specviz.drafting.runtimes.visual_context import Layout
from specviz.engine.stop import heed
from specviz.engine.tree import DraftTree
from specviz.errors import BadInput, ModelUnavailable
from specviz.models.hub.cache_dir import Progress, no_progress
from specviz.models.hub.catalog import IMAGE, VISION
from specviz.models.hub.prepare import modality_of
from specviz.models.text.load import LoadedText, load_causal_lm
from specviz.models.vision.vision_language import LoadedVisionLanguage, load_vision_language
from specviz.pipeline.request import Request
from specviz.pipeline.runner import prepare
from specviz.targets.hybrid import HybridTarget, causal_target
from specviz.targets.image_prompt import sight
from specviz.targets.text import TextTarget
from specviz.targets.vision_language import VisionLanguageTarget


@dataclass(frozen=True)
class Passage:
    """A prompt and the greedy answer. ``ids`` [token]; the answer starts at ``first``; ``states`` by layer, [token, hidden], in
    transformers' numbering; ``logits`` [place, vocab] are the target's predictions of the answer's tokens. ``layout`` locates
    the prompt's picture, None for text."""

    ids: Tensor
    first: int
    states: dict[int, Tensor]
    logits: Tensor
    layout: Layout | None = None


def open_target(
    name: str, image: Any = None, progress: Progress = no_progress
) -> tuple[LoadedText | LoadedVisionLanguage, TextTarget | HybridTarget]:
    """Load the model called ``name`` and its target; a model that reads pictures requires an ``image``. Raises ModelUnavailable
    for a model that draws pictures or cannot verify trees, BadInput for a missing or unwanted picture."""
    kind = modality_of(name, progress)
    if kind == IMAGE:
        raise ModelUnavailable(
            f"{name} draws pictures: drafters for such targets cannot be inspected yet. Compare a run with the plain run instead."
        )
    if kind == VISION:
        if image is None:
            raise BadInput(f"{name} answers questions about a picture: give one with --image FILE.")
        seeing = load_vision_language(name, progress=progress)
        words = sight(seeing.model, [next(iter(sorted(seeing.eos_ids)), 0)], {})
        return seeing, VisionLanguageTarget(seeing.model, seeing.name, sorted(seeing.eos_ids), words, "eager")
    if image is not None:
        raise BadInput(f"{name} does not read pictures. Omit the picture, or choose a target that reads them.")
    loaded = load_causal_lm(name, progress=progress)
    return loaded, causal_target(loaded.model, loaded.name, loaded.eos_ids, "eager")


def passages(
    name: str, target: TextTarget | HybridTarget, prompts: Sequence[str], tokens: int, layers: Sequence[int],
    image: Any = None, progress: Progress = no_progress,
) -> Iterator[Passage]:  # fmt: skip
    """Yield the target's answer to each prompt (and ``image``), up to ``tokens`` tokens, with the hidden states of ``layers``.

    Raises ModelUnavailable if the target fails in the middle of an answer.
    """
    for number, prompt in enumerate(prompts):
        prepared = prepare(Request(method="autoregressive", prompt=prompt, target=name, max_new_tokens=tokens, temperature=0.0,
                                   tier="eager", record="off", image=image), progress=progress)  # fmt: skip
        decoding = prepared.decoding(prepared.compose(), 0, prepared.request.record, threading.Event())
        for _ in decoding.steps():
            heed()
            share = (number + len(decoding.outcome.output_ids) / tokens) / len(prompts)
            progress(f"{name} writes answer {number + 1} of {len(prompts)}", share)
        heed()
        if decoding.outcome.reason in ("error", "out_of_memory"):
            raise ModelUnavailable(f"{name} failed in the middle of an answer ({decoding.outcome.message}).")
        answer = list(decoding.outcome.output_ids)
        if isinstance(prepared.target, VisionLanguageTarget):
            assert prepared.resources.picture is not None
            yield picture_passage(prepared.target, prepared.resources.picture, prepared.prompt_ids, answer, layers)
        else:
            yield passage(target, prepared.prompt_ids, answer, layers)


@torch.inference_mode()
def passage(target: TextTarget | HybridTarget, prompt: Sequence[int], answer: Sequence[int], layers: Sequence[int]) -> Passage:
    """Return the passage from one pass of the target over prompt and answer."""
    ids = torch.tensor([*prompt, *answer], device=target.device)
    output = target.model(input_ids=ids[None], output_hidden_states=True, use_cache=False)
    states = {layer: output.hidden_states[layer][0].clone() for layer in layers}
    return Passage(ids, len(prompt), states, output.logits[0, len(prompt) - 1 : -1].clone())


@torch.inference_mode()
def picture_passage(
    target: VisionLanguageTarget, layout: Layout, prompt: Sequence[int], answer: Sequence[int], layers: Sequence[int]
) -> Passage:
    """Return the passage of a prompt with a picture at this ``layout``."""
    session = target.open(len(prompt) + len(answer), tuple(layers))
    seen = session.prefill(prompt)
    written = session.score(DraftTree.of(answer, range(-1, len(answer) - 1), target.device))
    session.close()
    states = {layer: torch.cat((seen.hidden[layer], written.hidden[layer])).clone() for layer in layers}
    logits = torch.cat((seen.logits, written.logits[:-1])).clone()
    return Passage(torch.tensor([*prompt, *answer], device=target.device), len(prompt), states, logits, layout)
