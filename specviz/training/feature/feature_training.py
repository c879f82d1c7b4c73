"""What the recipes of feature drafters share: which dialogues come next, updates, milestones, and how far it got."""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
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

    ``minutes`` of training time; an update reads ``batch`` dialogues, one at a time on each of ``workers`` cores. A milestone
    every ``every`` minutes measures ``measured`` held-out dialogues and as many learned ones; after ``patience`` of them
    without a better acceptance length training ends. On a processor minutes are those its cores have really worked for this.
    """

    minutes: float = 60.0
    batch: int = 8
    peak: float = 0.0015
    decay: float = 0.5
    every: float = 4.0
    measured: int = 24
    patience: int = 8
    workers: int = 2
    seed: int = 0
    resume: bool = False


Loss = Callable[[Seen, torch.Generator, float], Tensor]
"""A dialogue, probability, and what to scale by (one over the answer tokens of the update)."""
Measure = Callable[[Sequence[int]], dict[str, float]]
"""Dialogues to figures, ``tau`` among them: the acceptance length, by which the best weights are told."""


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
    best: dict[str, Tensor] = field(default_factory=dict)
    """The averaged weights that were best at a milestone."""


def learned(net: nn.Module) -> dict[str, Tensor]:
    """The parameters an optimiser moves."""
    return {name: value for name, value in net.named_parameters() if value.requires_grad}


def places_in(ids: Tensor, vocab: int) -> Tensor:
    """[vocab]: a token's place in the draft vocabulary, IGNORED where it has none."""
    found = torch.full((vocab,), IGNORED, dtype=torch.long, device=ids.device)
    found[ids] = torch.arange(len(ids), device=ids.device)
    return found


def batches(training: Sequence[int], settings: Settings, before: str = "") -> Iterator[list[int]]:
    """Endless batches of dialogue numbers: every dialogue once, then every one again in another order, and so on.

    A training that goes on from weights with ``before`` behind them draws other orders than they were made with.
    """
    generator = np.random.default_rng([settings.seed, *([zlib.crc32(before.encode())] if before else [])])
    waiting: list[int] = []
    while True:
        while len(waiting) < settings.batch:
            waiting += [int(number) for number in generator.permutation(np.asarray(training))]
        yield waiting[: settings.batch]
        waiting = waiting[settings.batch :]


def visited(training: Sequence[int], settings: Settings, progress: trainer.Progress) -> list[int]:
    """The dialogues that were learned from, each once, the first ones first."""
    drawn = islice(batches(training, settings, progress.before), progress.updates)
    return list(dict.fromkeys(number for batch in drawn for number in batch))


def alike(bench: Bench, numbers: Sequence[int]) -> list[int]:
    """Those of the dialogues whose answers were drawn as the held-out ones were: only such figures can be compared."""
    temperature = bench.store.dialogues.temperature
    wanted = {float(temperature[number]) for number in bench.held_out}
    return [number for number in numbers if float(temperature[number]) in wanted]


def update(bench: Bench, batch: Sequence[int], rate: float, settings: Settings) -> tuple[float, int]:
    """One update: the loss, and the answer tokens it was taken over."""
    answers = sum(len(bench.store.dialogues.answer(number)) for number in batch)

    def loss(part: tuple[int, int]) -> Tensor:
        place, number = part
        generator = torch.Generator().manual_seed(settings.seed + 1_000_003 * bench.optimizer.updates + place)
        return bench.loss(bench.store.get([number])[0], generator, 1.0 / answers)

    longest_first = sorted(batch, key=lambda number: -len(bench.store.dialogues.of(number)))
    leaves = list(bench.optimizer.parameters.values())
    found, value = trainer.gradients(list(enumerate(longest_first)), loss, leaves, settings.workers)
    gradients = dict(zip(bench.optimizer.parameters, found, strict=True))
    bench.optimizer.step(gradients, rate, settings.decay, settings.workers)
    return value, answers


def train(bench: Bench, settings: Settings, checkpoint: Path, report: trainer.Report, before: str = "") -> trainer.Progress:
    """Train until the minutes are spent or nothing gets better, saving and measuring on the way; the averaged weights of
    the best milestone end up in the network.

    ``before`` says what was spent on the weights the network comes with, where it does not start fresh.
    """
    again = trainer.goes_on(settings.resume, checkpoint, before)
    progress = resume(bench, checkpoint) if again else trainer.Progress(before=before)
    clock = trainer.Clock(progress, settings.minutes, settings.workers if bench.store.keeps else None)
    stream = islice(batches(bench.training, settings, progress.before), progress.updates, None)
    due, saved = progress.seconds + 60 * settings.every, time.monotonic()
    recent: list[float] = []
    clock.start()
    while clock.share < 1 and not _tired(progress, settings):
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
    _put(bench, bench.best or bench.optimizer.averaged())
    return progress


def _tired(progress: trainer.Progress, settings: Settings) -> bool:
    """Whether the last milestones have all been worse than one before."""
    found = [entry["tau"] for entry in progress.history]
    return len(found) > settings.patience and max(found[-settings.patience :]) <= max(found[: -settings.patience])


def _milestone(
    bench: Bench, settings: Settings, checkpoint: Path, progress: trainer.Progress, loss: float, report: trainer.Report
) -> None:
    own = {name: value.detach().clone() for name, value in bench.optimizer.parameters.items()}
    use_average(bench)
    found = bench.measure(bench.held_out[: settings.measured])
    seen = visited(bench.training, settings, progress)
    learned_ones = alike(bench, seen)[: settings.measured]
    gap = bench.measure(learned_ones)["tau"] - found["tau"] if learned_ones else float("nan")
    if found["tau"] >= max((entry["tau"] for entry in progress.history), default=0.0):
        bench.best = {name: value.clone() for name, value in bench.optimizer.averaged().items()}
    _put(bench, own)
    distinct = sum(len(bench.store.dialogues.answer(number)) for number in seen)
    entry = {"updates": progress.updates, "minutes": progress.seconds / 60, "tokens": progress.tokens, "read": len(seen)}
    progress.history.append({**entry, "distinct": distinct, "loss": loss, "gap": gap, **found})
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
    return own | bench.optimizer.state | {f"best.{name}": value for name, value in bench.best.items()}


def resume(bench: Bench, checkpoint: Path) -> trainer.Progress:
    """Put a checkpoint back; how far it had come."""
    tensors, progress = trainer.read_checkpoint(checkpoint)
    if progress.history:
        bench.best = {name: torch.empty_like(value) for name, value in bench.optimizer.parameters.items()}
    with torch.no_grad():
        for name, value in state(bench).items():
            value.copy_(tensors[name])
    bench.optimizer.updates = progress.updates
    return progress
