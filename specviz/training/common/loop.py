"""The loop the image recipes share: updates by the clock, checkpoints that resume, an early export on the way."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from specviz.drafters.networks.weights import read_weights
from specviz.models.device import cpu_has_bfloat16
from specviz.models.hub.cache_dir import cache_folder
from specviz.training.common.optimizer import Optimizer
from specviz.training.common.trainer import Clock, Progress, goes_on, rate, read_checkpoint, write_checkpoint

Step = Callable[[float], Mapping[str, float]]
"""Told the share of time gone; leaves gradients on the parameters, gives what to log."""


@dataclass(frozen=True)
class Plan:
    """``minutes`` of training in all, on a processor those it really worked; ``peak`` learning rate; seconds between reports.
    ``workers`` threads share an update, each with torch at one; none where torch shares each operation itself."""

    minutes: float
    peak: float
    decay: float = 0.0
    report: float = 30.0
    save: float = 60.0
    average: float = 0.99
    workers: int | None = None


class Training:
    """Parameters by name, how they are updated, and where they are kept between two sittings."""

    def __init__(
        self, name: str, parameters: Mapping[str, nn.Parameter], plan: Plan, resume: bool, kept: Mapping[str, Tensor],
        before: str = "",
    ) -> None:  # fmt: skip
        """``kept`` are further tensors that belong to the checkpoint and change in place. ``before`` says what was spent on
        the weights that the parameters begin with."""
        self.plan, self.kept = plan, dict(kept)
        self.leaves = dict(parameters)
        flat = {key: _flat(value.data) for key, value in self.leaves.items()}
        inner = torch.bfloat16 if cpu_has_bfloat16() else None
        self.optimizer = Optimizer(flat, average=plan.average, rough=inner)
        self.progress = Progress(before=before)
        self.file = checkpoint_of(name)
        if goes_on(resume, self.file, before):
            self._read()

    def run(self, step: Step, look: Callable[[], Mapping[str, float]], export: Callable[[], None]) -> Progress:
        """Train until the time is gone. ``look`` measures, ``export`` writes weights that can be used already."""
        on_processor = next(iter(self.leaves.values())).device.type == "cpu"
        cores = (self.plan.workers or torch.get_num_threads()) if on_processor else None
        clock = Clock(self.progress, self.plan.minutes, cores)
        shown = saved = self.progress.seconds
        clock.start()
        while clock.share < 1:
            logged = dict(step(clock.share))
            self.move(clock.share)
            clock.stop()
            if self.progress.seconds - shown > self.plan.report or clock.share >= 1:
                shown = self.progress.seconds
                self._show({**logged, **look()})
            if self.progress.seconds - saved > self.plan.save or clock.share >= 1:
                saved = self.progress.seconds
                self.write()
                export()
            clock.start()
        return self.progress

    def move(self, share: float) -> None:
        """One update from the gradients that are there."""
        gradients = {key: _flat(value.grad) for key, value in self.leaves.items() if value.grad is not None}
        now = rate(self.plan.peak, share, self.progress.updates)
        self.optimizer.step(gradients, now, self.plan.decay, self.plan.workers or 1)
        for value in self.leaves.values():
            value.grad = None
        self.progress.updates += 1

    def averaged(self) -> dict[str, Tensor]:
        """The weights averaged over the last updates, in their own shapes."""
        return {key: value.view_as(self.leaves[key]) for key, value in self.optimizer.averaged().items()}

    def write(self) -> None:
        """Keep everything that going on needs."""
        held = {f"weight.{key}": value.data for key, value in self.leaves.items()}
        held |= {f"state.{key}": value for key, value in self.optimizer.state.items()}
        write_checkpoint(self.file, held | {f"kept.{key}": value for key, value in self.kept.items()}, self.progress)

    def _read(self) -> None:
        held, self.progress = read_checkpoint(self.file)
        with torch.no_grad():
            for key, value in self.leaves.items():
                value.data.copy_(held[f"weight.{key}"])
            for group, targets in (("state", self.optimizer.state), ("kept", self.kept)):
                for key, value in targets.items():
                    value.copy_(held[f"{group}.{key}"])
        self.optimizer.updates = self.progress.updates
        print(f"going on after {self.progress.seconds / 60:.1f} minutes, {self.progress.updates} updates", flush=True)

    def _show(self, entry: Mapping[str, float]) -> None:
        facts = {"minutes": self.progress.seconds / 60, "updates": self.progress.updates, **entry}
        print(time.strftime("%H:%M:%S"), "  ".join(f"{key} {value:.4g}" for key, value in facts.items()), flush=True)


def checkpoint_of(name: str) -> Path:
    """Where a training that was stopped goes on from."""
    return cache_folder() / "training" / f"{name}.safetensors"


def spent_before(name: str, weights: Path, resume: bool) -> str:
    """What was spent on the ``weights`` that ship, if a training that goes on begins with them: where it has no checkpoint,
    or its checkpoint says that it did. Empty otherwise."""
    if not resume or not weights.is_file():
        return ""
    if checkpoint_of(name).is_file():
        return read_checkpoint(checkpoint_of(name))[1].before
    return read_weights(weights)[1].get("spent", "weights of unknown cost")


def _flat(value: Tensor) -> Tensor:
    """Convolutions as matrices [out, in * place], so that they are updated as matrices are."""
    return value if value.ndim < 2 else value.view(len(value), -1)


def named(model: nn.Module, *prefixes: str) -> dict[str, nn.Parameter]:
    """The parameters of ``model`` whose names start with one of ``prefixes``, all contiguous."""
    found = {key: value for key, value in model.named_parameters() if key.startswith(prefixes or "")}
    for value in found.values():
        value.data = value.data.contiguous()
    return found


def card(recipe: str, data: str, progress: Progress, metrics: Mapping[str, float], **more: str) -> dict[str, str]:
    """What travels inside a file of weights."""
    from specviz.training.common.commit import commit

    now = f"{progress.seconds / 60:.1f} minutes, {progress.updates} updates"
    return {
        "recipe": f"python -m specviz train {recipe}",
        "data": data,
        "licence": "Apache-2.0; learned from Noto Emoji (Apache-2.0), Twemoji (CC-BY 4.0), Fluent Emoji (MIT)",
        "spent": f"{progress.before}, then {now}" if progress.before else now,
        "metrics": "; ".join(f"{name} {value:.4g}" for name, value in metrics.items()),
        "commit": commit(),
        **more,
    }


def weights_file(folder: Path, recipe: str) -> Path:
    """Where a recipe's weights go."""
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"{recipe}.safetensors"
