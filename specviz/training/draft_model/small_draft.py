"""Recipe of the small draft model: cross-entropy on the target's own answers, read through its embedding."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from specviz.drafters.networks.small_lm import SmallConfig, SmallLM, save
from specviz.training.common import data, trainer
from specviz.training.common.agreement import Agreement, chain_agreement, next_token_agreement, overlap
from specviz.training.common.optimizer import Optimizer

IGNORED = -100


@dataclass(frozen=True)
class Settings:
    """What may be changed from run to run.

    ``minutes`` of training time; an update reads ``batch`` rows of ``length`` tokens, ``part`` rows at a time on each
    of ``workers`` cores. At a ``peak`` of 0.01 and above this network's loss goes up again after a few dozen updates.
    """

    minutes: float = 90.0
    batch: int = 6
    part: int = 1
    length: int = 512
    peak: float = 0.004
    decay: float = 0.02
    every: int = 100
    workers: int = 2
    seed: int = 0
    resume: bool = False


@dataclass
class Bench:
    """All that one training works on."""

    model: SmallLM
    dialogues: data.Dialogues
    markers: data.Markers
    training: Sequence[int]
    held_out: Sequence[int]
    to_draft: Tensor
    """[vocab] a token's place in the draft vocabulary, IGNORED where it has none."""
    optimizer: Optimizer


def prepare(
    embedding: Tensor, markers: data.Markers, dialogues: data.Dialogues, shape: Mapping[str, int], seed: int,
    parts: tuple[list[int], list[int]] | None = None,
) -> Bench:  # fmt: skip
    """A fresh network on the target's ``embedding`` [vocab, hidden], and the data it will see and will not see.

    ``parts`` are the dialogues' numbers to train on and those kept out, None for the usual split.
    """
    torch.manual_seed(seed)
    config = SmallConfig(vocab_size=embedding.shape[0], hidden=embedding.shape[1], **shape)
    training, held_out = data.split(dialogues) if parts is None else parts
    ids, count = data.draft_vocabulary(dialogues, training, config.draft_vocab, config.vocab_size, [markers.end])
    model = SmallLM(config, embedding, torch.from_numpy(ids)).to(embedding.device)
    _initialise(model, torch.from_numpy(count))
    to_draft = torch.full((config.vocab_size,), IGNORED, dtype=torch.long, device=embedding.device)
    to_draft[model.draft_ids] = torch.arange(len(ids), device=embedding.device)
    optimizer = Optimizer(dict(model.named_parameters()))
    return Bench(model, dialogues, markers, training, held_out, to_draft, optimizer)


def _initialise(model: SmallLM, count: Tensor) -> None:
    """Silent layers and a head that only knows word counts: training starts from a unigram model, not from noise."""
    with torch.no_grad():
        scale = float(model.embedding[model.draft_ids].std()) * model.enter.weight.shape[1] ** 0.5
        model.enter.weight.normal_(std=1.0 / scale)
        model.leave.weight.zero_()
        model.bias.copy_(torch.log((count.float() + 1) / (count.sum() + len(count))))
        for block in model.blocks:
            for layer in (block.qkv, block.up):
                layer.weight.normal_(std=model.config.width**-0.5)
            block.out.weight.zero_()
            block.down.weight.zero_()


def update(bench: Bench, batch: Sequence[data.Row], rate: float, settings: Settings) -> float:
    """One update on ``batch``; the mean cross-entropy (nats) over answer tokens of the draft vocabulary."""
    device = bench.to_draft.device
    folded = bench.model.head()
    head = folded.detach().requires_grad_()
    tokens = torch.from_numpy(np.stack([row.tokens for row in batch])).to(device)
    counts = torch.from_numpy(np.stack([row.counts for row in batch])).to(device)
    labels = torch.where(counts, bench.to_draft[tokens[:, 1:]], IGNORED)
    scale = 1.0 / int((labels != IGNORED).sum())
    named = {name: value for name, value in bench.optimizer.parameters.items() if name != "leave.weight"}

    def loss(start: int) -> Tensor:
        part = slice(start, start + settings.part)
        wanted = labels[part] != IGNORED
        previous, ids = _inputs(tokens[part])
        features = bench.model.features(previous, ids)[wanted]
        logits = F.linear(features, head, bench.model.bias)
        return F.cross_entropy(logits.float(), labels[part][wanted], reduction="sum") * scale

    starts = range(0, len(batch), settings.part)
    found, value = trainer.gradients(starts, loss, [*named.values(), head], settings.workers)
    gradients = dict(zip(named, found, strict=False))
    gradients["leave.weight"] = torch.autograd.grad(folded, bench.model.leave.weight, found[-1])[0]
    bench.optimizer.step(gradients, rate, settings.decay)
    return value


def _inputs(tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Tokens [row, token + 1] to the network's input and the token before each, [row, token]."""
    ids = tokens[:, :-1]
    return F.pad(ids[:, :-1], (1, 0)), ids


def train(bench: Bench, settings: Settings, checkpoint: Path, report: trainer.Report) -> trainer.Progress:
    """Train until the minutes are spent, saving and measuring on the way; the averaged weights end up in the model."""
    progress = trainer.Progress()
    if trainer.goes_on(settings.resume, checkpoint):
        progress = _resume(bench, checkpoint)
    clock = trainer.Clock(progress, settings.minutes)
    stream = _stream(bench, settings, progress.updates)
    clock.start()
    recent: list[float] = []
    while clock.share < 1:
        batch = [next(stream) for _ in range(settings.batch)]
        rate = trainer.rate(settings.peak, clock.share, progress.updates)
        recent.append(update(bench, batch, rate, settings))
        progress.updates += 1
        progress.tokens += sum(int(row.counts.sum()) for row in batch)
        clock.stop()
        if progress.updates % settings.every == 0:
            _milestone(bench, checkpoint, progress, float(np.mean(recent)), report)
            recent = []
            clock.start()
    if recent:
        _milestone(bench, checkpoint, progress, float(np.mean(recent)), report)
    use_average(bench)
    return progress


def _milestone(bench: Bench, checkpoint: Path, progress: trainer.Progress, loss: float, report: trainer.Report) -> None:
    own = {name: value.detach().clone() for name, value in bench.optimizer.parameters.items()}
    use_average(bench)
    found = next_token_agreement(bench.model, bench.dialogues, bench.held_out[:100], bench.markers, bench.to_draft)
    _put(bench, own)
    entry = {"updates": progress.updates, "minutes": progress.seconds / 60, "tokens": progress.tokens, "loss": loss}
    progress.history.append({**entry, **found})
    trainer.write_checkpoint(checkpoint, _state(bench), progress)
    report(progress.history[-1])


def measure(bench: Bench, dialogues: int, depth: int, runs: int) -> Agreement:
    """The final figures: chain drafting simulated on ``dialogues`` held-out greedy answers."""
    greedy = [number for number in bench.held_out if bench.dialogues.temperature[number] == 0][:dialogues]
    return chain_agreement(bench.model, bench.dialogues, greedy, bench.markers, depth, runs)


def measure_overlap(bench: Bench, target: Callable[[Tensor], Tensor], dialogues: int) -> float:
    """Probability of acceptance at temperature 1, on ``dialogues`` held-out answers sampled at temperature 1."""
    sampled = [number for number in bench.held_out if bench.dialogues.temperature[number] == 1][:dialogues]
    return overlap(bench.model, target, bench.dialogues, sampled, bench.markers)


def export(bench: Bench, path: Path, card: Mapping[str, str]) -> None:
    """Write what is shipped: the averaged weights, as :func:`specviz.drafters.networks.small_lm.load` reads them."""
    use_average(bench)
    path.parent.mkdir(parents=True, exist_ok=True)
    save(bench.model, path, dict(card))


def use_average(bench: Bench) -> None:
    """Put the averaged weights into the model."""
    _put(bench, bench.optimizer.averaged())


def _put(bench: Bench, weights: Mapping[str, Tensor]) -> None:
    with torch.no_grad():
        for name, value in bench.optimizer.parameters.items():
            value.copy_(weights[name])
    bench.model.eval()  # what the model folded from its old weights goes with this


def _state(bench: Bench) -> dict[str, Tensor]:
    return {f"weight.{name}": value for name, value in bench.optimizer.parameters.items()} | bench.optimizer.state


def _resume(bench: Bench, checkpoint: Path) -> trainer.Progress:
    tensors, progress = trainer.read_checkpoint(checkpoint)
    with torch.no_grad():
        for name, value in _state(bench).items():
            value.copy_(tensors[name])
    bench.optimizer.updates = progress.updates
    return progress


def _stream(bench: Bench, settings: Settings, updates: int) -> Iterator[data.Row]:
    """Rows from where a resumed training stopped: another seed rather than hours of skipping."""
    generator = np.random.default_rng([settings.seed, updates])
    return data.rows(bench.dialogues, bench.training, bench.markers, settings.length, generator)
