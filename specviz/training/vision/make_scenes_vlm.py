"""``train scenes_vlm``: scenes out of a seed in, a small vision-language model with its card out."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import torch

from specviz.drafters.networks.weights import read_weights
from specviz.models.device import choose_device, cpu_has_bfloat16
from specviz.models.hub.vocabulary import tokenizer_hash
from specviz.models.vision import scenes as shipped
from specviz.training.common.card import card, print_card
from specviz.training.common.loop import Progress, checkpoint_of, provenance_of, train
from specviz.training.common.parallel import sharing
from specviz.training.registry import WEIGHTS, Job
from specviz.training.vision.picture_answers import ask, figures
from specviz.training.vision.scene_batches import COMBINATIONS, DRAWINGS, FRESH, train_tokenizer
from specviz.training.vision.scenes_model import Learner, Shape
from specviz.training.vision.scenes_training import SEEING, ScenesTraining, Settings, patches_right

MEASURED = 80
QUESTIONS = 6
SHOWN = 10


def make(job: Job) -> None:
    """Train, measure on held-out scenes, write ``assets/weights/scenes_vlm.safetensors`` and print its card line."""
    device = choose_device(job.device)
    settings = settings_for(device, job)
    path = WEIGHTS / f"{job.recipe.name}.safetensors"
    old = path if provenance_of(job.recipe.name, path, settings.resume) else None
    if old is not None:  # other scenes than the first time
        settings = replace(settings, seed=settings.seed + 1)
    state = prepare(device, settings, old)
    count = sum(value.numel() for value in state.learner.model.parameters())
    print(f"{count / 1e6:.2f} M weights, {len(state.tokenizer)} tokens; {settings}", flush=True)
    progress = train(state, checkpoint_of(job.recipe.name), provenance="" if old is None else spent_on(old))
    finish(state, progress, path)


def settings_for(device: torch.device, job: Job) -> Settings:
    """A GPU takes wide batches; a processor a few scenes a core at a time."""
    common = {"minutes": job.minutes, "resume": job.resume}
    if device.type == "cuda":
        return Settings(batch=64, seeing_batch=128, part=64, **common)
    workers = sharing()  # every core takes scenes of its own
    return Settings(workers=workers, part=-(-Settings.batch // workers), **common)


def prepare(device: torch.device, settings: Settings, old: Path | None = None) -> ScenesTraining:
    """A fresh model and tokenizer, or those at rest in ``old``; bfloat16 products where the machine is faster in them.

    The dense teacher's heads are not kept: behind an old model they begin at nothing, and at first learn and do not teach.
    """
    model, tokenizer = (None, train_tokenizer()) if old is None else shipped.load(old)
    learner = Learner(Shape(), len(tokenizer), settings.seed)
    if model is not None:
        learner.model = model.train().requires_grad_(True)
        with torch.no_grad():
            for value in learner.patch_heads.parameters():
                value.zero_()
    learner = learner.to(device)
    learner.learn_names(tokenizer)
    rough = torch.bfloat16 if device.type == "cuda" or cpu_has_bfloat16() else None

    def measure(stage: str) -> dict[str, float]:
        found = patches_right(learner, tokenizer, range(settings.measured))
        if stage == SEEING:
            return found
        with torch.autocast(device.type, torch.bfloat16, enabled=rough is not None):
            return found | figures(FRESH, ask(learner, tokenizer, FRESH, range(settings.measured), QUESTIONS))

    return ScenesTraining(learner, tokenizer, rough, measure, settings)


def spent_on(path: Path) -> str:
    """What the card of these weights says was spent on them."""
    _, card = read_weights(path)
    return f"{card['spent']} on {card['data'].split(' ', 1)[0]} scenes"


def finish(state: ScenesTraining, progress: Progress, path: Path) -> None:
    """Write the weights, read them back as they ship, measure those, and print ten examples and the card's line."""
    learner, tokenizer = state.learner, state.tokenizer
    device = learner.model.device
    data = f"{progress.tokens} scenes out of seeds; emoji art of Noto (Apache-2.0) and Twemoji (CC-BY 4.0)"
    facts = card(
        "scenes_vlm", state.settings, data, progress.spent(device.type, "scenes"), {}, "Apache-2.0",
        tokenizer_hash=tokenizer_hash(tokenizer),
    )  # fmt: skip
    shipped.save(learner.model, tokenizer, path, facts)
    learner.model = shipped.load(path)[0].to(device)
    found = {}
    for kind in (FRESH, COMBINATIONS, DRAWINGS):
        said = ask(learner, tokenizer, kind, range(1000, 1000 + MEASURED), QUESTIONS)
        found[kind] = {name: round(value, 3) for name, value in figures(kind, said).items()}
        print(kind, found[kind], flush=True)
        for one in said[:2] + [one for one in said if one.asked.kind != "describe"][:SHOWN] if kind == FRESH else []:
            print(f"  {one.asked.question} | {one.said} | {'right' if one.right else one.asked.answer}", flush=True)
    facts["metrics"] = json.dumps(found)
    shipped.save(learner.model, tokenizer, path, facts)
    print_card(path, facts)
