"""A tiny made-up world for the recipes: an embedding, and dialogues whose answers count upwards."""

from __future__ import annotations

import numpy as np
import torch

from specviz.training.data import Dialogues, Markers

VOCAB, HIDDEN, END = 40, 16, 2
MARKERS = Markers(prefix=(1, 4, 3), turn=(3, 1), end=END)


def embedding() -> torch.Tensor:
    return torch.randn(VOCAB, HIDDEN, generator=torch.Generator().manual_seed(0))


def dialogues(count: int = 60) -> Dialogues:
    """Dialogue i asks a number and is answered with the numbers after it, 5 to 39 round and round; each ends in END."""
    turns, prompts = [], []
    for number in range(count):
        first = 5 + (number * 7 + number // 35) % 35
        asked = [5 + number // 35, 5 + number % 35, first, END, 3]
        said = [5 + (first - 5 + step) % 35 for step in range(1, 12 + number % 7)]
        turns.append([*asked, *said, END])
        prompts.append(len(asked))
    starts = np.concatenate(([0], np.cumsum([len(turn) for turn in turns])))
    temperature = np.array([0.0 if number % 3 else 1.0 for number in range(count)], dtype=np.float32)
    return Dialogues(np.array([token for turn in turns for token in turn]), starts, np.array(prompts), temperature)
