"""A tiny made-up world for the recipes: an embedding, dialogues whose answers count upwards, and a tiny Llama that reads them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from specviz.drafting.networks.recurrent_net import RecurrentConfig
from specviz.training import data, features
from specviz.training.data import Dialogues, Markers
from specviz.training.families import owl
from specviz.training.families.feature import TrainInputs
from specviz.training.features import FeatureStore, TargetAssets
from tests.support.tiny.text import tiny_llama

VOCAB, HIDDEN, END = 40, 16, 2
MARKERS = Markers(prefix=(1, 4, 3), turn=(3, 1), end=END)
IDS = torch.tensor([END, *range(5, 35)])
"""A draft vocabulary that lacks some of the answers' tokens."""


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


def assets(device: str = "cpu") -> TargetAssets:
    """A tiny random Llama as the target."""
    model = tiny_llama(dtype=torch.float32, vocab=VOCAB).to(device)
    target = SimpleNamespace(
        model=model, name="tiny", device=torch.device(device), tokenizer_hash="abc", eos_ids=[END], tokenizer=None
    )
    return TargetAssets(target, model.get_input_embeddings().weight.detach(), MARKERS, ())


def inputs(
    taps: Sequence[int] = (1, 1, 0, 2), ids: torch.Tensor = IDS, folder: Path | None = None, count: int = 60
) -> TrainInputs:
    """What a recipe of the target's features begins with."""
    made, given = dialogues(count), assets()
    training, held_out = data.split(made)
    store = FeatureStore(given.target.model, made, MARKERS, taps, folder)
    return TrainInputs(given, [Path(__file__)], store, training, held_out, ids)


def world(patch: pytest.MonkeyPatch, count: int, device: str = "cpu") -> None:
    """The recipes find ``count`` tiny dialogues and the tiny target."""
    given = assets(device)
    patch.setattr(data, "find", lambda names: [])
    patch.setattr(data, "read_all", lambda files: dialogues(count))
    patch.setattr(features, "target_assets", lambda device: given)


def short_windows(patch: pytest.MonkeyPatch) -> None:
    """OWL on windows as short as the tiny answers, with a network no wider than the target."""
    patch.setattr(owl, "RecurrentConfig", partial(RecurrentConfig, width=24, entry=24, word=24))
    patch.setattr(owl, "LENGTH", 16)
    patch.setattr(owl, "EARLIEST", 2)
    patch.setattr(owl.random_places, "__defaults__", (16,))
