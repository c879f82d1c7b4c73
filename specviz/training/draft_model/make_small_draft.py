"""``train small_draft``: target and dialogues in, weights with their card out."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import torch

from specviz.models.device import choose_device
from specviz.models.hub.cache_dir import cache_folder
from specviz.training.common import data, trainer
from specviz.training.common.agreement import Agreement
from specviz.training.common.commit import commit
from specviz.training.common.target_assets import material
from specviz.training.draft_model import small_draft
from specviz.training.registry import WEIGHTS, Job

DEPTHS = (4, 6)
MEASURED_DIALOGUES = 60
MEASURED_STEPS = 4000
OVERLAP_DIALOGUES = 20


def make(job: Job) -> None:
    """Train, measure on held-out answers, write ``assets/weights/small_draft.safetensors`` and print its card line."""
    file = data.find(job.data)
    stuff = material(job.device)
    device = choose_device(job.device)
    torch.set_num_threads(1 if device.type == "cpu" else torch.get_num_threads())  # cores are shared out by rows
    settings = _settings(device, job)
    bench = small_draft.prepare(stuff.embedding.to(device), stuff.markers, data.read(file), {}, settings.seed)
    checkpoint = cache_folder() / "training" / f"{job.recipe.name}.safetensors"
    print(f"{len(bench.training)} dialogues to learn from, {len(bench.held_out)} kept out; {settings}", flush=True)
    progress = small_draft.train(bench, settings, checkpoint, show)
    found = measured(bench)
    target = stuff.target.model
    accepted = small_draft.measure_overlap(bench, lambda ids: target(ids[None]).logits[0], OVERLAP_DIALOGUES)
    print(f"temperature 1: {accepted:.3f} of single drafts accepted", flush=True)
    card = card_of(job.recipe.name, file, device, progress, found, settings, accepted)
    path = WEIGHTS / f"{job.recipe.name}.safetensors"
    small_draft.export(bench, path, {**card, "tokenizer_hash": stuff.target.tokenizer_hash})
    print(card_line(path, card), flush=True)


def _settings(device: torch.device, job: Job) -> small_draft.Settings:
    """A GPU takes wide batches and, with them, a higher rate; a processor gets one row a core at a time."""
    common = {"minutes": job.minutes, "resume": job.resume}
    if device.type == "cuda":
        return small_draft.Settings(batch=64, part=32, peak=0.006, every=200, workers=1, **common)
    return small_draft.Settings(workers=trainer.cores(), **common)


def show(entry: Mapping[str, float]) -> None:
    """One line of the log."""
    print(time.strftime("%H:%M:%S"), "  ".join(f"{name} {value:.4g}" for name, value in entry.items()), flush=True)


def measured(bench: small_draft.Bench) -> dict[int, Agreement]:
    """Chain drafting on the held-out greedy answers, at each depth."""
    found = {depth: small_draft.measure(bench, MEASURED_DIALOGUES, depth, MEASURED_STEPS) for depth in DEPTHS}
    for depth, agreement in found.items():
        rounded = {name: tuple(round(one, 3) for one in getattr(agreement, name)) for name in ("top1", "top5")}
        print(f"depth {depth}: tau {agreement.tau:.3f} over {agreement.steps} steps, {rounded}", flush=True)
    return found


def card_of(
    name: str, file: Path, device: torch.device, progress: trainer.Progress, found: Mapping[int, Agreement],
    settings: small_draft.Settings, accepted: float,
) -> dict[str, str]:  # fmt: skip
    """The model card that travels inside the file."""
    last = progress.history[-1] if progress.history else {}
    deepest = found[max(found)]
    metrics = {
        **{key: round(last[key], 4) for key in ("held_out", "top1", "top5") if key in last},
        **{f"tau_depth_{depth}": round(agreement.tau, 3) for depth, agreement in found.items()},
        "top1_by_depth": [round(one, 3) for one in deepest.top1],
        "top5_by_depth": [round(one, 3) for one in deepest.top5],
        "accepted_at_temperature_1": round(accepted, 3),
        "repetition": round(deepest.repetition, 3),
    }
    return {
        "recipe": f"python -m specviz train {name} ({json.dumps(asdict(settings))})",
        "data": f"{file.name} sha256 {hashlib.sha256(file.read_bytes()).hexdigest()[:16]}, one in twenty kept out",
        "licence": "Apache-2.0, as the target's",
        "spent": progress.spent(device.type),
        "metrics": json.dumps(metrics),
        "commit": commit(),
    }


def card_line(path: Path, card: Mapping[str, str]) -> str:
    """The line for ``assets/weights/README.md``."""
    parts = "; ".join(f"{name}: {value}" for name, value in card.items())
    return f"- `{path.name}` ({path.stat().st_size / 1e6:.1f} MB): {parts}"
