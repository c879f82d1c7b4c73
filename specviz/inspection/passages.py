"""Greedy answers of the target, with hidden states and logits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from specviz.drafting.runtimes.visual_context import Layout
from specviz.engine.stop import heed
from specviz.engine.tree import DraftTree
from specviz.errors import ModelUnavailable
from specviz.models.hub.cache_dir import Progress, no_progress
from specviz.models.hub.catalog import IMAGE
from specviz.models.hub.prepare import modality_of
from specviz.pipeline.prepared import Prepared
from specviz.pipeline.request import Request
from specviz.pipeline.runner import prepare

PIECE = 128
"""Number of tokens per scoring pass, because the cost of a recurrent target's pass is quadratic in this number."""


@dataclass(frozen=True)
class Passage:
    """A prompt and the target's greedy answer.

    ``ids``: [token]; ``first``: index of the first token of the answer; ``states``: [token, hidden] by layer, numbered as in
    transformers; ``logits``: [answer token, vocab]; ``layout``: positions of the prompt's image, or None.
    """

    ids: Tensor
    first: int
    states: dict[int, Tensor]
    logits: Tensor
    layout: Layout | None = None


def open_target(name: str, prompt: str, tokens: int, image: Any = None, progress: Progress = no_progress) -> Prepared:
    """Prepare a greedy autoregressive run. Raises ModelUnavailable for an image model."""
    if modality_of(name, progress) == IMAGE:
        raise ModelUnavailable(
            f"{name} is an image model, whose drafters cannot be inspected. Compare a run with its baseline instead."
        )
    request = Request(
        "autoregressive", prompt, name, image=image, max_new_tokens=tokens, temperature=0.0, tier="eager", record="off"
    )
    return prepare(request, progress=progress)


def passages(
    name: str, prompts: Sequence[str], tokens: int, layers: Sequence[int], image: Any = None, progress: Progress = no_progress
) -> Iterator[Passage]:
    """Yield a passage per prompt: the target's greedy answer of at most ``tokens`` tokens and the states of ``layers``.

    Raises ModelUnavailable if the target fails during an answer.
    """
    for number, prompt in enumerate(prompts):
        prepared = open_target(name, prompt, tokens, image, progress)
        decoding = prepared.decoding(prepared.compose(), 0)
        for _ in decoding.steps():
            heed()
            share = (number + len(decoding.outcome.output_ids) / tokens) / len(prompts)
            progress(f"{name}: answer {number + 1} of {len(prompts)}", share)
        heed()
        if decoding.outcome.reason in ("error", "out_of_memory"):
            raise ModelUnavailable(f"{name} failed while answering a prompt ({decoding.outcome.message}).")
        prompt_ids, answer, target = prepared.prompt_ids, decoding.outcome.output_ids, prepared.target
        with torch.inference_mode():
            session = target.open(len(prompt_ids) + len(answer), tuple(layers))
            passes = [session.prefill(prompt_ids)]
            for start in range(0, len(answer), PIECE):
                piece = answer[start : start + PIECE]
                passes.append(session.score(DraftTree.of(piece, range(-1, len(piece) - 1), target.device)))
                session.keep(range(len(piece)))
            session.close()
            states = {layer: torch.cat([one.hidden[layer] for one in passes]).clone() for layer in layers}
            logits = torch.cat([one.logits for one in passes])[:-1].clone()
            ids = torch.tensor([*prompt_ids, *answer], device=target.device)
        yield Passage(ids, len(prompt_ids), states, logits, prepared.resources.picture)
