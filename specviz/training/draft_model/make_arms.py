"""``train arms``: the target writes in four domains, the small draft model learns a change for each, one file comes out."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from specviz.drafters.networks.small_lm import SmallLM
from specviz.drafters.networks.small_lm import load as load_small
from specviz.drafters.networks.weights import write_weights
from specviz.models.drafters.lora_heads import CHANGES, digest
from specviz.models.hub.cache_dir import cache_folder
from specviz.training.common.card import card, print_card
from specviz.training.common.data import Dialogues
from specviz.training.common.domains import DOMAINS
from specviz.training.common.loop import checkpoint_of, train
from specviz.training.common.target_assets import TargetAssets, target_assets
from specviz.training.draft_model import arms
from specviz.training.registry import WEIGHTS, Job

BASE = WEIGHTS / "small_draft.safetensors"


def make(job: Job) -> None:
    """Write ``assets/weights/arms.safetensors`` and print its card line. Dialogues that were written once are kept."""
    assets = target_assets(job.device)
    settings = replace(arms.spent(arms.Settings(), job.minutes), resume=job.resume)
    dialogues = {name: arms.collect(assets, name, _data(name), settings) for name in DOMAINS}
    factors: dict[str, Mapping[str, Tensor]] = {}
    metrics: dict[str, dict[str, float]] = {}
    seconds = 0.0
    for name, own in dialogues.items():
        state = arms.DomainTraining(fresh(assets), own, assets.markers, settings)
        figures = {f"base_{key}": value for key, value in state.measure().items()}
        progress = train(state, checkpoint_of(f"arms_{name}"))
        metrics[name] = figures | {f"changed_{key}": value for key, value in state.measure().items()}
        factors[name] = state.optimizer.averaged()
        seconds += progress.seconds
        print(time.strftime("%H:%M:%S"), name, progress.updates, "updates", metrics[name], flush=True)
    data = (
        f"{settings.dialogues} dialogues a domain that the target wrote to prompts of "
        f"specviz/training/common/domains.py, one in eight kept out; {_digest(dialogues)}"
    )
    spent = f"{seconds / 60:.0f} minutes of training on {assets.target.device.type}"
    more = {"arms": json.dumps(list(factors)), CHANGES: f"{BASE.name} {digest(BASE)}"}
    facts = card("arms", settings, data, spent, metrics, tokenizer_hash=assets.target.tokenizer_hash, **more)
    path = WEIGHTS / f"{job.recipe.name}.safetensors"
    write_weights(path, arms.named(factors), facts)
    print_card(path, facts)


def fresh(assets: TargetAssets) -> SmallLM:
    """The draft model that ships, as it ships, in float32."""
    return load_small(BASE, assets.embedding, torch.float32, assets.target.device)


def _data(name: str) -> Path:
    return cache_folder() / "data" / f"domain_{name}.npz"


def _digest(found: Mapping[str, Dialogues]) -> str:
    whole = hashlib.sha256()
    for one in found.values():
        whole.update(one.tokens.tobytes())
    return f"sha256 of all tokens {whole.hexdigest()[:16]}"
