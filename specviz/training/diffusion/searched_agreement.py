"""What the search through a lattice is worth, on held-out greedy answers: the same blocks with and without the n-grams."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from specviz.drafters.networks.masked_lm import MaskedLM
from specviz.methods.diffuspec.lattice import Ngrams, columns, distribution, search
from specviz.methods.diffuspec.searched import Searching
from specviz.training.common.data import Dialogues, Markers

WEIGHTS = (1.0, 0.75, 0.5, 0.25)
"""Shares of the drafter's distribution in a path's score; at 1 the path is each place's likeliest token."""


@torch.inference_mode()
def searched_agreement(
    model: MaskedLM, ngrams: Ngrams, dialogues: Dialogues, chosen: Sequence[int], markers: Markers, places: int, stride: int,
) -> dict[str, list[float]]:  # fmt: skip
    """By weight: mean accepted tokens, the first place's acceptance, and the second's given the first.

    A block begins at every ``stride``-th place of each of the ``chosen`` greedy answers, as far as a whole one fits.
    """
    how, ends = Searching(), frozenset([markers.end])
    lengths_by_weight: dict[float, list[int]] = {weight: [] for weight in WEIGHTS}
    for number in chosen:
        answer = dialogues.answer(number).tolist()
        text = [*markers.prefix, *dialogues.of(number).tolist()]
        first = len(text) - len(answer)
        for at in range(0, len(answer) - places, stride):
            before = text[: first + at]
            log_q = distribution(model(torch.tensor(before, device=model.embedding.device), places))
            lattice = columns(log_q, model.draft_ids, how.mass, how.cap, ends)
            for weight in WEIGHTS:
                path = search(lattice, ngrams, before, weight, how.width, ends).path
                right = [token == truth for token, truth in zip(path, answer[at:], strict=False)]
                lengths_by_weight[weight].append(right.index(False) if False in right else len(right))
    return {str(weight): _figures(np.array(lengths)) for weight, lengths in lengths_by_weight.items() if lengths}


def _figures(lengths: np.ndarray) -> list[float]:
    once, twice = float((lengths > 0).mean()), float((lengths > 1).mean())
    return [round(float(lengths.mean()), 4), round(once, 3), round(twice / once, 3) if once else 0.0]
