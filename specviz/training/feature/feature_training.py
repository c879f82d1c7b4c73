"""The training of a feature drafter: which dialogues come next, the gradients of an update, acceptance on held-out answers."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
import torch
from torch import Tensor, nn

from specviz.training.common import parallel
from specviz.training.common.features import FeatureStore, Seen
from specviz.training.common.loop import Progress, Schedule, Step, TrainState
from specviz.training.common.optimizer import Optimizer


@dataclass(frozen=True)
class Settings(Schedule):
    """An update reads ``batch`` dialogues, one at a time on each of ``workers`` cores. A milestone measures ``measured``
    held-out dialogues and as many learned ones, by acceptance length."""

    peak: float = 0.0015
    decay: float = 0.5
    every: float = 4.0
    patience: int = 8
    workers: int = 2
    batch: int = 8
    measured: int = 24


Loss = Callable[[Seen, torch.Generator, float], Tensor]
"""A dialogue, a generator, and what to scale by (one over the answer tokens of the update)."""
Measure = Callable[[Sequence[int]], dict[str, float]]
"""Dialogues to figures, ``tau`` among them: the acceptance length, by which the best weights are told."""


class FeatureTraining(TrainState):
    """A drafter on the target's features, the dialogues it learns from and those kept out."""

    settings: Settings

    def __init__(
        self, net: nn.Module, store: FeatureStore, training: Sequence[int], held_out: Sequence[int], settings: Settings,
        loss: Loss, measured: Measure, optimizer: Optimizer | None = None, pace: Callable[[float], None] | None = None,
    ) -> None:  # fmt: skip
        """``pace`` is told how much of the time is gone before each update, for losses that change on the way."""
        super().__init__(settings, optimizer or Optimizer(learned(net)), net.state_dict())
        self.net, self.store, self.training, self.held_out = net, store, training, held_out
        self.loss, self.measured, self.pace = loss, measured, pace
        self.begin()

    def begin(self) -> None:
        """The order of dialogues goes on exactly where it stopped."""
        whole = batches(self.training, self.settings, self.progress.provenance)
        self.stream = islice(whole, self.progress.updates, None)

    def step(self, share: float) -> Step:
        """The next dialogues' loss and gradients."""
        if self.pace is not None:
            self.pace(share)
        return self.learn_from(next(self.stream))

    def learn_from(self, batch: Sequence[int]) -> Step:
        """Loss and gradients of these dialogues, by answer token."""
        answers = sum(len(self.store.dialogues.answer(number)) for number in batch)

        def loss(part: tuple[int, int]) -> Tensor:
            place, number = part
            generator = torch.Generator().manual_seed(self.settings.seed + 1_000_003 * self.optimizer.updates + place)
            return self.loss(self.store.get([number])[0], generator, 1.0 / answers)

        longest_first = sorted(batch, key=lambda number: -len(self.store.dialogues.of(number)))
        parameters = self.optimizer.parameters
        gradients, value = parallel.gradients(
            list(enumerate(longest_first)), loss, list(parameters.values()), self.settings.workers
        )
        return Step(value, answers, dict(zip(parameters, gradients, strict=True)))

    def measure(self) -> dict[str, float]:
        """Held-out figures, the gap of the acceptance length to learned dialogues, and how many of those there are."""
        figures = self.measured(self.held_out[: self.settings.measured])
        seen = visited(self.training, self.settings, self.progress)
        known = comparable(self, seen)[: self.settings.measured]
        gap = self.measured(known)["tau"] - figures["tau"] if known else float("nan")
        distinct = sum(len(self.store.dialogues.answer(number)) for number in seen)
        return {"read": len(seen), "distinct": distinct, "gap": gap, **figures}


def learned(net: nn.Module) -> dict[str, Tensor]:
    """The parameters an optimiser moves."""
    return {name: value for name, value in net.named_parameters() if value.requires_grad}


def batches(training: Sequence[int], settings: Settings, provenance: str = "") -> Iterator[list[int]]:
    """Endless batches of dialogue numbers: every dialogue once, then every one again in another order, and so on.

    A training that goes on from weights with ``provenance`` draws other orders than they were made with.
    """
    generator = np.random.default_rng([settings.seed, *([zlib.crc32(provenance.encode())] if provenance else [])])
    waiting: list[int] = []
    while True:
        while len(waiting) < settings.batch:
            waiting += [int(number) for number in generator.permutation(np.asarray(training))]
        yield waiting[: settings.batch]
        waiting = waiting[settings.batch :]


def visited(training: Sequence[int], settings: Settings, progress: Progress) -> list[int]:
    """The dialogues that were learned from, each once, the first ones first."""
    drawn = islice(batches(training, settings, progress.provenance), progress.updates)
    return list(dict.fromkeys(number for batch in drawn for number in batch))


def comparable(state: FeatureTraining, numbers: Sequence[int]) -> list[int]:
    """Those of the dialogues whose answers were drawn as the held-out ones were: only such figures can be compared."""
    temperature = state.store.dialogues.temperature
    wanted = {float(temperature[number]) for number in state.held_out}
    return [number for number in numbers if float(temperature[number]) in wanted]
