"""What the recipes of feature drafters share: which dialogues come next, updates, milestones, and how far it got."""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from specviz.training.common import trainer
from specviz.training.common.features import FeatureStore, Seen
from specviz.training.common.optimizer import Optimizer

IGNORED = -100


@dataclass(frozen=True)
class Settings:
    """What may be changed from run to run.

    ``minutes`` of training time; an update reads ``batch`` dialogues, one at a time on each of ``workers`` cores.
    ``fresh`` is the share of dialogues the target has to read for the first time: that costs more than learning from
    them, so the others are some that it has read already. A milestone every ``every`` minutes measures ``measured``
    held-out dialogues. On a processor minutes are those its cores have really worked for this.
    """

    minutes: float = 60.0
    batch: int = 8
    fresh: float = 0.35
    peak: float = 0.004
    decay: float = 0.02
    every: float = 4.0
    measured: int = 16
    workers: int = 2
    seed: int = 0
    resume: bool = False


Loss = Callable[[Seen, torch.Generator, float], Tensor]
"""A dialogue, chance, and what to scale by (one over the answer tokens of the update)."""
Measure = Callable[[Sequence[int]], dict[str, float]]
"""Held-out dialogues to figures."""


@dataclass
class Bench:
    """All that one training works on."""

    net: nn.Module
    store: FeatureStore
    training: Sequence[int]
    held_out: Sequence[int]
    optimizer: Optimizer
    loss: Loss
    measure: Measure
    pace: Callable[[float], None] | None = None
    """Told how much of the time is gone before each update, for losses that change on the way."""


def learned(net: nn.Module) -> dict[str, Tensor]:
    """The parameters an optimiser moves."""
    return {name: value for name, value in net.named_parameters() if value.requires_grad}


def places_in(ids: Tensor, vocab: int) -> Tensor:
    """[vocab]: a token's place in the draft vocabulary, IGNORED where it has none."""
    found = torch.full((vocab,), IGNORED, dtype=torch.long, device=ids.device)
    found[ids] = torch.arange(len(ids), device=ids.device)
    return found


def batches(
    store: FeatureStore, training: Sequence[int], settings: Settings, updates: int, before: str = ""
) -> Iterator[list[int]]:
    """Endless batches of dialogue numbers, new ones among known ones. A resumed training draws another order rather
    than skip for hours, and so does one that goes on from weights with ``before`` behind them; what the store has is known
    to it."""
    sitting = [zlib.crc32(before.encode())] if before else []
    chance = np.random.default_rng([settings.seed, updates, *sitting])
    order = [int(number) for number in chance.permutation(np.asarray(training))]
    known = [number for number in order if store.has(number)]
    unknown = [number for number in order if not store.has(number)]
    while True:
        batch: list[int] = []
        while len(batch) < settings.batch:
            few = len(known) < 4 * settings.batch
            if unknown and (few or not store.keeps or chance.random() < settings.fresh):
                batch.append(unknown.pop())
                known.append(batch[-1])
            elif not store.keeps:
                unknown = [int(number) for number in chance.permutation(np.asarray(training))]
            else:
                batch.append(known[int(chance.integers(len(known)))])
        yield batch


def update(bench: Bench, batch: Sequence[int], rate: float, settings: Settings) -> tuple[float, int]:
    """One update: the loss, and the answer tokens it was taken over."""
    answers = sum(len(bench.store.dialogues.answer(number)) for number in batch)

    def loss(part: tuple[int, int]) -> Tensor:
        place, number = part
        chance = torch.Generator().manual_seed(settings.seed + 1_000_003 * bench.optimizer.updates + place)
        return bench.loss(bench.store.get([number])[0], chance, 1.0 / answers)

    longest_first = sorted(batch, key=lambda number: -len(bench.store.dialogues.of(number)))
    leaves = list(bench.optimizer.parameters.values())
    found, value = trainer.gradients(list(enumerate(longest_first)), loss, leaves, settings.workers)
    gradients = dict(zip(bench.optimizer.parameters, found, strict=True))
    bench.optimizer.step(gradients, rate, settings.decay, settings.workers)
    return value, answers


def train(bench: Bench, settings: Settings, checkpoint: Path, report: trainer.Report, before: str = "") -> trainer.Progress:
    """Train until the minutes are spent, saving and measuring on the way; the averaged weights end up in the network.

    ``before`` says what was spent on the weights the network comes with, where it does not start fresh.
    """
    again = trainer.goes_on(settings.resume, checkpoint, before)
    progress = resume(bench, checkpoint) if again else trainer.Progress(before=before)
    clock = trainer.Clock(progress, settings.minutes, settings.workers if bench.store.keeps else None)
    stream = batches(bench.store, bench.training, settings, progress.updates, progress.before)
    due, saved = progress.seconds + 60 * settings.every, time.monotonic()
    recent: list[float] = []
    clock.start()
    while clock.share < 1:
        if bench.pace is not None:
            bench.pace(clock.share)
        rate = trainer.rate(settings.peak, clock.share, progress.updates)
        value, answers = update(bench, next(stream), rate, settings)
        recent.append(value)
        progress.updates += 1
        progress.tokens += answers
        clock.stop()
        if progress.seconds >= due or clock.share >= 1:
            _milestone(bench, settings, checkpoint, progress, float(np.mean(recent)), report)
            recent, due, saved = [], progress.seconds + 60 * settings.every, time.monotonic()
            clock.start()
        elif time.monotonic() - saved > 60 * settings.every:
            trainer.write_checkpoint(checkpoint, state(bench), progress)
            saved = time.monotonic()
            clock.start()
    use_average(bench)
    return progress


def _milestone(
    bench: Bench, settings: Settings, checkpoint: Path, progress: trainer.Progress, loss: float, report: trainer.Report
) -> None:
    own = {name: value.detach().clone() for name, value in bench.optimizer.parameters.items()}
    use_average(bench)
    found = bench.measure(bench.held_out[: settings.measured])
    _put(bench, own)
    read = sum(bench.store.known(number) for number in bench.training)
    entry = {"updates": progress.updates, "minutes": progress.seconds / 60, "tokens": progress.tokens, "read": read}
    progress.history.append({**entry, "loss": loss, **found})
    trainer.write_checkpoint(checkpoint, state(bench), progress)
    report(progress.history[-1])


def use_average(bench: Bench) -> None:
    """Put the averaged weights into the network."""
    _put(bench, bench.optimizer.averaged())


def _put(bench: Bench, weights: Mapping[str, Tensor]) -> None:
    with torch.no_grad():
        for name, value in bench.optimizer.parameters.items():
            value.copy_(weights[name])


def state(bench: Bench) -> dict[str, Tensor]:
    """All that a checkpoint holds: weights, fixed buffers of the network's own, and the optimiser's memory."""
    own = {f"weight.{name}": value for name, value in bench.net.state_dict().items()}
    return own | bench.optimizer.state


def resume(bench: Bench, checkpoint: Path) -> trainer.Progress:
    """Put a checkpoint back; how far it had come."""
    tensors, progress = trainer.read_checkpoint(checkpoint)
    with torch.no_grad():
        for name, value in state(bench).items():
            value.copy_(tensors[name])
    bench.optimizer.updates = progress.updates
    return progress
