"""The training loop of masked language models: lessons in, weights out, whatever of the network is learned."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from specviz.drafters.networks.masked_lm import MaskedLM
from specviz.training.common import trainer
from specviz.training.common.optimizer import Optimizer
from specviz.training.diffusion.masking import Masked
from specviz.training.draft_model.small_draft import IGNORED


@dataclass(frozen=True)
class Settings:
    """What may be changed from run to run.

    ``minutes`` of ``workers`` cores at work; an update reads ``batch`` texts, ``part`` at a time on each of ``workers`` cores.
    ``half`` computes in bfloat16, which pays where the processor can; ``warm`` updates go before the full rate.
    """

    minutes: float = 16.0
    batch: int = 16
    part: int = 8
    peak: float = 0.003
    warm: int = 40
    decay: float = 0.01
    average: float = 0.98
    every: int = 200
    workers: int = 1
    half: bool = True
    seed: int = 0
    resume: bool = False


@dataclass
class Bench:
    """All that one training works on.

    ``leaves`` are the network's tensors whose gradients are wanted, ``learn`` makes of these what the optimizer moves,
    ``put`` writes given weights (None: the optimizer's own) into the network. ``lessons(update)`` goes on from there.
    """

    model: MaskedLM
    place: Tensor
    """[vocab] a token's place in the draft vocabulary, IGNORED where it has none."""
    optimizer: Optimizer
    leaves: Sequence[Tensor]
    learn: Callable[[Sequence[Tensor]], dict[str, Tensor]]
    put: Callable[[Mapping[str, Tensor] | None], None]
    lessons: Callable[[int], Iterator[list[Masked]]]
    measure: Callable[[], Mapping[str, float]]


def places(draft_ids: Tensor, vocab: int) -> Tensor:
    """int64 [vocab]: where each token is in the draft vocabulary, IGNORED where it is not."""
    found = torch.full((vocab,), IGNORED, dtype=torch.long, device=draft_ids.device)
    found[draft_ids] = torch.arange(len(draft_ids), device=draft_ids.device)
    return found


def loss(model: MaskedLM, place: Tensor, masked: Masked, half: bool) -> tuple[Tensor, int]:
    """Weighted cross-entropy (nats) of the hidden tokens that the draft vocabulary has, and how many there are."""
    device = place.device
    ids, blank, weight = (part.to(device) for part in (masked.ids, masked.blank, masked.weight))
    label = place[ids[:, 1:]]
    asked = blank[:, 1:] & (label != IGNORED) & (weight[:, 1:] > 0)
    with torch.autocast(device.type, torch.bfloat16, enabled=half):
        seen = None if masked.seen is None else masked.seen.to(device)
        found = model.features(ids, blank, seen)[:, :-1][asked]
        logits = F.linear(found, model.head(), model.bias)
    each = F.cross_entropy(logits.float(), label[asked], reduction="none")
    return (each * weight[:, 1:][asked]).sum(), int(asked.sum())


def update(bench: Bench, batch: Sequence[Masked], rate: float, settings: Settings) -> tuple[float, int]:
    """One update: the loss, and how many tokens were asked for."""
    counted: list[int] = []

    def one(part: Masked) -> Tensor:
        value, tokens = loss(bench.model, bench.place, part, settings.half)
        counted.append(tokens)
        return value

    found, value = trainer.gradients(list(batch), one, bench.leaves, settings.workers)
    bench.optimizer.step(bench.learn(found), rate, settings.decay)
    bench.put(None)
    return value, sum(counted)


def train(bench: Bench, settings: Settings, checkpoint: Path, report: trainer.Report) -> trainer.Progress:
    """Train until the minutes are spent, saving and measuring on the way; the averaged weights end up in the network."""
    progress = trainer.Progress()
    if trainer.goes_on(settings.resume, checkpoint):
        progress = _resume(bench, checkpoint)
    clock = trainer.Clock(progress, settings.minutes, settings.workers)
    lessons = bench.lessons(progress.updates)
    recent: list[float] = []
    bench.put(None)
    clock.start()
    while clock.share < 1:
        rate = trainer.rate(settings.peak, clock.share, progress.updates, settings.warm)
        value, tokens = update(bench, next(lessons), rate, settings)
        recent.append(value)
        progress.updates += 1
        progress.tokens += tokens
        clock.stop()
        if progress.updates % settings.every == 0:
            _milestone(bench, checkpoint, progress, float(np.mean(recent)), report)
            recent = []
            clock.start()
    if recent:
        _milestone(bench, checkpoint, progress, float(np.mean(recent)), report)
    bench.put(bench.optimizer.averaged())
    bench.model.eval()
    return progress


def _milestone(bench: Bench, checkpoint: Path, progress: trainer.Progress, value: float, report: trainer.Report) -> None:
    bench.put(bench.optimizer.averaged())
    bench.model.eval()  # the folded head goes with the old weights
    found = bench.measure()
    bench.model.train()
    bench.put(None)
    entry = {"updates": progress.updates, "minutes": progress.seconds / 60, "tokens": progress.tokens, "loss": value}
    progress.history.append({**entry, **found})
    trainer.write_checkpoint(checkpoint, _state(bench), progress)
    report(progress.history[-1])


def _state(bench: Bench) -> dict[str, Tensor]:
    return {f"weight.{name}": value for name, value in bench.optimizer.parameters.items()} | bench.optimizer.state


def _resume(bench: Bench, checkpoint: Path) -> trainer.Progress:
    tensors, progress = trainer.read_checkpoint(checkpoint)
    with torch.no_grad():
        for name, value in _state(bench).items():
            value.copy_(tensors[name])
    bench.optimizer.updates = progress.updates
    return progress
