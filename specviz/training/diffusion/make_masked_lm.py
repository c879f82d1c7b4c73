"""``train masked_lm``: the small draft model and the dialogues in, a masked language model with its card out."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import torch

from specviz.drafters.networks.masked_lm import MaskedLM, load, save
from specviz.drafters.networks.small_lm import load as load_small
from specviz.models.device import choose_dtype
from specviz.models.drafters.drafts import FILE as SMALL
from specviz.training.common import data, trainer
from specviz.training.common.commit import commit
from specviz.training.common.target_assets import Material, material
from specviz.training.common.trainer import cores
from specviz.training.diffusion import masked_lm, masked_training
from specviz.training.diffusion.block_agreement import Agreement, block_agreement, first_overlap
from specviz.training.diffusion.masked_training import Settings
from specviz.training.feature.recipes import checkpoint_of, show
from specviz.training.registry import WEIGHTS, Job

MEASURED = (240, 4000)
"""Held-out greedy dialogues, and steps at most."""
PLACES = 32
SAMPLED = (12, 9)
"""Held-out dialogues sampled at temperature 1, and the stride of the blocks in them."""


def make(job: Job) -> None:
    """Train, measure what is shipped on held-out answers, write ``assets/weights/masked_lm.safetensors``."""
    file = data.find(job.data)
    stuff = material(job.device)
    settings = settings_for(stuff, job)
    dialogues = data.read(file)
    embedding = stuff.embedding.to(stuff.target.device)
    start = load_small(SMALL, embedding, torch.float32, embedding.device)
    model = masked_lm.from_autoregressive(start)
    bench = masked_lm.prepare(model, dialogues, stuff.markers, settings)
    print(f"{settings}", flush=True)
    progress = masked_training.train(bench, settings, checkpoint_of(job), show)
    card = card_of(job, file, stuff, progress, settings)
    path = WEIGHTS / f"{job.recipe.name}.safetensors"
    save(model, path, card)
    shipped = load(path, embedding, torch.float32, embedding.device)
    card["metrics"] = json.dumps(measured(shipped, dialogues, stuff))
    save(model, path, card)
    print(card_line(path, card), flush=True)


def settings_for(stuff: Material, job: Job) -> Settings:
    """A GPU takes wider batches; a processor one part a core at a time, in bfloat16 where it can."""
    device = stuff.target.device
    half = choose_dtype("auto", device) == torch.bfloat16
    common = {"minutes": job.minutes, "resume": job.resume, "half": half}
    if device.type == "cuda":
        return Settings(batch=64, part=64, **common)
    torch.set_num_threads(1)
    return Settings(workers=cores(), **common)


def measured(model: MaskedLM, dialogues: data.Dialogues, stuff: Material) -> dict[str, object]:
    """Blocks along held-out greedy answers, and the first place's probability at temperature 1."""
    _, held_out = data.split(dialogues)
    greedy = [number for number in held_out if dialogues.temperature[number] == 0][: MEASURED[0]]
    sampled = [number for number in held_out if dialogues.temperature[number] == 1][: SAMPLED[0]]
    found: Agreement = block_agreement(model, dialogues, greedy, stuff.markers, PLACES, MEASURED[1])
    target = stuff.target.model

    def logits(ids: torch.Tensor) -> torch.Tensor:
        return target(ids[None]).logits[0]

    overlap = first_overlap(model, logits, dialogues, sampled, stuff.markers, PLACES, SAMPLED[1])
    return {**found.figures(), "first_at_temperature_1": round(overlap, 3)}


def card_of(job: Job, file: Path, stuff: Material, progress: trainer.Progress, settings: Settings) -> dict[str, str]:
    """The model card that travels inside the file; its metrics come when the file can be measured."""
    return {
        "recipe": f"python -m specviz train {job.recipe.name} ({json.dumps(asdict(settings))})",
        "start": f"{SMALL.name} sha256 {_digest(SMALL)}",
        "data": f"{file.name} sha256 {_digest(file)}, one in twenty kept out",
        "licence": "Apache-2.0, as the target's",
        "spent": f"{progress.seconds / 60:.0f} minutes on {stuff.target.device.type}, {progress.updates} updates, "
        f"{progress.tokens} hidden tokens",
        "commit": commit(),
        "tokenizer_hash": stuff.target.tokenizer_hash,
    }


def card_line(path: Path, card: Mapping[str, str]) -> str:
    """The line for ``assets/weights/README.md``."""
    parts = "; ".join(f"{name}: {value}" for name, value in card.items())
    return f"- `{path.name}` ({path.stat().st_size / 1e6:.1f} MB): {parts}"


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()[:16]
