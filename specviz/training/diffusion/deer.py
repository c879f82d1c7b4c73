"""Recipe of DEER's drafter: a low-rank change to the masked language model, learned in two stages.

DEER (arXiv 2512.15176). First the answer's continuation from a random cut, then the last R tokens alone, the earliest of
which count most. The paper puts a separator at the cut; here a row predicts the place after it, so that the last token
before the cut speaks for the first place, and the masks themselves say where the text ends.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from specviz.drafters.networks.masked_lm import MaskedLM
from specviz.training.common import data
from specviz.training.diffusion import masking
from specviz.training.diffusion.masked_lm import shown
from specviz.training.diffusion.masked_training import MaskedTraining, Settings
from specviz.training.diffusion.masking import Example, Masked
from specviz.training.feature.gto import LowRank

FIRST = "continuation"
SECOND = "refinement"


@dataclass(frozen=True)
class Stages:
    """``first`` is the first stage's share of the minutes. In the second up to ``reach`` tokens are hidden, 96 in the
    paper, whose blocks are accepted three times as far. ``emphasis`` is its alpha: 1.01 there, so that the first of them
    counts 2.6 times what the last does; here what is rarely reached can wait. A text has few hidden tokens now, so an
    update reads ``texts`` of them and goes ``calm`` times as far: at the first stage's pace the noise of so few undid more
    at the first place (0.405 to 0.385) than was learned.
    """

    first: float = 0.4
    rank: int = 24
    reach: int = 32
    emphasis: float = 1.2
    calm: float = 0.25
    texts: int = 64


def prepare(
    model: MaskedLM, dialogues: data.Dialogues, markers: data.Markers, change: LowRank, stage: str, stages: Stages,
    settings: Settings,
) -> MaskedTraining:  # fmt: skip
    """What trains ``change``, a change to ``model``, in one stage; it goes on from what ``change`` holds."""
    training, held_out = data.split(dialogues)
    return MaskedTraining(
        model, settings,
        lambda start: _examples(dialogues, training, markers, stage, stages, settings, start, model.config.window),
        lambda: shown(model, dialogues, held_out, markers), change,
    )  # fmt: skip


def example(
    dialogues: data.Dialogues, number: int, markers: data.Markers, stage: str, stages: Stages, share: float,
    generator: np.random.Generator,
) -> Example:  # fmt: skip
    """One dialogue as an example of that stage."""
    tokens = np.concatenate((np.asarray(markers.prefix, np.int64), dialogues.of(number)))
    first = len(markers.prefix) + int(dialogues.prompt[number])
    if stage == FIRST:
        return masking.continuation(tokens, first, share, generator)
    return masking.refinement(tokens, first, stages.reach, stages.emphasis, generator)


def _examples(
    dialogues: data.Dialogues, training: Sequence[int], markers: data.Markers, stage: str, stages: Stages,
    settings: Settings, start: int, window: int,
) -> Iterator[list[Masked]]:  # fmt: skip
    """Batches of that stage; each update has its own probability, so that a resumed training sees what it would have."""
    update = start
    while True:
        generator = np.random.default_rng([settings.seed, update, int(stage == SECOND)])
        chosen = generator.choice(np.asarray(training), settings.batch, replace=settings.batch > len(training))
        shares = masking.probabilities(len(chosen), generator)
        made = [
            example(dialogues, int(number), markers, stage, stages, float(share), generator).last(window)
            for number, share in zip(chosen, shares, strict=True)
        ]
        yield masking.in_parts(made, settings.part)
        update += 1
