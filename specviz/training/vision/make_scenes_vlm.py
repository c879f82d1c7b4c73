"""``train scenes_vlm``: scenes out of a seed in, a small vision-language model with its card out."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path

import torch

from specviz.drafters.networks.weights import read_weights
from specviz.models.device import choose_device, cpu_has_bfloat16
from specviz.models.hub.cache_dir import cache_folder
from specviz.models.hub.vocabulary import tokenizer_hash
from specviz.models.vision import scenes as shipped
from specviz.training.common import trainer
from specviz.training.common.commit import commit
from specviz.training.common.trainer import sharing
from specviz.training.registry import WEIGHTS, Job
from specviz.training.vision.picture_answers import ask, figures
from specviz.training.vision.scene_batches import COMBINATIONS, DRAWINGS, FRESH, train_tokenizer
from specviz.training.vision.scenes_model import Learner, Shape
from specviz.training.vision.scenes_training import SEEING, Bench, Settings, patches_right, stamp, train

MEASURED = 80
QUESTIONS = 6
SHOWN = 10


def make(job: Job) -> None:
    """Train, measure on held-out scenes, write ``assets/weights/scenes_vlm.safetensors`` and print its card line."""
    device = choose_device(job.device)
    settings = settings_for(device, job)
    path = WEIGHTS / f"{job.recipe.name}.safetensors"
    checkpoint = cache_folder() / "training" / f"{job.recipe.name}.safetensors"
    old = path if settings.resume and path.is_file() and goes_on(checkpoint) else None
    if old is not None:  # other scenes than the first time
        settings = replace(settings, seed=settings.seed + 1)
    bench = prepare(device, settings, old)
    count = sum(value.numel() for value in bench.learner.model.parameters())
    print(f"{count / 1e6:.2f} M weights, {len(bench.tokenizer)} tokens; {settings}", flush=True)
    progress = train(bench, settings, checkpoint, show, "" if old is None else spent_on(old))
    finish(bench, settings, progress, path)


def settings_for(device: torch.device, job: Job) -> Settings:
    """A GPU takes wide batches; a processor a few scenes a core at a time."""
    common = {"minutes": job.minutes, "resume": job.resume}
    if device.type == "cuda":
        return Settings(batch=64, seeing_batch=128, part=64, **common)
    workers = sharing()  # every core takes scenes of its own
    return Settings(workers=workers, part=-(-Settings.batch // workers), **common)


def prepare(device: torch.device, settings: Settings, old: Path | None = None) -> Bench:
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

    return Bench(learner, tokenizer, rough, measure, slower=settings.slower)


def goes_on(checkpoint: Path) -> bool:
    """Whether the training began with the weights that ship, or will: it did so if a checkpoint of it says so."""
    return not checkpoint.is_file() or bool(trainer.read_checkpoint(checkpoint)[1].before)


def spent_on(path: Path) -> str:
    """What the card of these weights says was spent on them."""
    _, card = read_weights(path)
    return f"{card['spent']} on {card['data'].split(' ', 1)[0]} scenes"


def show(entry: Mapping[str, float]) -> None:
    """One line of the log."""
    print(stamp(), "  ".join(f"{name} {value:.4g}" for name, value in entry.items()), flush=True)


def finish(bench: Bench, settings: Settings, progress: trainer.Progress, path: Path) -> None:
    """Write the weights, read them back as they ship, measure those, and print ten examples and the card's line."""
    now = f"{progress.seconds / 60:.0f} minutes on {bench.learner.model.device.type}"
    card = {
        "recipe": f"python -m specviz train scenes_vlm ({json.dumps(asdict(settings))})",
        "data": f"{progress.tokens} scenes out of seeds; emoji art of Noto (Apache-2.0) and Twemoji (CC-BY 4.0)",
        "licence": "Apache-2.0",
        "spent": f"{progress.before}, then {now}" if progress.before else now,
        "commit": commit(),
        "tokenizer_hash": tokenizer_hash(bench.tokenizer),
    }
    shipped.save(bench.learner.model, bench.tokenizer, path, card)
    device = bench.learner.model.device
    bench.learner.model = shipped.load(path)[0].to(device)
    found = {}
    for kind in (FRESH, COMBINATIONS, DRAWINGS):
        said = ask(bench.learner, bench.tokenizer, kind, range(1000, 1000 + MEASURED), QUESTIONS)
        found[kind] = {name: round(value, 3) for name, value in figures(kind, said).items()}
        print(kind, found[kind], flush=True)
        for one in said[:2] + [one for one in said if one.asked.kind != "describe"][:SHOWN] if kind == FRESH else []:
            print(f"  {one.asked.question} | {one.said} | {'right' if one.right else one.asked.answer}", flush=True)
    card["metrics"] = json.dumps(found)
    shipped.save(bench.learner.model, bench.tokenizer, path, card)
    print(f"- `{path.name}` ({path.stat().st_size / 1e6:.1f} MB): " + "; ".join(f"{k}: {v}" for k, v in card.items()))
