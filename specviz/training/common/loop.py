"""The training loop of every recipe: updates by the clock, milestones, early stopping, checkpoints that resume.

A recipe is a :class:`TrainState` with its own data, loss and schedule; :func:`train` does the rest.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from specviz.drafters.networks.weights import read_weights
from specviz.errors import BadInput
from specviz.models.hub.cache_dir import cache_folder
from specviz.training.common.optimizer import Optimizer

Report = Callable[[Mapping[str, float]], None]
SAVE_SECONDS = 180.0
"""Wall-clock seconds after which a checkpoint is written also between milestones."""


@dataclass(frozen=True)
class Schedule:
    """What every recipe's settings have in common.

    ``minutes`` of training in all, measuring and saving not counted; on a processor those that its cores have really worked.
    The learning rate warms up for ``warm`` updates to its ``peak`` and falls at the end. A milestone every ``every`` minutes
    measures the averaged weights, and so does one after as many tokens as each of ``marks`` says; after ``patience`` of them
    without a better value training ends (0: never).
    ``workers`` threads share an update, each with torch at one thread.
    """

    minutes: float = 60.0
    peak: float = 0.004
    decay: float = 0.0
    warm: int = 40
    every: float = 2.0
    marks: tuple[int, ...] = ()
    patience: int = 0
    workers: int = 1
    seed: int = 0
    resume: bool = False


@dataclass
class Progress:
    """How far a training has come. ``seconds`` is training time alone, over all resumptions; ``provenance`` says in words what
    was spent on the weights it began with, nothing when they were fresh. ``stage`` was entered at update ``entered``."""

    updates: int = 0
    seconds: float = 0.0
    tokens: int = 0
    history: list[dict[str, float]] = field(default_factory=list)
    provenance: str = ""
    stage: str = ""
    entered: int = 0

    def spent(self, device: str, unit: str = "answer tokens") -> str:
        """For the card: training time, and how much was learned from."""
        now = f"{self.seconds / 60:.0f} minutes on {device}, {self.updates} updates, {self.tokens} {unit}"
        return f"{self.provenance}, then {now}" if self.provenance else now


class Step(NamedTuple):
    """What an update follows from: its ``loss``, how many ``tokens`` it was taken over, and ``gradients`` by parameter."""

    loss: float
    tokens: int
    gradients: Mapping[str, Tensor]


class TrainState:
    """What a training moves and its checkpoint keeps; the recipe's subclass adds the data, the loss and what is measured."""

    unit = "tokens"
    """What ``Progress.tokens`` counts."""
    watched = "tau"
    """The figure by which early stopping tells the best weights: the greater, the better."""
    step: Callable[[float], Step]
    """Loss and gradients of the next update's data, told what share of the time is gone."""

    def __init__(
        self, settings: Schedule, optimizer: Optimizer, weights: Mapping[str, Tensor] | None = None,
        buffers: Mapping[str, Tensor] | None = None,
    ) -> None:  # fmt: skip
        """``weights`` are the network's tensors for the checkpoint where they are more than what the optimizer moves; ``buffers``
        are further tensors that belong to it and change in place."""
        self.settings, self.optimizer, self.decay = settings, optimizer, settings.decay
        self.progress, self.best = Progress(), dict[str, Tensor]()
        self._weights, self._buffers = weights, dict(buffers or {})

    def begin(self) -> None:
        """Start the data where ``progress`` says; called once, after a checkpoint was read."""

    def enter(self, stage: str) -> None:
        """Begin another stage of the training, whose optimizer a subclass makes anew."""
        self.progress.stage, self.progress.entered = stage, self.progress.updates

    def rate(self, share: float) -> float:
        """The learning rate of the next update."""
        return rate(self.settings.peak, share, self.optimizer.updates, self.settings.warm)

    def settle(self) -> None:
        """The optimizer's parameters have changed: bring what the network derives from them in line."""

    def measure(self) -> Mapping[str, float]:
        """Figures of a milestone, on held-out data; the averaged weights are in the network."""
        return {}

    def export(self) -> None:
        """Write weights that can be used already, at a milestone; the averaged ones are in the network."""

    def update(self, share: float, rate: float | None = None) -> Step:
        """One update, at the given learning rate or the schedule's."""
        step = self.step(share)
        self.apply(step, self.rate(share) if rate is None else rate)
        self.progress.updates += 1
        self.progress.tokens += step.tokens
        return step

    def apply(self, step: Step, rate: float) -> None:
        """Move the parameters."""
        self.optimizer.step(step.gradients, rate, self.decay, self.settings.workers)
        self.settle()

    def use(self, weights: Mapping[str, Tensor]) -> None:
        """Put these weights into the network."""
        with torch.no_grad():
            for name, value in self.optimizer.parameters.items():
                value.copy_(weights[name])
        self.settle()

    def use_average(self) -> None:
        """Put the averaged weights into the network."""
        self.use(self.optimizer.averaged())

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """The averaged weights are in the network inside the block, its own again after it."""
        own = {name: value.detach().clone() for name, value in self.optimizer.parameters.items()}
        self.use_average()
        try:
            yield
        finally:
            self.use(own)

    def tired(self) -> bool:
        """Whether the last milestones have all been no better than one before."""
        patience = self.settings.patience
        values = [entry[self.watched] for entry in self.progress.history if self.watched in entry]
        return 0 < patience < len(values) and max(values[-patience:]) <= max(values[:-patience])

    def tensors(self) -> dict[str, Tensor]:
        """All that a checkpoint holds: weights, the optimizer's memory, the best average, what else changes."""
        weights = self.optimizer.parameters if self._weights is None else self._weights
        tensors = {f"weight.{name}": value for name, value in weights.items()} | self.optimizer.state
        tensors |= {f"best.{name}": value for name, value in self.best.items()}
        return tensors | {f"kept.{name}": value for name, value in self._buffers.items()}

    def write(self, checkpoint: Path) -> None:
        """Keep everything that resuming needs."""
        write_checkpoint(checkpoint, self.tensors(), self.progress)

    def read(self, checkpoint: Path) -> None:
        """Put a checkpoint back. Raises BadInput when it is of another shape of training."""
        tensors, self.progress = read_checkpoint(checkpoint)
        if self.progress.stage:
            entered = self.progress.entered
            self.enter(self.progress.stage)
            self.progress.entered = entered
        if self.settings.patience and any(self.watched in entry for entry in self.progress.history):
            self.best = {name: torch.empty_like(value) for name, value in self.optimizer.parameters.items()}
        self.restore(tensors, checkpoint)
        self.optimizer.updates = self.progress.updates - self.progress.entered
        self.settle()

    @torch.no_grad()
    def restore(self, tensors: Mapping[str, Tensor], checkpoint: Path) -> None:
        """Copy the checkpoint's tensors into this training's."""
        own = self.tensors()
        strange = [name for name, value in own.items() if name not in tensors or tensors[name].shape != value.shape]
        if strange:
            raise BadInput(
                f"The checkpoint {checkpoint} is of another version of this training ({strange[0]} does not fit): "
                "delete it, or train without --resume."
            )
        for name, value in own.items():
            value.copy_(tensors[name])


def train(state: TrainState, checkpoint: Path, report: Report | None = None, provenance: str = "") -> Progress:
    """Train until the minutes are spent or nothing gets better, saving and measuring on the way; the averaged weights, of
    the best milestone where one is told, end up in the network.

    ``provenance`` says what was spent on the weights the network comes with, where it does not start fresh.
    """
    settings, report = state.settings, report or show
    state.progress = Progress(provenance=provenance)
    if can_resume(settings.resume, checkpoint, provenance):
        state.read(checkpoint)
        print(f"resumed after {state.progress.seconds / 60:.1f} minutes, {state.progress.updates} updates", flush=True)
    state.begin()
    progress, clock = state.progress, Clock(state.progress, settings.minutes, _cores(state))
    due, saved = progress.seconds + 60 * settings.every, time.monotonic()
    losses: list[float] = []
    clock.start()
    while clock.share < 1 and not state.tired():
        tokens = progress.tokens
        losses.append(state.update(clock.share).loss)
        clock.stop()
        marked = any(tokens < mark <= progress.tokens for mark in settings.marks)
        if progress.seconds >= due or marked or clock.share >= 1:
            _milestone(state, checkpoint, sum(losses) / len(losses), report)
            losses, due, saved = [], progress.seconds + 60 * settings.every, time.monotonic()
            clock.start()
        elif time.monotonic() - saved > SAVE_SECONDS:
            state.write(checkpoint)
            saved = time.monotonic()
            clock.start()
    state.use(state.best or state.optimizer.averaged())
    return progress


def _cores(state: TrainState) -> int | None:
    """Cores whose work is counted: on a processor those of the workers, or of torch's own threads."""
    on_processor = next(iter(state.optimizer.parameters.values())).device.type == "cpu"
    return max(state.settings.workers, torch.get_num_threads()) if on_processor else None


def _milestone(state: TrainState, checkpoint: Path, loss: float, report: Report) -> None:
    """Measure and export the averaged weights, note the figures, write a checkpoint."""
    progress = state.progress
    with state.averaged():
        figures = dict(state.measure())
        state.export()
    if "held_out" in figures:
        figures["gap"] = figures["held_out"] - loss
    values = [past[state.watched] for past in progress.history if state.watched in past]
    if state.settings.patience and figures.get(state.watched, -1.0) >= max(values, default=0.0):
        state.best = {name: value.clone() for name, value in state.optimizer.averaged().items()}
    entry = {"updates": progress.updates, "minutes": progress.seconds / 60, state.unit: progress.tokens, "loss": loss}
    progress.history.append({**entry, **figures})
    state.write(checkpoint)
    report(progress.history[-1])


class Clock:
    """Training time, kept apart from the time spent measuring and saving.

    With ``workers`` it is the time that many cores have really worked: on a machine that others use too, a schedule by
    the wall clock would be over before anything was learned. Without, it is the wall clock's.
    """

    def __init__(self, progress: Progress, minutes: float, workers: int | None = None) -> None:
        self.progress = progress
        self.limit = 60 * minutes
        self._workers = workers
        self._since = self._now()

    def _now(self) -> float:
        return time.monotonic() if self._workers is None else time.process_time() / self._workers

    def start(self) -> None:
        """Training goes on from here."""
        self._since = self._now()

    def stop(self) -> None:
        """Add the time since ``start``."""
        now = self._now()
        self.progress.seconds += now - self._since
        self._since = now

    @property
    def share(self) -> float:
        """How much of the time allowed is gone, 0 to 1."""
        return min(1.0, self.progress.seconds / self.limit)


def rate(peak: float, share: float, updates: int, warm: int = 40, falling: float = 0.45) -> float:
    """The learning rate when ``share`` of the time is gone: a short warm-up, then constant, then straight down to 2 %."""
    fall = 1.0 if share < 1 - falling else max(0.02, (1 - share) / falling)
    return peak * fall * min(1.0, (updates + 1) / warm)


def show(entry: Mapping[str, float]) -> None:
    """One line of the log."""
    print(time.strftime("%H:%M:%S"), "  ".join(f"{name} {value:.4g}" for name, value in entry.items()), flush=True)


def checkpoint_of(name: str) -> Path:
    """The checkpoint of the training called ``name``."""
    return cache_folder() / "training" / f"{name}.safetensors"


def quantised_file(name: str) -> Path:
    """Where rounded weights lie while they are measured: what ships stays whole until the figures are there."""
    path = checkpoint_of(f"{name}_at_rest")
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def write_checkpoint(path: Path, tensors: Mapping[str, Tensor], progress: Progress) -> None:
    """Write a checkpoint whole or not at all: a training stopped in the middle of it keeps the one before."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_suffix(".new")
    cpu_tensors = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    save_file(cpu_tensors, fresh, metadata={"progress": json.dumps(asdict(progress))})
    os.replace(fresh, path)


def read_checkpoint(path: Path) -> tuple[dict[str, Tensor], Progress]:
    """Tensors and progress of a checkpoint; those of earlier versions call the provenance ``before``."""
    with safe_open(path, framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}
        facts: dict[str, Any] = json.loads((file.metadata() or {})["progress"])
    if "before" in facts:
        facts["provenance"] = facts.pop("before")
    return tensors, Progress(**facts)


def can_resume(resume: bool, checkpoint: Path, provenance: str = "") -> bool:
    """Whether a training goes on from ``checkpoint``. One that was to, finds none and has no other weights to begin with
    (``provenance`` says what was spent on those) starts anew, and says so."""
    exists = checkpoint.is_file()
    if resume and not exists and not provenance:
        print(f"There is no checkpoint {checkpoint.name} to go on from: starting anew.", flush=True)
    return resume and exists


def provenance_of(name: str, weights: Path, resume: bool) -> str:
    """What was spent on the ``weights`` that ship, if a training that goes on begins with them: where it has no checkpoint,
    or its checkpoint says that it did. Empty otherwise."""
    if not resume or not weights.is_file():
        return ""
    if checkpoint_of(name).is_file():
        return read_checkpoint(checkpoint_of(name))[1].provenance
    return read_weights(weights)[1].get("spent", "weights of unknown cost")
