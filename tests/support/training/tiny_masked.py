"""A tiny masked language model, and its training on tiny dialogues."""

from __future__ import annotations

import torch

from specviz.drafting.networks.masked_lm import MaskedLM
from specviz.drafting.networks.small_lm import SmallConfig, SmallLM
from specviz.training.driver import Schedule
from specviz.training.families import masked
from specviz.training.families.masked import MaskedTraining
from tests.support.training.tiny_training import END, VOCAB, embedding, inputs

SETTINGS = Schedule(minutes=60, batch=8, part=4, peak=0.02, decay=0.01, patience=8, average=0.98)


def small_lm(source: torch.Tensor | None = None) -> SmallLM:
    """A small language model over most of the tiny vocabulary, on the embedding ``source``."""
    source = embedding() if source is None else source
    torch.manual_seed(0)
    config = SmallConfig(VOCAB, source.shape[1], draft_vocab=36, width=32, layers=3, heads=2, inner=64, window=48)
    start = SmallLM(config, source, torch.tensor([END, *range(5, 40)]))
    for weight in start.parameters():
        weight.data.normal_(std=0.15)
    return start


def fresh() -> MaskedLM:
    return masked.from_autoregressive(small_lm(), window=48)


def state_of(model: MaskedLM | None = None, settings: Schedule = SETTINGS) -> MaskedTraining:
    return MaskedTraining(model or fresh(), inputs(count=120), settings)


def taught(made: MaskedTraining, updates: int) -> None:
    for number in range(updates):
        made.update(0.0, 0.02 * (1 - number / updates))
    made.use(made.optimizer.averaged())
