"""``train gto``: the trained EAGLE-3 drafter in, a low-rank change to it with its card out, and how a control compares."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import torch
from torch import Tensor

from specviz.drafters.networks.weights import read_weights, write_weights
from specviz.models.drafters.heads import load_heads
from specviz.models.drafters.lora_heads import CHANGES, control_file, digest, twin
from specviz.targets.text import TextTarget
from specviz.training.common import data, trainer
from specviz.training.common.commit import commit
from specviz.training.common.features import store_for
from specviz.training.common.target_assets import Material, material
from specviz.training.common.trainer import cores
from specviz.training.feature import gto_ablation as gto_arms
from specviz.training.feature.acceptance_eval import greedy_only
from specviz.training.feature.feature_training import places_in
from specviz.training.feature.gto import Arena
from specviz.training.feature.gto_ablation import Bench, Settings
from specviz.training.feature.recipes import at_rest_of, checkpoint_of, read_all, show
from specviz.training.registry import WEIGHTS, Job

MEASURED = 40
START = "eagle3"


def make(job: Job) -> None:
    """Train, run the control, measure all three on held-out answers, write ``assets/weights/gto.safetensors``."""
    file = data.find(job.data)
    stuff = material(job.device)
    device = stuff.target.device
    torch.set_num_threads(1 if device.type == "cpu" else torch.get_num_threads())  # cores are shared out by dialogues
    settings = settings_for(device, job)
    bench, held_out = prepare(stuff, data.read(file), settings)
    print(f"{len(bench.training)} dialogues to learn from, {len(held_out)} to measure on; {settings}", flush=True)
    read_all(bench.store, held_out, settings.workers)
    progress, rates = gto_arms.reward_arm(bench, settings, checkpoint_of(job), show)
    path, learned = WEIGHTS / f"{job.recipe.name}.safetensors", bench.optimizer.averaged()
    arms = {
        "start": gto_arms.unlearned(bench.change),
        "control": at_rest(control_file(), control_of(bench, settings, rates)),
        "gto": at_rest(at_rest_of(job.recipe.name), learned),
    }
    found = gto_arms.measured(bench, arms, held_out, settings.groups.size, lambda line: print(line, flush=True))
    card = card_of(job.recipe.name, file, device, progress, found, settings)
    write_weights(path, learned, {**card, "tokenizer_hash": stuff.target.tokenizer_hash})
    print(card_line(path, card), flush=True)


def settings_for(device: torch.device, job: Job) -> Settings:
    """A GPU takes more dialogues an update; a processor one a core at a time."""
    common = {"minutes": job.minutes, "resume": job.resume}
    return Settings(batch=16, workers=1, **common) if device.type == "cuda" else Settings(workers=cores(), **common)


def prepare(stuff: Material, dialogues: data.Dialogues, settings: Settings) -> tuple[Bench, list[int]]:
    """Both arms' bench, and the held-out dialogues with greedy answers that everything is measured on."""
    loaded = stuff.target
    target = TextTarget(loaded.model, loaded.name, sorted(loaded.eos_ids), "eager")
    shipped = load_heads(START, None, loaded, target)
    net, before = twin(shipped).float(), twin(shipped).float()
    training, held_out = data.split(dialogues)
    store = store_for(loaded.model, loaded.name, dialogues, stuff.markers)
    ids = torch.arange(target.vocab_size, device=target.device) if net.draft_ids is None else net.draft_ids
    arena = Arena(net, before, target, places_in(ids, target.vocab_size))
    return Bench.of(arena, store, training, settings), greedy_only(store, held_out)[:MEASURED]


def control_of(bench: Bench, settings: Settings, rates: list[float]) -> dict[str, Tensor]:
    """The factors that as many updates by cross-entropy alone lead to, from the same start."""
    fresh = bench.again(settings)
    gto_arms.control_arm(fresh, settings, rates, show)
    return fresh.optimizer.averaged()


def at_rest(path: Path, factors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Write factors, and read what the rounding left of them: that is what is measured."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_weights(path, factors, {CHANGES: base_of()})
    device = next(iter(factors.values())).device
    return {name: value.to(device) for name, value in read_weights(path)[0].items()}


def card_of(
    name: str, file: Path, device: torch.device, progress: trainer.Progress, found: Mapping[str, Mapping[str, float]],
    settings: Settings,
) -> dict[str, str]:  # fmt: skip
    """The model card that travels inside the file."""
    rounded = {arm: {key: round(value, 4) for key, value in figures.items()} for arm, figures in found.items()}
    return {
        CHANGES: base_of(),
        "recipe": f"python -m specviz train {name} ({json.dumps(asdict(settings))})",
        "data": f"{file.name} sha256 {digest(file)}, one in twenty kept out",
        "licence": "Apache-2.0, as the target's",
        "spent": f"{progress.seconds / 60:.0f} minutes on {device.type}, {progress.updates} updates, {progress.tokens} prefixes",
        "metrics": json.dumps(rounded),
        "commit": commit(),
    }


def base_of() -> str:
    """The file that is changed."""
    return f"{START}.safetensors {digest(WEIGHTS / f'{START}.safetensors')}"


def card_line(path: Path, card: Mapping[str, str]) -> str:
    """The line for ``assets/weights/README.md``."""
    parts = "; ".join(f"{name}: {value}" for name, value in card.items())
    return f"- `{path.name}` ({path.stat().st_size / 1e6:.1f} MB): {parts}"
