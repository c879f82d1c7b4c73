"""``train arms``: the target writes in four domains, the small draft model learns a change for each, one file comes out."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import torch
from torch import Tensor

from specviz.drafters.networks.small_lm import SmallLM
from specviz.drafters.networks.small_lm import load as load_small
from specviz.drafters.networks.weights import write_weights
from specviz.models.drafters.lora_heads import CHANGES, digest
from specviz.models.hub.cache_dir import cache_folder
from specviz.training.common.commit import commit
from specviz.training.common.domains import DOMAINS
from specviz.training.common.target_assets import Material, material
from specviz.training.draft_model import arms
from specviz.training.registry import WEIGHTS, Job

BASE = WEIGHTS / "small_draft.safetensors"


def make(job: Job) -> None:
    """Write ``assets/weights/arms.safetensors`` and print its card line. Dialogues that were written once are kept."""
    stuff = material(job.device)
    settings = arms.spent(arms.Settings(), job.minutes)
    found = {name: arms.collect(stuff, name, _data(name), settings) for name in DOMAINS}
    factors: dict[str, Mapping[str, Tensor]] = {}
    metrics: dict[str, dict[str, float]] = {}
    spent = 0.0
    for name, dialogues in found.items():
        domain = arms.prepare(fresh(stuff), name, dialogues, settings)
        model = domain.model
        before = arms.measured(model, domain, stuff.markers)
        progress = arms.train(domain, stuff.markers, settings, _checkpoint(name), job.resume)
        after = arms.measured(model, domain, stuff.markers)
        factors[name] = domain.optimizer.averaged()
        metrics[name] = {f"{word}_{key}": round(value, 4) for word, one in (("base", before), ("changed", after))
                         for key, value in one.items()}  # fmt: skip
        spent += progress.seconds
        print(time.strftime("%H:%M:%S"), name, progress.updates, "updates", metrics[name], flush=True)
    card = {
        "recipe": f"python -m specviz train arms ({json.dumps(asdict(settings))})",
        "data": f"{settings.dialogues} dialogues a domain that the target wrote to prompts of "
        f"specviz/training/common/domains.py, one in eight kept out; {_digest(found)}",
        "licence": "Apache-2.0, as the target's",
        "spent": f"{spent / 60:.0f} minutes of training on {stuff.target.device.type}",
        "metrics": json.dumps(metrics),
        "commit": commit(),
        "tokenizer_hash": stuff.target.tokenizer_hash,
        "arms": json.dumps(list(factors)),
        CHANGES: f"{BASE.name} {digest(BASE)}",
    }
    path = WEIGHTS / f"{job.recipe.name}.safetensors"
    write_weights(path, arms.named(factors), card)
    line = "; ".join(f"{name}: {value}" for name, value in card.items())
    print(f"- `{path.name}` ({path.stat().st_size / 1e6:.1f} MB): {line}", flush=True)


def fresh(stuff: Material) -> SmallLM:
    """The draft model that ships, as it ships, in float32."""
    return load_small(BASE, stuff.embedding, torch.float32, stuff.target.device)


def _data(name: str) -> Path:
    return cache_folder() / "data" / f"domain_{name}.npz"


def _checkpoint(name: str) -> Path:
    return cache_folder() / "training" / f"arms_{name}.safetensors"


def _digest(found: Mapping[str, arms.data.Dialogues]) -> str:
    whole = hashlib.sha256()
    for one in found.values():
        whole.update(one.tokens.tobytes())
    return f"sha256 of all tokens {whole.hexdigest()[:16]}"
