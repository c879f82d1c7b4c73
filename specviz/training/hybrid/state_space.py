"""The loop of the state-space recipes: next-token cross-entropy for the target, the target's own distribution for its drafter."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from specviz.training.common import trainer
from specviz.training.common.optimizer import Optimizer
from specviz.training.hybrid.state_space_data import Corpus, rows
from specviz.training.hybrid.state_space_net import CHUNK, hidden_states

Loss = Callable[[Tensor], Tensor]
"""Tokens [batch, token + 1] to the summed loss."""


@dataclass(frozen=True)
class Settings:
    """An update reads ``batch`` rows of ``length`` tokens, ``part`` rows at a time on each of ``workers`` cores."""

    minutes: float = 24.0
    batch: int = 6
    part: int = 6
    length: int = 6 * CHUNK
    peak: float = 0.006
    decay: float = 0.02
    every: int = 100
    workers: int = 1
    seed: int = 0
    resume: bool = False


class HalfOptimizer(Optimizer):
    """Orthogonalises in bfloat16 where the device is made for it, and reads all that is no matrix of a layer as a vector."""

    def __init__(self, model: Any) -> None:
        self.device = next(model.parameters()).device
        embedding = model.get_input_embeddings().weight
        parts = {}
        for name, value in model.named_parameters():
            plain = value.detach() if value.ndim == 2 and value is not embedding else value.detach().view(-1)
            parts[name] = plain
        super().__init__(parts)

    def _muon(self, name: str, gradient: Tensor) -> Tensor:
        with trainer.arithmetic(self.device):
            return super()._muon(name, gradient).float()


@dataclass
class Bench:
    """All that one training works on."""

    model: Any
    corpus: Corpus
    loss: Loss
    optimizer: HalfOptimizer
    device: torch.device


def next_token_loss(model: Any) -> Loss:
    """Cross-entropy in nats, summed over tokens."""

    def loss(tokens: Tensor) -> Tensor:
        return F.cross_entropy(_logits(model, tokens).flatten(0, 1), tokens[:, 1:].flatten(), reduction="sum")

    return loss


def imitation_loss(model: Any, teacher: Any) -> Loss:
    """Kullback-Leibler divergence from the teacher's distribution at temperature 1, summed over tokens: weight 1, and no other
    term."""

    def loss(tokens: Tensor) -> Tensor:
        with torch.no_grad():
            distribution = _logits(teacher, tokens).log_softmax(-1)
        own = _logits(model, tokens).log_softmax(-1)
        return F.kl_div(own, distribution, log_target=True, reduction="sum")

    return loss


def _logits(model: Any, tokens: Tensor) -> Tensor:
    """tokens [batch, token + 1] to float32 logits [batch, token, vocab] of the next token."""
    with trainer.arithmetic(tokens.device):
        hidden = hidden_states(model, tokens[:, :-1])
        return F.linear(hidden, model.get_output_embeddings().weight).float()


def update(bench: Bench, batch: Sequence[np.ndarray], rate: float, settings: Settings) -> float:
    """One update; the mean loss over its tokens."""
    tokens = torch.from_numpy(np.stack(batch)).to(bench.device)
    scale = 1.0 / tokens[:, 1:].numel()
    named = dict(bench.model.named_parameters())
    starts = range(0, len(batch), settings.part)
    found, value = trainer.gradients(
        starts,
        lambda start: bench.loss(tokens[start : start + settings.part]) * scale,
        list(named.values()),
        settings.workers,
    )
    own = bench.optimizer.parameters
    gradients = {name: one.view_as(own[name]) for name, one in zip(named, found, strict=True)}
    norm = torch.stack([one.norm() for one in gradients.values()]).norm()
    bench.optimizer.step({name: one / norm.clamp_min(1.0) for name, one in gradients.items()}, rate, settings.decay)
    return value


def train(bench: Bench, settings: Settings, checkpoint: Path, report: trainer.Report) -> trainer.Progress:
    """Train until the minutes of work are spent; the averaged weights end up in the model."""
    progress = trainer.Progress()
    if trainer.goes_on(settings.resume, checkpoint):
        progress = _resume(bench, checkpoint)
    clock = trainer.Clock(progress, settings.minutes, settings.workers if bench.device.type == "cpu" else None)
    stream = rows(bench.corpus.training, settings.length, np.random.default_rng([settings.seed, progress.updates]))
    clock.start()
    recent: list[float] = []
    while clock.share < 1:
        batch = [next(stream) for _ in range(settings.batch)]
        recent.append(update(bench, batch, trainer.rate(settings.peak, clock.share, progress.updates), settings))
        progress.updates += 1
        progress.tokens += settings.batch * settings.length
        clock.stop()
        if progress.updates % settings.every == 0 or clock.share >= 1:
            _milestone(bench, settings, checkpoint, progress, float(np.mean(recent)), report)
            recent = []
            clock.start()
    _put(bench, bench.optimizer.averaged())
    return progress


def _milestone(
    bench: Bench, settings: Settings, checkpoint: Path, progress: trainer.Progress, loss: float, report: trainer.Report
) -> None:
    own = {name: value.clone() for name, value in bench.optimizer.parameters.items()}
    _put(bench, bench.optimizer.averaged())
    found = held_out_loss(bench, settings, 24)
    _put(bench, own)
    entry = {"updates": progress.updates, "minutes": progress.seconds / 60, "tokens": progress.tokens, "loss": loss}
    progress.history.append({**entry, "held_out": found})
    trainer.write_checkpoint(checkpoint, _state(bench), progress)
    report(progress.history[-1])


@torch.no_grad()
def held_out_loss(bench: Bench, settings: Settings, many: int) -> float:
    """Mean loss a token over ``many`` rows of held-out dialogues."""
    stream = rows(bench.corpus.held_out, settings.length, np.random.default_rng(0))
    found = [float(bench.loss(torch.from_numpy(next(stream))[None].to(bench.device))) for _ in range(many)]
    return float(np.mean(found)) / settings.length


def _put(bench: Bench, weights: Mapping[str, Tensor]) -> None:
    with torch.no_grad():
        for name, value in bench.optimizer.parameters.items():
            value.copy_(weights[name])


def _state(bench: Bench) -> dict[str, Tensor]:
    return {f"weight.{name}": value for name, value in bench.optimizer.parameters.items()} | bench.optimizer.state


def _resume(bench: Bench, checkpoint: Path) -> trainer.Progress:
    tensors, progress = trainer.read_checkpoint(checkpoint)
    with torch.no_grad():
        for name, value in _state(bench).items():
            value.copy_(tensors[name])
    bench.optimizer.updates = progress.updates
    return progress


@torch.no_grad()
def agreement(bench: Bench, teacher: Any, settings: Settings, many: int) -> dict[str, float]:
    """How often the teacher's likeliest next token is the drafter's, or among its four likeliest, on held-out rows."""
    stream = rows(bench.corpus.held_out, settings.length, np.random.default_rng(0))
    best = four = 0.0
    for _ in range(many):
        tokens = torch.from_numpy(next(stream))[None].to(bench.device)
        wanted = _logits(teacher, tokens).argmax(-1, keepdim=True)
        offered = _logits(bench.model, tokens).topk(4, dim=-1).indices
        best += float((offered[..., :1] == wanted).float().mean())
        four += float((offered == wanted).any(-1).float().mean())
    return {"top1": best / many, "top4": four / many}
