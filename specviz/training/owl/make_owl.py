"""``train owl``: target and dialogues in, a recurrence and its probe out."""

from __future__ import annotations

import json
import time
from collections import deque
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from specviz.drafters.networks.recurrent_net import RecurrentConfig, RecurrentNet, save
from specviz.training.common import data, trainer
from specviz.training.common.commit import commit
from specviz.training.common.optimizer import Optimizer
from specviz.training.common.trainer import cores
from specviz.training.feature.recipes import Stuff, checkpoint_of, file_digest, gather, show
from specviz.training.owl import owl
from specviz.training.owl.owl_start import start
from specviz.training.registry import WEIGHTS, Job

DEPTH = 5
MEASURED = 40
FITTED = 240
"""Windows that the linear start is fitted on."""


@dataclass(frozen=True)
class Settings:
    """``minutes`` of every core, of which the ``probing`` share teaches the probe. An update learns from ``batch``
    windows, of which ``fresh`` are read by the target for the first time; it remembers the last ``kept``."""

    minutes: float = 12.0
    probing: float = 0.15
    batch: int = 24
    fresh: int = 6
    kept: int = 2400
    places: int = 28
    peak: float = 0.004
    decay: float = 0.02
    every: int = 60
    seed: int = 0
    resume: bool = False


@dataclass
class Bench:
    """All that one training works on."""

    model: Any
    net: RecurrentNet
    stuff: Stuff
    settings: Settings
    probe: Optimizer
    optimizer: Optimizer
    held_out: list[tuple[Tensor, int]]
    known: deque[owl.Read] = field(default_factory=deque)

    @property
    def state(self) -> dict[str, Tensor]:
        """All that a checkpoint holds."""
        own = {f"weight.{name}": value for name, value in self.net.state_dict().items()}
        probe = {f"probe.{name}": value for name, value in self.probe.state.items()}
        return own | probe | self.optimizer.state


def make(job: Job) -> None:
    """Train, measure on held-out answers, write ``assets/weights/owl.safetensors`` and print its card line."""
    stuff = gather(job)
    if stuff.device.type == "cpu":
        torch.set_num_threads(cores())  # gathering left one: here products are split, not parts
    bench = prepare(stuff, Settings(minutes=job.minutes, resume=job.resume))
    progress = train(bench, checkpoint_of(job))
    finish(job, bench, progress)


def prepare(stuff: Stuff, settings: Settings) -> Bench:
    """A fresh network whose probe starts as the mean word, and the held-out greedy answers."""
    torch.manual_seed(settings.seed)
    model = stuff.material.target.model.requires_grad_(False)
    embedding, layers = stuff.material.embedding, int(model.config.get_text_config().num_hidden_layers)
    config = RecurrentConfig(embedding.shape[0], embedding.shape[1], layers)
    head = model.get_output_embeddings().weight.detach().float()
    net = RecurrentNet(config, embedding, head, stuff.draft_ids).to(stuff.device)
    with torch.no_grad():
        net.probe.copy_(embedding[stuff.draft_ids].mean(0))
    learned = {name: value for name, value in net.named_parameters() if name != "probe"}
    stacked = {"first.weight": 4, "later.weight": 4}
    held = [number for number in stuff.held_out if stuff.store.dialogues.temperature[number] == 0][:MEASURED]
    prefix = len(stuff.material.markers.prefix)
    texts = [
        (torch.from_numpy(stuff.store.ids(number)).to(stuff.device), prefix + int(stuff.store.dialogues.prompt[number]))
        for number in held
    ]
    return Bench(model, net, stuff, settings, Optimizer({"probe": net.probe}), Optimizer(learned, stacked=stacked), texts)


def train(bench: Bench, checkpoint: Path) -> trainer.Progress:
    """The probe first, then the network, until the minutes are spent; averaged weights end up in the network."""
    settings = bench.settings
    progress = _resume(bench, checkpoint) if trainer.goes_on(settings.resume, checkpoint) else trainer.Progress()
    clock = trainer.Clock(progress, settings.minutes, cores() if bench.stuff.device.type == "cpu" else None)
    generator = np.random.default_rng([settings.seed, progress.updates])
    stream = owl.windows(bench.stuff.store.dialogues, bench.stuff.material.markers, bench.stuff.training, generator)
    recent: list[float] = []
    clock.start()
    while clock.share < 1:
        probing = clock.share < settings.probing
        value = _teach_probe(bench, stream, generator, clock.share) if probing else _teach(bench, stream, generator, clock.share)
        recent.append(value)
        progress.updates += 1
        progress.tokens += (8 if probing else settings.fresh) * owl.LENGTH
        clock.stop()
        if progress.updates % settings.every == 0 or clock.share >= 1:
            trainer.write_checkpoint(checkpoint, bench.state, progress)
            entry = {"updates": progress.updates, "minutes": progress.seconds / 60, "probing": float(probing)}
            show({**entry, "loss": float(np.mean(recent))})
            recent = []
            clock.start()
    _put(bench, bench.optimizer.averaged())
    return progress


def _teach_probe(bench: Bench, stream: Any, generator: np.random.Generator, share: float) -> float:
    settings, net = bench.settings, bench.net
    tokens = torch.from_numpy(np.stack([next(stream) for _ in range(8)])).to(bench.stuff.device)
    found = owl.probe_loss(bench.model, net, tokens, owl.some_places(16, generator).to(tokens.device))
    (gradient,) = torch.autograd.grad(found, [net.probe])
    size = float(bench.stuff.material.embedding.std())
    bench.probe.step({"probe": gradient}, 0.3 * size * (1 - 0.9 * share / settings.probing))
    if bench.probe.updates % 10 == 0:
        show({"probe update": bench.probe.updates, "loss": float(found.detach())})
    return float(found.detach())


def _teach(bench: Bench, stream: Any, generator: np.random.Generator, share: float) -> float:
    settings, net = bench.settings, bench.net
    if not bench.optimizer.updates and bench.probe.updates:
        _begin(bench, stream, generator)
    batch = [_read(bench, stream, generator)]
    while len(batch) * settings.fresh < settings.batch and bench.known:
        batch.append(bench.known[int(generator.integers(len(bench.known)))])
    bench.known.append(batch[0])
    while len(bench.known) * settings.fresh > settings.kept:
        bench.known.popleft()
    generator = torch.Generator().manual_seed(int(generator.integers(1 << 40)))
    names = list(bench.optimizer.parameters)
    sums: list[Tensor] = []
    value = 0.0
    for one in batch:
        with trainer.arithmetic(bench.stuff.device):
            found = owl.loss(net, one, generator) / len(batch)
        parts = torch.autograd.grad(found, [bench.optimizer.parameters[name] for name in names])
        sums = [a + b for a, b in zip(sums, parts, strict=True)] if sums else list(parts)
        value += float(found.detach())
    inside = (share - settings.probing) / (1 - settings.probing)
    rate = trainer.rate(settings.peak, inside, bench.optimizer.updates)
    bench.optimizer.step(dict(zip(names, sums, strict=True)), rate, settings.decay)
    return value


def _read(bench: Bench, stream: Any, generator: np.random.Generator) -> owl.Read:
    """Fresh windows, as the target sees them; kept in half precision."""
    tokens = torch.from_numpy(np.stack([next(stream) for _ in range(bench.settings.fresh)])).to(bench.stuff.device)
    found = owl.read(bench.model, bench.net, tokens, owl.some_places(bench.settings.places, generator).to(tokens.device))
    return replace(found, own=found.own.bfloat16(), behind=found.behind.bfloat16())


@torch.no_grad()
def _begin(bench: Bench, stream: Any, generator: np.random.Generator) -> None:
    """The probe is taught: from here on it stays, and the network starts from what can be guessed without learning."""
    bench.net.probe.copy_(bench.probe.averaged()["probe"])
    for _ in range(FITTED // bench.settings.fresh):
        bench.known.append(_read(bench, stream, generator))
    start(bench.net, bench.model.base_model.norm.weight.float(), bench.known)
    bench.optimizer.start_over()
    show(owl.foresight(bench.model, bench.net, bench.held_out[:6], DEPTH))


@torch.no_grad()
def _put(bench: Bench, weights: dict[str, Tensor]) -> None:
    for name, value in bench.optimizer.parameters.items():
        value.copy_(weights[name])


@torch.no_grad()
def _resume(bench: Bench, checkpoint: Path) -> trainer.Progress:
    tensors, progress = trainer.read_checkpoint(checkpoint)
    for name, value in bench.state.items():
        value.copy_(tensors[name])
    past = progress.seconds >= 60 * bench.settings.minutes * bench.settings.probing
    bench.optimizer.updates = progress.updates if past else 0
    bench.probe.updates = 0 if past else progress.updates  # an average that was put in place is not put again
    return progress


def finish(job: Job, bench: Bench, progress: trainer.Progress) -> None:
    """Measure on held-out answers, write the weights with their card, and print the card's line."""
    found = owl.foresight(bench.model, bench.net, bench.held_out, DEPTH)
    print("held-out:", "  ".join(f"{name} {value:.4f}" for name, value in found.items()), flush=True)
    stuff = bench.stuff
    card = {
        "recipe": f"python -m specviz train {job.recipe.name} ({json.dumps(asdict(bench.settings))})",
        "data": f"{stuff.file.name} sha256 {file_digest(stuff.file)}, one in {data.HELD_OUT_EVERY} kept out; windows of "
        f"{owl.LENGTH} tokens",
        "licence": "Apache-2.0, as the target's",
        "spent": f"{progress.seconds / 60:.0f} minutes on {stuff.device.type}, {progress.tokens} tokens read by the target",
        "metrics": json.dumps({name: round(value, 4) for name, value in found.items()}),
        "commit": commit(),
        "tokenizer_hash": stuff.material.target.tokenizer_hash,
    }
    path = WEIGHTS / f"{job.recipe.name}.safetensors"
    save(bench.net, path, card)
    line = "; ".join(f"{name}: {value}" for name, value in card.items())
    print(f"- `{path.name}` ({path.stat().st_size / 1e6:.1f} MB): {line}  {time.strftime('%H:%M:%S')}", flush=True)
