"""``train arms``, drafters for one domain each: a low-rank change to the small draft model.

What HedgeSpec (arXiv 2510.20064) does with seven EAGLE-3 heads, in small: one base, and a few thousand numbers a domain.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from specviz.drafters.networks.small_lm import SmallLM
from specviz.drafters.networks.small_lm import load as load_small
from specviz.drafters.networks.weights import write_weights
from specviz.models.drafters.lora_heads import CHANGES, digest
from specviz.models.hub.cache_dir import cache_folder
from specviz.training import phrases
from specviz.training.common import data, parallel
from specviz.training.common.agreement import next_token_agreement
from specviz.training.common.card import card, print_card
from specviz.training.common.data import Dialogues
from specviz.training.common.dialogues import answers, dialogues_of, packed
from specviz.training.common.loop import Schedule, Step, TrainState, checkpoint_of, train
from specviz.training.common.optimizer import Optimizer
from specviz.training.common.target_assets import TargetAssets, target_assets
from specviz.training.draft_model.small_draft import IGNORED, examples, summed_loss
from specviz.training.feature.gto import LowRank
from specviz.training.registry import WEIGHTS, Job

TEMPERATURES = (0.0, 0.7)
BASE = WEIGHTS / "small_draft.safetensors"


@dataclass(frozen=True)
class Settings(Schedule):
    """``dialogues`` a domain of at most ``longest`` answer tokens, written ``together`` at once; ``rank`` of the change.

    An update reads ``batch`` rows of ``length`` tokens. ``minutes`` are the most training time of each domain: a few more
    updates than it needs, and the dialogues are known by heart.
    """

    minutes: float = 1.25
    warm: int = 10
    every: float = 0.03
    patience: int = 4
    dialogues: int = 192
    longest: int = 112
    together: int = 48
    rank: int = 16
    batch: int = 6
    length: int = 256


class DomainTraining(TrainState):
    """A low-rank ``change`` to the draft model, and one domain's dialogues: every eighth is kept out."""

    unit = "answer tokens"
    watched = "top1"
    settings: Settings

    def __init__(self, model: SmallLM, dialogues: data.Dialogues, markers: data.Markers, settings: Settings) -> None:
        self.change = LowRank(model, settings.rank, settings.seed)
        super().__init__(settings, Optimizer(self.change.factors))
        self.model, self.dialogues, self.markers = model, dialogues, markers
        self.held_out = [number for number in range(len(dialogues)) if number % 8 == 7]
        self.training = [number for number in range(len(dialogues)) if number % 8 != 7]
        self.place = data.places_in(model.draft_ids, model.config.vocab_size)

    def begin(self) -> None:
        """Rows from where a resumed training stopped: another seed rather than skipping."""
        generator = np.random.default_rng([self.settings.seed, self.progress.updates])
        self.stream = data.rows(self.dialogues, self.training, self.markers, self.settings.length, generator)
        self.settle()

    def settle(self) -> None:
        self.change.put()
        self.model.eval()

    def step(self, share: float) -> Step:
        """Mean cross-entropy (nats) over the next rows' answer tokens of the draft vocabulary, and its gradients."""
        rows = [next(self.stream) for _ in range(self.settings.batch)]
        ids, labels = examples(rows, self.place)
        with parallel.arithmetic(self.place.device):
            loss = summed_loss(self.model, self.model.head(), ids, labels) / (labels != IGNORED).sum()
        gradients = self.change.gradients(torch.autograd.grad(loss, self.change.leaves))
        return Step(float(loss.detach()), sum(int(row.counts.sum()) for row in rows), gradients)

    def measure(self) -> dict[str, float]:
        """Cross-entropy and agreement on the domain's held-out answers, of the model as it stands."""
        return next_token_agreement(self.model, self.dialogues, self.held_out, self.markers, self.place)


def collect(assets: TargetAssets, domain: str, path: Path, settings: Settings) -> data.Dialogues:
    """The domain's dialogues, as many as there should be: what ``path`` lacks is written by the target, a batch at a time."""
    domain_prompts = phrases.domain_prompts(domain, settings.dialogues, settings.seed)
    dialogues = list(dialogues_of(data.read(path))) if path.is_file() else []
    tokenizer = assets.target.tokenizer
    while len(dialogues) < len(domain_prompts):
        torch.manual_seed(len(dialogues))
        texts = domain_prompts[len(dialogues) : len(dialogues) + settings.together]
        questions = [(*tokenizer(text, add_special_tokens=False)["input_ids"], *assets.answer) for text in texts]
        temperature = TEMPERATURES[len(dialogues) // settings.together % len(TEMPERATURES)]
        dialogues += answers(assets, questions, temperature, settings.longest)
        data.write(path, packed(dialogues))
        print(time.strftime("%H:%M:%S"), f"{domain}: {len(dialogues)} of {len(domain_prompts)} dialogues", flush=True)
    return packed(dialogues[: len(domain_prompts)])


def spent(settings: Settings, minutes: float) -> Settings:
    """Half of the minutes for training, shared out equally: the other half goes into writing the dialogues."""
    return replace(settings, minutes=minutes / 2 / 4)


def named(factors: Mapping[str, Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """All domains' factors in one file: ``domain/matrix.tall`` and ``domain/matrix.wide``."""
    return {f"{domain}/{name}": value for domain, parts in factors.items() for name, value in parts.items()}


def make(job: Job) -> None:
    """Write ``assets/weights/arms.safetensors`` and print its card line. Dialogues that were written once are kept."""
    assets = target_assets(job.device)
    settings = replace(spent(Settings(), job.minutes), resume=job.resume)
    dialogues = {name: collect(assets, name, _data(name), settings) for name in phrases.DOMAINS}
    factors: dict[str, Mapping[str, Tensor]] = {}
    metrics: dict[str, dict[str, float]] = {}
    seconds = 0.0
    for name, own in dialogues.items():
        state = DomainTraining(fresh(assets), own, assets.markers, settings)
        figures = {f"base_{key}": value for key, value in state.measure().items()}
        progress = train(state, checkpoint_of(f"arms_{name}"))
        metrics[name] = figures | {f"changed_{key}": value for key, value in state.measure().items()}
        factors[name] = {key: value.detach().clone() for key, value in state.optimizer.parameters.items()}
        seconds += progress.seconds
        print(time.strftime("%H:%M:%S"), name, progress.updates, "updates", metrics[name], flush=True)
    data = (
        f"{settings.dialogues} dialogues a domain that the target wrote to prompts of "
        f"assets/phrases/domains.toml, one in eight kept out; {_digest(dialogues)}"
    )
    cost = f"{seconds / 60:.0f} minutes of training on {assets.target.device.type}"
    more = {"arms": json.dumps(list(factors)), CHANGES: f"{BASE.name} {digest(BASE)}"}
    facts = card("arms", settings, data, cost, metrics, tokenizer_hash=assets.target.tokenizer_hash, **more)
    path = WEIGHTS / f"{job.recipe.name}.safetensors"
    write_weights(path, named(factors), facts)
    print_card(path, facts)


def fresh(assets: TargetAssets) -> SmallLM:
    """The draft model that ships, as it ships, in float32."""
    return load_small(BASE, assets.embedding, torch.float32, assets.target.device)


def _data(name: str) -> Path:
    return cache_folder() / "data" / f"domain_{name}.npz"


def _digest(dialogues_by_domain: Mapping[str, Dialogues]) -> str:
    hasher = hashlib.sha256()
    for dialogues in dialogues_by_domain.values():
        hasher.update(dialogues.tokens.tobytes())
    return f"sha256 of all tokens {hasher.hexdigest()[:16]}"
