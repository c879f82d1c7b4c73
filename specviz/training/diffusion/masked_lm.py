"""Recipe of the masked language model: the small draft model's weights, taught to look both ways and to fill in masks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice

import numpy as np

from specviz.drafters.networks.masked_lm import MaskedLM
from specviz.drafters.networks.small_lm import SmallLM
from specviz.training.common import data
from specviz.training.diffusion import masking
from specviz.training.diffusion.block_agreement import block_agreement
from specviz.training.diffusion.masked_training import MaskedTraining, Settings
from specviz.training.diffusion.masking import Masked

WINDOW = 384
SHOWN = (3, 16)
"""Dialogues and places of the figures that are shown while training."""


def from_autoregressive(start: SmallLM, window: int = WINDOW) -> MaskedLM:
    """The masked model that begins as ``start``: the same layers and projections, the mean embedding as the mask."""
    model = MaskedLM(replace(start.config, window=window), start.embedding, start.draft_ids)
    known = {name: value.detach().clone().float() for name, value in start.state_dict().items()}
    model.load_state_dict({**known, "blank": start.embedding.float().mean(0, keepdim=True)})
    return model.requires_grad_(True)


def prepare(model: MaskedLM, dialogues: data.Dialogues, markers: data.Markers, settings: Settings) -> MaskedTraining:
    """What trains ``model`` whole on the standard objective."""
    training, held_out = data.split(dialogues)
    return MaskedTraining(
        model, settings, lambda start: _examples(dialogues, training, markers, settings, start, model.config.window),
        lambda: shown(model, dialogues, held_out, markers),
    )  # fmt: skip


def _examples(
    dialogues: data.Dialogues,
    training: Sequence[int],
    markers: data.Markers,
    settings: Settings,
    start: int,
    window: int,
) -> Iterator[list[Masked]]:
    """Packed rows with hidden tokens, in parts; after a resumption other rows rather than hours of skipping."""
    generator = np.random.default_rng([settings.seed, start])
    stream = data.rows(dialogues, training, markers, window - 1, generator)
    while True:
        whole = masking.standard(list(islice(stream, settings.batch)), generator)
        cut = range(0, settings.batch, settings.part)
        yield [Masked(*(part[at : at + settings.part] for part in (whole.ids, whole.blank, whole.weight))) for at in cut]


def shown(model: MaskedLM, dialogues: data.Dialogues, held_out: Sequence[int], markers: data.Markers) -> dict[str, float]:
    """Figures while training: blocks along a few held-out greedy answers."""
    greedy = [number for number in held_out if dialogues.temperature[number] == 0][: SHOWN[0]]
    found = block_agreement(model, dialogues, greedy, markers, SHOWN[1], 1000)
    return {"tau": found.tau, "first": found.by_place[0], "second_alone": found.alone[1], "longest": found.longest}
