"""Drafters for one domain each: a low-rank change to the small draft model, learned from what the target says there.

What HedgeSpec (arXiv 2510.20064) does with seven EAGLE-3 heads, in small: one base, and a few thousand numbers a domain.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from specviz.drafters.networks.small_lm import SmallLM
from specviz.training.common import data, trainer
from specviz.training.common.agreement import next_token_agreement
from specviz.training.common.dialogues import answers, dialogues_of, packed
from specviz.training.common.domains import prompts
from specviz.training.common.optimizer import Optimizer
from specviz.training.common.target_assets import Material
from specviz.training.feature.feature_training import IGNORED, places_in
from specviz.training.feature.gto import LowRank

TEMPERATURES = (0.0, 0.7)


@dataclass(frozen=True)
class Settings:
    """``dialogues`` a domain of at most ``longest`` answer tokens, written ``together`` at once; ``rank`` of the change.

    An update reads ``batch`` rows of ``length`` tokens. ``seconds`` is the training time of each domain.
    """

    dialogues: int = 192
    longest: int = 112
    together: int = 48
    rank: int = 16
    seconds: float = 75.0
    batch: int = 6
    length: int = 256
    peak: float = 0.004
    seed: int = 0


@dataclass
class Domain:
    """One domain's data and the change that is learned from it."""

    name: str
    model: SmallLM
    dialogues: data.Dialogues
    training: Sequence[int]
    held_out: Sequence[int]
    change: LowRank
    optimizer: Optimizer


def collect(stuff: Material, domain: str, path: Path, settings: Settings) -> data.Dialogues:
    """The domain's dialogues, as many as there should be: what ``path`` lacks is written by the target, a batch at a time."""
    asked = prompts(domain, settings.dialogues, settings.seed)
    made = list(dialogues_of(data.read(path))) if path.is_file() else []
    tokenizer = stuff.target.tokenizer
    while len(made) < len(asked):
        torch.manual_seed(len(made))
        texts = asked[len(made) : len(made) + settings.together]
        questions = [(*tokenizer(text, add_special_tokens=False)["input_ids"], *stuff.answer) for text in texts]
        temperature = TEMPERATURES[len(made) // settings.together % len(TEMPERATURES)]
        made += answers(stuff, questions, temperature, settings.longest)
        data.write(path, packed(made))
        print(time.strftime("%H:%M:%S"), f"{domain}: {len(made)} of {len(asked)} dialogues", flush=True)
    return packed(made[: len(asked)])


def prepare(model: SmallLM, name: str, dialogues: data.Dialogues, settings: Settings) -> Domain:
    """A change that changes nothing yet, and the domain's split: every eighth dialogue is kept out."""
    held = [number for number in range(len(dialogues)) if number % 8 == 7]
    training = [number for number in range(len(dialogues)) if number % 8 != 7]
    change = LowRank(model, settings.rank, settings.seed)
    return Domain(name, model, dialogues, training, held, change, Optimizer(change.factors))


def places(model: SmallLM) -> Tensor:
    """[vocab]: a token's place in the draft vocabulary, IGNORED where it has none."""
    return places_in(model.draft_ids, model.config.vocab_size)


def loss(model: SmallLM, rows: Sequence[data.Row], place: Tensor) -> Tensor:
    """Mean cross-entropy (nats) over the rows' answer tokens of the draft vocabulary."""
    device = place.device
    tokens = torch.from_numpy(np.stack([row.tokens for row in rows])).to(device)
    counts = torch.from_numpy(np.stack([row.counts for row in rows])).to(device)
    labels = torch.where(counts, place[tokens[:, 1:]], IGNORED)
    wanted = labels != IGNORED
    ids = tokens[:, :-1]
    with trainer.arithmetic(device):
        features = model.features(F.pad(ids[:, :-1], (1, 0)), ids)[wanted]
        logits = F.linear(features, model.head(), model.bias)
    return F.cross_entropy(logits.float(), labels[wanted])


def train(domain: Domain, markers: data.Markers, settings: Settings, checkpoint: Path, resume: bool) -> trainer.Progress:
    """Learn the domain's change until its seconds are spent; the averaged change ends up in ``domain.change.factors``."""
    progress = _resume(domain, checkpoint) if trainer.goes_on(resume, checkpoint) else trainer.Progress()
    clock = trainer.Clock(progress, settings.seconds / 60, 1)
    generator = np.random.default_rng([settings.seed, progress.updates])
    stream = data.rows(domain.dialogues, domain.training, markers, settings.length, generator)
    model, place = domain.model, places(domain.model)
    clock.start()
    while clock.share < 1:
        rows = [next(stream) for _ in range(settings.batch)]
        domain.change.put()
        found = torch.autograd.grad(loss(model, rows, place), domain.change.leaves)
        rate = trainer.rate(settings.peak, clock.share, progress.updates, warm=10)
        domain.optimizer.step(domain.change.gradients(found), rate)
        progress.updates += 1
        progress.tokens += sum(int(row.counts.sum()) for row in rows)
        clock.stop()
    trainer.write_checkpoint(checkpoint, _state(domain), progress)
    domain.change.put(domain.optimizer.averaged())
    model.eval()
    return progress


def measured(model: SmallLM, domain: Domain, markers: data.Markers) -> dict[str, float]:
    """Cross-entropy and agreement on the domain's held-out answers, of ``model`` as it stands."""
    return next_token_agreement(model, domain.dialogues, domain.held_out, markers, places(model))


def _state(domain: Domain) -> dict[str, Tensor]:
    return {f"factor.{name}": value for name, value in domain.change.factors.items()} | domain.optimizer.state


def _resume(domain: Domain, checkpoint: Path) -> trainer.Progress:
    tensors, progress = trainer.read_checkpoint(checkpoint)
    with torch.no_grad():
        for name, value in _state(domain).items():
            value.copy_(tensors[name])
    domain.optimizer.updates = progress.updates
    return progress


def spent(settings: Settings, minutes: float) -> Settings:
    """Half of the minutes for training, shared out equally: the other half goes into writing the dialogues."""
    return replace(settings, seconds=60 * minutes / 2 / 4)


def named(factors: Mapping[str, Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """All domains' factors in one file: ``domain/matrix.tall`` and ``domain/matrix.wide``."""
    return {f"{domain}/{name}": value for domain, parts in factors.items() for name, value in parts.items()}
