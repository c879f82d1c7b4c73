"""``train small_draft``: target and dialogues in, weights with their card out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from specviz.models.device import choose_device
from specviz.training.common import data, parallel
from specviz.training.common.agreement import Agreement
from specviz.training.common.card import card, dialogues_line, print_card
from specviz.training.common.loop import Progress, checkpoint_of, train
from specviz.training.common.target_assets import target_assets
from specviz.training.draft_model import small_draft
from specviz.training.registry import WEIGHTS, Job

DEPTHS = (4, 6)
MEASURED_DIALOGUES = 60
MEASURED_STEPS = 4000
OVERLAP_DIALOGUES = 20


def make(job: Job) -> None:
    """Train, measure on held-out answers, write ``assets/weights/small_draft.safetensors`` and print its card line."""
    file, name = data.find(job.data), job.recipe.name
    assets = target_assets(job.device)
    device = choose_device(job.device)
    torch.set_num_threads(1 if device.type == "cpu" else torch.get_num_threads())  # cores are shared out by rows
    settings = _settings(device, job)
    state = small_draft.prepare(assets.embedding.to(device), assets.markers, data.read(file), {}, settings)
    print(f"{len(state.training)} dialogues to learn from, {len(state.held_out)} kept out; {settings}", flush=True)
    progress = train(state, checkpoint_of(name))
    found = measured(state)
    target = assets.target.model
    accepted = small_draft.measure_overlap(state, lambda ids: target(ids[None]).logits[0], OVERLAP_DIALOGUES)
    print(f"temperature 1: {accepted:.3f} of single drafts accepted", flush=True)
    path = WEIGHTS / f"{name}.safetensors"
    facts = card(
        name, settings, dialogues_line(file), progress.spent(device.type), figures(progress, found, accepted),
        tokenizer_hash=assets.target.tokenizer_hash,
    )  # fmt: skip
    small_draft.export(state, path, facts)
    print_card(path, facts)


def _settings(device: torch.device, job: Job) -> small_draft.Settings:
    """A GPU takes wide batches and, with them, a higher rate; a processor gets one row a core at a time."""
    common = {"minutes": job.minutes, "resume": job.resume}
    if device.type == "cuda":
        return small_draft.Settings(batch=64, part=32, peak=0.006, every=200, workers=1, **common)
    return small_draft.Settings(workers=parallel.cores(), **common)


def measured(state: small_draft.SmallDraftTraining) -> dict[int, Agreement]:
    """Chain drafting on the held-out greedy answers, at each depth."""
    found = {depth: small_draft.measure(state, MEASURED_DIALOGUES, depth, MEASURED_STEPS) for depth in DEPTHS}
    for depth, agreement in found.items():
        rounded = {name: tuple(round(one, 3) for one in getattr(agreement, name)) for name in ("top1", "top5")}
        print(f"depth {depth}: tau {agreement.tau:.3f} over {agreement.steps} steps, {rounded}", flush=True)
    return found


def figures(progress: Progress, found: Mapping[int, Agreement], accepted: float) -> dict[str, Any]:
    """The card's figures: of the last milestone, of chains at each depth, and the acceptance at temperature 1."""
    last = progress.history[-1] if progress.history else {}
    deepest = found[max(found)]
    return {
        **{key: last[key] for key in ("held_out", "top1", "top5") if key in last},
        **{f"tau_depth_{depth}": round(agreement.tau, 3) for depth, agreement in found.items()},
        "top1_by_depth": [round(one, 3) for one in deepest.top1],
        "top5_by_depth": [round(one, 3) for one in deepest.top5],
        "accepted_at_temperature_1": round(accepted, 3),
        "repetition": round(deepest.repetition, 3),
    }
