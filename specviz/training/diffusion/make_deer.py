"""``train deer``: the masked language model in, a low-rank change to it with its card out, and how a control compares."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from specviz.drafters.networks.masked_lm import MaskedLM, load
from specviz.drafters.networks.weights import read_weights, write_weights
from specviz.models.drafters.lora_heads import CHANGES, digest
from specviz.models.hub.cache_dir import cache_folder
from specviz.training.common import data, trainer
from specviz.training.common.target_assets import Material, material
from specviz.training.diffusion import deer, masked_training
from specviz.training.diffusion.deer import FIRST, SECOND, Stages
from specviz.training.diffusion.make_masked_lm import card_line, card_of, measured, settings_for
from specviz.training.diffusion.masked_training import Settings
from specviz.training.feature.gto import LowRank
from specviz.training.feature.recipes import show
from specviz.training.registry import WEIGHTS, Job

START = "masked_lm"


def make(job: Job) -> None:
    """Train both stages and a control, measure all on held-out answers, write ``assets/weights/deer.safetensors``.

    The control spends the second stage's time on more of the first. It comes last, and may be broken off.
    """
    file = data.find(job.data)
    stuff = material(job.device)
    stages, settings = Stages(), replace(settings_for(stuff, job), batch=24, peak=0.005, warm=10)
    model = load_base(stuff)
    work = Work(job, file, stuff, data.read(file), stages, settings, model, LowRank(model, stages.rank, settings.seed))
    print(f"{stages} {settings}", flush=True)
    begun = work.learned(FIRST, "deer_first", stages.first)
    work.told("first_stage", begun)
    spent = work.learned(SECOND, "deer", 1 - stages.first)
    whole = trainer.Progress(begun.updates + spent.updates, begun.seconds + spent.seconds, begun.tokens + spent.tokens)
    work.told("deer", whole)
    work.change.factors = {name: value.clone() for name, value in work.arms["first_stage"].items()}
    work.learned(FIRST, "deer_control", 1 - stages.first)
    work.told("control", whole)


@dataclass
class Work:
    """What the stages share, and the arms and figures there are so far."""

    job: Job
    file: Path
    stuff: Material
    dialogues: data.Dialogues
    stages: Stages
    settings: Settings
    model: MaskedLM
    change: LowRank
    arms: dict[str, dict[str, Tensor]] = field(default_factory=dict)
    found: dict[str, Mapping[str, object]] = field(default_factory=dict)

    def learned(self, stage: str, name: str, share: float) -> trainer.Progress:
        """Train one stage for its share of the time, on top of what the change holds."""
        own = replace(self.settings, minutes=self.settings.minutes * share)
        if stage == SECOND:
            own = replace(own, peak=own.peak * self.stages.calm, batch=self.stages.texts)
        bench = deer.prepare(
            self.model, self.dialogues, self.stuff.markers, self.change, stage, self.stages, own
        )  # fmt: skip
        print(f"{name}: {stage}", flush=True)
        progress = masked_training.train(bench, own, checkpoint(name), show)
        self.change.factors = {key: value.clone() for key, value in bench.optimizer.averaged().items()}
        return progress

    def told(self, arm: str, progress: trainer.Progress) -> None:
        """Measure an arm; once there is something to ship, write it with every figure there is."""
        path = WEIGHTS / f"{self.job.recipe.name}.safetensors"
        self.arms[arm] = {name: value.clone() for name, value in self.change.factors.items()}  # the next stage moves them
        self.found[arm] = judged(path, self.change, self.arms[arm], self.model, self.dialogues, self.stuff)
        if "deer" in self.arms:
            card = finished(self.job, self.file, self.stuff, progress, self.settings, self.stages, self.found)
            write_weights(path, self.arms["deer"], card)
            print(card_line(path, card), flush=True)


def load_base(stuff: Material) -> MaskedLM:
    """The masked language model that ships, as it is read where it drafts."""
    embedding = stuff.embedding.to(stuff.target.device)
    return load(WEIGHTS / f"{START}.safetensors", embedding, torch.float32, embedding.device)


def checkpoint(name: str) -> Path:
    """Where a stage that was stopped goes on from."""
    return cache_folder() / "training" / f"{name}.safetensors"


def judged(
    path: Path,
    change: LowRank,
    factors: Mapping[str, Tensor],
    model: MaskedLM,
    dialogues: data.Dialogues,
    stuff: Material,
) -> dict[str, object]:
    """An arm's figures, measured with what rounding leaves of its factors at rest."""
    aside = checkpoint(f"{path.stem}_at_rest")
    write_weights(aside, factors, {CHANGES: base_of()})
    change.put({name: value.to(model.embedding.device) for name, value in read_weights(aside)[0].items()})
    model.eval()
    found = measured(model, dialogues, stuff)
    print(json.dumps(found), flush=True)
    return found


def finished(
    job: Job, file: Path, stuff: Material, progress: trainer.Progress, settings: Settings, stages: Stages,
    found: Mapping[str, Mapping[str, Any]],
) -> dict[str, str]:  # fmt: skip
    """The model card, with the figures of every arm beside those of the start."""
    start = read_weights(WEIGHTS / f"{START}.safetensors")[1].get("metrics", "{}")
    card = card_of(job, file, stuff, progress, settings)
    card["start"] = card[CHANGES] = base_of()
    card["stages"] = json.dumps(asdict(stages))
    card["metrics"] = json.dumps({"start": json.loads(start), **found})
    return card


def base_of() -> str:
    """The file that is changed."""
    return f"{START}.safetensors {digest(WEIGHTS / f'{START}.safetensors')}"
