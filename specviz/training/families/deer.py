"""Recipe of DEER's drafter: a low-rank change to the masked language model, learned in two stages.

DEER (arXiv 2512.15176). First the answer's continuation from a random cut, then the last R tokens alone, the earliest of
which count most. The paper puts a separator at the cut; here a row predicts the place after it, so that the last token
before the cut speaks for the first place, and the masks themselves say where the text ends.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from specviz.drafters.networks.masked_lm import MaskedLM, load
from specviz.drafters.networks.weights import read_weights, write_weights
from specviz.models.drafters.lora_heads import CHANGES, digest
from specviz.training.common import data
from specviz.training.common.card import card, dialogues_line, print_card
from specviz.training.common.loop import Progress, checkpoint_of, quantised_file, train
from specviz.training.common.target_assets import TargetAssets, target_assets
from specviz.training.families import masked
from specviz.training.families.masked import Example, Masked, MaskedTraining, Settings, measured, milestone_figures, settings_for
from specviz.training.feature.gto import LowRank
from specviz.training.registry import WEIGHTS, Job

FIRST = "continuation"
SECOND = "refinement"
START = "masked_lm"


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
        lambda: milestone_figures(model, dialogues, held_out, markers), change,
    )  # fmt: skip


def example(
    dialogues: data.Dialogues, number: int, markers: data.Markers, stage: str, stages: Stages, share: float,
    generator: np.random.Generator,
) -> Example:  # fmt: skip
    """One dialogue as an example of that stage."""
    tokens = np.concatenate((np.asarray(markers.prefix, np.int64), dialogues.of(number)))
    first = len(markers.prefix) + int(dialogues.prompt[number])
    if stage == FIRST:
        return masked.continuation(tokens, first, share, generator)
    return masked.refinement(tokens, first, stages.reach, stages.emphasis, generator)


def _examples(
    dialogues: data.Dialogues, training: Sequence[int], markers: data.Markers, stage: str, stages: Stages,
    settings: Settings, start: int, window: int,
) -> Iterator[list[Masked]]:  # fmt: skip
    """Batches of that stage, every dialogue before any twice; an update has numbers of its own, so that a resumed training sees
    what it would have."""
    update = start
    while True:
        seed = [settings.seed, int(stage == SECOND)]
        generator = np.random.default_rng([*seed, update])
        chosen = data.in_turn(training, update * settings.batch, settings.batch, seed)
        shares = masked.probabilities(len(chosen), generator)
        examples = [
            example(dialogues, number, markers, stage, stages, float(share), generator).last(window)
            for number, share in zip(chosen, shares, strict=True)
        ]
        yield masked.in_parts(examples, settings.part)
        update += 1


def make(job: Job) -> None:
    """Train both stages, measure both on held-out answers, write ``assets/weights/deer.safetensors``."""
    files = data.find(job.data)
    assets = target_assets(job.device)
    stages, settings = Stages(), replace(settings_for(assets, job), batch=24, peak=0.005, warm=10, patience=0)
    model = load_base(assets)
    work = Work(job, files, assets, data.read_all(files), stages, settings, model, LowRank(model, stages.rank, settings.seed))
    print(f"{stages} {settings}", flush=True)
    first_stage = work.learned(FIRST, "deer_first", stages.first)
    work.record("first_stage", first_stage)
    second_stage = work.learned(SECOND, "deer", 1 - stages.first)
    both_stages = Progress(
        first_stage.updates + second_stage.updates,
        first_stage.seconds + second_stage.seconds,
        first_stage.tokens + second_stage.tokens,
    )
    work.record("deer", both_stages)


@dataclass
class Work:
    """What the stages share, and the arms and figures there are so far."""

    job: Job
    files: list[Path]
    assets: TargetAssets
    dialogues: data.Dialogues
    stages: Stages
    settings: Settings
    model: MaskedLM
    change: LowRank
    arms: dict[str, dict[str, Tensor]] = field(default_factory=dict)
    figures: dict[str, Mapping[str, object]] = field(default_factory=dict)

    def learned(self, stage: str, name: str, share: float) -> Progress:
        """Train one stage for its share of the time, on top of what the change holds."""
        own = replace(self.settings, minutes=self.settings.minutes * share)
        if stage == SECOND:
            own = replace(own, peak=own.peak * self.stages.calm, batch=self.stages.texts)
        state = prepare(self.model, self.dialogues, self.assets.markers, self.change, stage, self.stages, own)
        print(f"{name}: {stage}", flush=True)
        progress = train(state, checkpoint_of(name))
        self.change.factors = {key: value.clone() for key, value in state.optimizer.averaged().items()}
        return progress

    def record(self, arm: str, progress: Progress) -> None:
        """Measure an arm; once there is something to ship, write it with every figure there is."""
        path = WEIGHTS / f"{self.job.recipe.name}.safetensors"
        self.arms[arm] = {name: value.clone() for name, value in self.change.factors.items()}  # the next stage moves them
        self.figures[arm] = judged(path, self.change, self.arms[arm], self.model, self.dialogues, self.assets)
        if "deer" in self.arms:
            facts = self.card(progress)
            write_weights(path, self.arms["deer"], facts)
            print_card(path, facts)

    def card(self, progress: Progress) -> dict[str, str]:
        """The model card, with the figures of every arm beside those of the start."""
        start: Any = json.loads(read_weights(WEIGHTS / f"{START}.safetensors")[1].get("metrics", "{}"))
        target = self.assets.target
        return card(
            self.job.recipe.name, self.settings, dialogues_line(self.files), progress.spent(target.device.type, "hidden tokens"),
            {"start": start, **self.figures}, start=base_of(), stages=json.dumps(asdict(self.stages)),
            **{CHANGES: base_of(), "tokenizer_hash": target.tokenizer_hash},
        )  # fmt: skip


def load_base(assets: TargetAssets) -> MaskedLM:
    """The masked language model that ships, as it is read where it drafts."""
    embedding = assets.embedding.to(assets.target.device)
    return load(WEIGHTS / f"{START}.safetensors", embedding, torch.float32, embedding.device)


def judged(
    path: Path,
    change: LowRank,
    factors: Mapping[str, Tensor],
    model: MaskedLM,
    dialogues: data.Dialogues,
    assets: TargetAssets,
) -> dict[str, object]:
    """An arm's figures, measured with what rounding leaves of its factors at rest."""
    aside = quantised_file(path.stem)
    write_weights(aside, factors, {CHANGES: base_of()})
    change.put({name: value.to(model.embedding.device) for name, value in read_weights(aside)[0].items()})
    model.eval()
    figures = measured(model, dialogues, assets)
    print(json.dumps(figures), flush=True)
    return figures


def base_of() -> str:
    """The file that is changed."""
    return f"{START}.safetensors {digest(WEIGHTS / f'{START}.safetensors')}"
