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
from specviz.training.common import data
from specviz.training.common.card import card, dialogues_line, print_card
from specviz.training.common.loop import Progress, checkpoint_of, quantised_file, train
from specviz.training.common.target_assets import TargetAssets, target_assets
from specviz.training.diffusion import deer
from specviz.training.diffusion.deer import FIRST, SECOND, Stages
from specviz.training.diffusion.make_masked_lm import measured, settings_for
from specviz.training.diffusion.masked_training import Settings
from specviz.training.feature.gto import LowRank
from specviz.training.registry import WEIGHTS, Job

START = "masked_lm"


def make(job: Job) -> None:
    """Train both stages and a control, measure all on held-out answers, write ``assets/weights/deer.safetensors``.

    The control spends the second stage's time on more of the first. It comes last, and may be broken off.
    """
    file = data.find(job.data)
    assets = target_assets(job.device)
    stages, settings = Stages(), replace(settings_for(assets, job), batch=24, peak=0.005, warm=10)
    model = load_base(assets)
    work = Work(job, file, assets, data.read(file), stages, settings, model, LowRank(model, stages.rank, settings.seed))
    print(f"{stages} {settings}", flush=True)
    begun = work.learned(FIRST, "deer_first", stages.first)
    work.told("first_stage", begun)
    spent = work.learned(SECOND, "deer", 1 - stages.first)
    whole = Progress(begun.updates + spent.updates, begun.seconds + spent.seconds, begun.tokens + spent.tokens)
    work.told("deer", whole)
    work.change.factors = {name: value.clone() for name, value in work.arms["first_stage"].items()}
    work.learned(FIRST, "deer_control", 1 - stages.first)
    work.told("control", whole)


@dataclass
class Work:
    """What the stages share, and the arms and figures there are so far."""

    job: Job
    file: Path
    assets: TargetAssets
    dialogues: data.Dialogues
    stages: Stages
    settings: Settings
    model: MaskedLM
    change: LowRank
    arms: dict[str, dict[str, Tensor]] = field(default_factory=dict)
    found: dict[str, Mapping[str, object]] = field(default_factory=dict)

    def learned(self, stage: str, name: str, share: float) -> Progress:
        """Train one stage for its share of the time, on top of what the change holds."""
        own = replace(self.settings, minutes=self.settings.minutes * share)
        if stage == SECOND:
            own = replace(own, peak=own.peak * self.stages.calm, batch=self.stages.texts)
        state = deer.prepare(self.model, self.dialogues, self.assets.markers, self.change, stage, self.stages, own)
        print(f"{name}: {stage}", flush=True)
        progress = train(state, checkpoint_of(name))
        self.change.factors = {key: value.clone() for key, value in state.optimizer.averaged().items()}
        return progress

    def told(self, arm: str, progress: Progress) -> None:
        """Measure an arm; once there is something to ship, write it with every figure there is."""
        path = WEIGHTS / f"{self.job.recipe.name}.safetensors"
        self.arms[arm] = {name: value.clone() for name, value in self.change.factors.items()}  # the next stage moves them
        self.found[arm] = judged(path, self.change, self.arms[arm], self.model, self.dialogues, self.assets)
        if "deer" in self.arms:
            facts = self.card(progress)
            write_weights(path, self.arms["deer"], facts)
            print_card(path, facts)

    def card(self, progress: Progress) -> dict[str, str]:
        """The model card, with the figures of every arm beside those of the start."""
        start: Any = json.loads(read_weights(WEIGHTS / f"{START}.safetensors")[1].get("metrics", "{}"))
        target = self.assets.target
        return card(
            self.job.recipe.name, self.settings, dialogues_line(self.file), progress.spent(target.device.type, "hidden tokens"),
            {"start": start, **self.found}, start=base_of(), stages=json.dumps(asdict(self.stages)),
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
    found = measured(model, dialogues, assets)
    print(json.dumps(found), flush=True)
    return found


def base_of() -> str:
    """The file that is changed."""
    return f"{START}.safetensors {digest(WEIGHTS / f'{START}.safetensors')}"
