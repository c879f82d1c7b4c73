"""``train arms``, drafters for one domain each: a low-rank change to the small draft model.

What HedgeSpec (arXiv 2510.20064) does with seven EAGLE-3 heads, in small: one base, and a few thousand numbers a domain.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from specviz.drafting.networks.small_lm import SmallLM
from specviz.drafting.networks.weights import write_weights
from specviz.models.heads.lora_heads import CHANGES, digest
from specviz.models.hub.cache_dir import cache_folder
from specviz.training import data, driver, features, phrases
from specviz.training.data import Dialogue, Dialogues, Markers, dialogues_of, packed
from specviz.training.decoding import Request, answers
from specviz.training.families import small_draft
from specviz.training.families.small_draft import TokenTraining
from specviz.training.features import TargetAssets
from specviz.training.optimizer import LowRank
from specviz.training.registry import WEIGHTS, Job

TEMPERATURES = (0.0, 0.7)
BASE = WEIGHTS / "small_draft.safetensors"


@dataclass(frozen=True)
class Settings(small_draft.Settings):
    """``dialogues`` a domain of at most ``longest`` answer tokens, written ``together`` at once; ``rank`` of the change.
    ``minutes`` are the most training time of each domain: a few more updates than it needs, and the dialogues are known by
    heart."""

    decay: float = 0.0
    warm: int = 10
    every: float = 0.03
    patience: int = 4
    dialogues: int = 192
    longest: int = 112
    together: int = 48
    rank: int = 16
    part: int = 0
    length: int = 256


class DomainTraining(TokenTraining):
    """A low-rank change to the draft model, and one domain's dialogues: every eighth is kept out."""

    watched = "top1"
    settings: Settings

    def __init__(self, model: SmallLM, dialogues: Dialogues, markers: Markers, settings: Settings) -> None:
        numbers = range(len(dialogues))
        parts = [number for number in numbers if number % 8 != 7], [number for number in numbers if number % 8 == 7]
        super().__init__(model, dialogues, markers, parts, settings, LowRank(model, settings.rank, settings.seed))


def collect(assets: TargetAssets, domain: str, path: Path, settings: Settings) -> Dialogues:
    """The domain's dialogues, as many as there should be: what ``path`` lacks is written by the target, a batch at a time."""
    domain_prompts = phrases.domain_prompts(domain, settings.dialogues, settings.seed)
    dialogues = list(dialogues_of(data.read(path))) if path.is_file() else []
    tokenizer = assets.target.tokenizer
    while len(dialogues) < len(domain_prompts):
        torch.manual_seed(len(dialogues))
        texts = domain_prompts[len(dialogues) : len(dialogues) + settings.together]
        questions = [(*tokenizer(text, add_special_tokens=False)["input_ids"], *assets.answer) for text in texts]
        temperature = TEMPERATURES[len(dialogues) // settings.together % len(TEMPERATURES)]
        requests = [Request(question, temperature, settings.longest) for question in questions]
        found = answers(assets.target.model, assets.markers.end, assets.markers.prefix, requests)
        dialogues += [Dialogue(*pair, temperature) for pair in zip(questions, found, strict=True)]
        data.write(path, packed(dialogues))
        driver.say(f"{domain}: {len(dialogues)} of {len(domain_prompts)} dialogues")
    return packed(dialogues[: len(domain_prompts)])


def named(factors: Mapping[str, Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """All domains' factors in one file: ``domain/matrix.tall`` and ``domain/matrix.wide``."""
    return {f"{domain}/{name}": value for domain, parts in factors.items() for name, value in parts.items()}


def make(job: Job) -> None:
    """Write ``assets/weights/arms.safetensors`` and print its card line. Dialogues that were written once are kept.

    Half of the minutes are for training, shared out equally: the other half goes into writing the dialogues.
    """
    assets = features.target_assets(job.device)
    settings = driver.settings_for(job, assets.target.device, Settings)
    settings = replace(settings, minutes=job.minutes / 2 / len(phrases.DOMAINS))
    sums, seconds = hashlib.sha256(), 0.0
    factors: dict[str, Mapping[str, Tensor]] = {}
    figures: dict[str, dict[str, float]] = {}
    for name in phrases.DOMAINS:
        dialogues = collect(assets, name, cache_folder() / "data" / f"domain_{name}.npz", settings)
        sums.update(dialogues.tokens.tobytes())
        state = DomainTraining(fresh(assets), dialogues, assets.markers, settings)
        before = state.measure()
        seconds += driver.train(state, driver.checkpoint_of(f"arms_{name}")).seconds
        figures[name] = {f"base_{key}": value for key, value in before.items()}
        figures[name] |= {f"changed_{key}": value for key, value in state.measure().items()}
        factors[name] = {key: value.detach().clone() for key, value in state.optimizer.parameters.items()}
        driver.say(f"{name} {figures[name]}")
    line = (
        f"{settings.dialogues} dialogues a domain that the target wrote to prompts of assets/phrases/domains.toml, one in eight "
        f"kept out; sha256 of all tokens {sums.hexdigest()[:16]}"
    )
    cost = f"{seconds / 60:.0f} minutes of training on {assets.target.device.type}"
    more = {"arms": json.dumps(list(factors)), CHANGES: f"{BASE.name} {digest(BASE)}"}
    more["tokenizer_hash"] = assets.target.tokenizer_hash
    driver.ship(job, asdict(settings), line, cost, figures, lambda path, card: write_weights(path, named(factors), card), **more)


def fresh(assets: TargetAssets) -> SmallLM:
    """The draft model that ships, as it ships, in float32."""
    return SmallLM.load(BASE, (assets.embedding,), torch.float32, assets.target.device)
