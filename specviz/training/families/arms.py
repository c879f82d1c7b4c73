"""``train arms``: a low-rank change to the small draft model for each of several domains.

HedgeSpec (arXiv 2510.20064) uses seven EAGLE-3 heads instead.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from specviz.drafting.networks.small_lm import SmallLM
from specviz.drafting.networks.weights import write_weights
from specviz.models.hub.cache_dir import cache_folder
from specviz.models.hub.packed_model import BASE_KEY, named
from specviz.training import data, driver, features, phrases
from specviz.training.data import Dialogue, Dialogues, Markers, packed
from specviz.training.decoding import Request, answers
from specviz.training.driver import Job, Schedule
from specviz.training.families.small_draft import TokenTraining
from specviz.training.features import TargetAssets
from specviz.training.optimizer import LowRank
from specviz.training.registry import WEIGHTS

TEMPERATURES = (0.0, 0.7)
DIALOGUES, LONGEST, TOGETHER = 192, 112, 48
"""Dialogues per domain, maximum length of an answer in tokens, and number of consecutive answers at one temperature."""
RANK = 16
"""Rank of the change."""
BASE = WEIGHTS / "small_draft.safetensors"


class DomainTraining(TokenTraining):
    """Training of a low-rank change to the draft model on dialogues of one domain; one dialogue in eight is held out."""

    def __init__(self, model: SmallLM, dialogues: Dialogues, markers: Markers, settings: Schedule) -> None:
        numbers = range(len(dialogues))
        parts = [number for number in numbers if number % 8 != 7], [number for number in numbers if number % 8 == 7]
        super().__init__(model, dialogues, markers, parts, settings, LowRank(model, RANK))


def collect(assets: TargetAssets, domain: str, path: Path) -> Dialogues:
    """Return the dialogues of a domain from ``path``. If the file has too few, the target generates all dialogues again."""
    if path.is_file() and len(known := data.read(path)) >= DIALOGUES:
        return known
    texts = assets.target.tokenizer(phrases.domain_prompts(domain, DIALOGUES), add_special_tokens=False)["input_ids"]
    requests = [
        Request((*text, *assets.answer), TEMPERATURES[place // TOGETHER % len(TEMPERATURES)], LONGEST)
        for place, text in enumerate(texts)
    ]
    driver.say(f"{domain}: generating {DIALOGUES} dialogues")
    generator = torch.Generator(assets.target.device).manual_seed(0)
    found = answers(assets.target.model, assets.markers.end, assets.markers.prefix, requests, generator=generator)
    dialogues = packed([Dialogue(asked.ids, answer, asked.temperature) for asked, answer in zip(requests, found, strict=True)])
    data.write(path, dialogues)
    return dialogues


def make(job: Job) -> None:
    """Generate dialogues unless earlier runs have done so, train, and write ``assets/weights/arms.safetensors``.

    Half of the minutes go to training, divided equally among the domains.
    """
    assets = features.target_assets(job.device)
    settings = driver.settings_for(job, assets.target.device)
    # With more updates, the model would memorise the dialogues.
    settings = replace(settings, minutes=job.minutes / 2 / len(phrases.DOMAINS))
    sums, seconds = hashlib.sha256(), 0.0
    factors, more = dict[str, Tensor](), {BASE_KEY: named(BASE), "tokenizer_hash": assets.target.tokenizer_hash}
    metrics: dict[str, Any] = {}
    for name in phrases.DOMAINS:
        dialogues = collect(assets, name, cache_folder() / "data" / f"domain_{name}.npz")
        sums.update(dialogues.tokens.tobytes())
        state = DomainTraining(float32_draft_model(assets), dialogues, assets.markers, settings)
        state.sources = {"data": sums.hexdigest(), **more}
        before = state.measure()
        seconds += driver.train(state, driver.checkpoint_of(f"arms_{name}")).seconds
        metrics[name] = {"base": before, "changed": state.measure()}
        factors |= {f"{name}/{key}": value.detach().clone() for key, value in state.optimizer.parameters.items()}
        driver.say(f"{name} {metrics[name]}")
    line = (
        f"{DIALOGUES} dialogues per domain, the target's answers to prompts from assets/phrases/domains.toml, one in eight "
        f"held out; sha256 of all tokens {sums.hexdigest()[:16]}"
    )
    cost = f"{seconds / 60:.0f} minutes of training on {assets.target.device.type}"
    more["arms"] = json.dumps(list(metrics))
    driver.ship(job, asdict(settings), line, cost, metrics, lambda path, card: write_weights(path, factors, card), **more)


def float32_draft_model(assets: TargetAssets) -> SmallLM:
    """Return the shipped draft model in float32."""
    return SmallLM.load(BASE, (assets.embedding,), torch.float32, assets.target.device)
