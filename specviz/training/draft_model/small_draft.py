"""``train small_draft``, a small autoregressive draft model: cross-entropy on the target's own answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from specviz.drafters.networks.small_lm import SmallConfig, SmallLM, save
from specviz.models.device import choose_device
from specviz.training.common import data, parallel
from specviz.training.common.agreement import Agreement, chain_agreement, next_token_agreement, overlap
from specviz.training.common.card import card, dialogues_line, print_card
from specviz.training.common.data import IGNORED
from specviz.training.common.loop import Progress, Schedule, Step, TrainState, checkpoint_of, train
from specviz.training.common.optimizer import Optimizer
from specviz.training.common.target_assets import target_assets
from specviz.training.registry import WEIGHTS, Job

DEPTHS = (4, 6)
MEASURED_DIALOGUES = 60
MEASURED_STEPS = 4000
OVERLAP_DIALOGUES = 20


@dataclass(frozen=True)
class Settings(Schedule):
    """An update reads ``batch`` rows of ``length`` tokens, ``part`` rows at a time on each of ``workers`` cores.

    At a ``peak`` of 0.01 and above this network's loss goes up again after a few dozen updates.
    """

    minutes: float = 90.0
    decay: float = 0.02
    every: float = 3.0
    workers: int = 2
    batch: int = 6
    part: int = 1
    length: int = 512


class SmallDraftTraining(TrainState):
    """A small language model, the dialogues it learns from and those kept out."""

    settings: Settings

    def __init__(
        self, model: SmallLM, dialogues: data.Dialogues, markers: data.Markers, training: Sequence[int],
        held_out: Sequence[int], settings: Settings,
    ) -> None:  # fmt: skip
        super().__init__(settings, Optimizer(dict(model.named_parameters())))
        self.model, self.dialogues, self.markers, self.training, self.held_out = model, dialogues, markers, training, held_out
        self.place = data.places_in(model.draft_ids, model.config.vocab_size)
        self.begin()

    def begin(self) -> None:
        """Rows from where a resumed training stopped: another seed rather than hours of skipping."""
        settings = self.settings
        generator = np.random.default_rng([settings.seed, self.progress.updates])
        self.stream = data.rows(self.dialogues, self.training, self.markers, settings.length, generator)

    def settle(self) -> None:
        """What the model folded from its old weights goes with these."""
        self.model.eval()

    def step(self, share: float) -> Step:
        """The next rows' loss and gradients."""
        return self.learn_from([next(self.stream) for _ in range(self.settings.batch)])

    def learn_from(self, batch: Sequence[data.Row]) -> Step:
        """Mean cross-entropy (nats) over answer tokens of the draft vocabulary, and its gradients.

        The head is folded once an update, and its gradient unfolded: it is the dearest product of all.
        """
        model = self.model
        folded = model.head()
        head = folded.detach().requires_grad_()
        ids, labels = examples(batch, self.place)
        scale = 1.0 / int((labels != IGNORED).sum())
        named = {name: value for name, value in self.optimizer.parameters.items() if name != "leave.weight"}

        def loss(start: int) -> Tensor:
            part = slice(start, start + self.settings.part)
            return summed_loss(model, head, ids[part], labels[part]) * scale

        starts = range(0, len(batch), self.settings.part)
        leaf_gradients, value = parallel.gradients(starts, loss, [*named.values(), head], self.settings.workers)
        gradients = dict(zip(named, leaf_gradients, strict=False))
        gradients["leave.weight"] = torch.autograd.grad(folded, model.leave.weight, leaf_gradients[-1])[0]
        return Step(value, sum(int(row.counts.sum()) for row in batch), gradients)

    def measure(self) -> dict[str, float]:
        """Cross-entropy and agreement on held-out answers."""
        return next_token_agreement(self.model, self.dialogues, self.held_out[:100], self.markers, self.place)


def examples(batch: Sequence[data.Row], place: Tensor) -> tuple[Tensor, Tensor]:
    """Ids and labels [row, token]; IGNORED where a token does not count or has no ``place`` in the draft vocabulary."""
    tokens = torch.from_numpy(np.stack([row.tokens for row in batch])).to(place.device)
    counts = torch.from_numpy(np.stack([row.counts for row in batch])).to(place.device)
    return tokens[:, :-1], torch.where(counts, place[tokens[:, 1:]], IGNORED)


def summed_loss(model: SmallLM, head: Tensor, ids: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy (nats) summed over the labels [row, token] that count; ``head`` is the model's, folded."""
    mask = labels != IGNORED
    features = model.features(F.pad(ids[:, :-1], (1, 0)), ids)[mask]
    logits = F.linear(features, head, model.bias)
    return F.cross_entropy(logits.float(), labels[mask], reduction="sum")


def prepare(
    embedding: Tensor, markers: data.Markers, dialogues: data.Dialogues, shape: Mapping[str, int], settings: Settings,
    parts: tuple[list[int], list[int]] | None = None,
) -> SmallDraftTraining:  # fmt: skip
    """A fresh network on the target's ``embedding`` [vocab, hidden], and the data it will see and will not see.

    ``parts`` are the dialogues' numbers to train on and those kept out, None for the usual split.
    """
    torch.manual_seed(settings.seed)
    config = SmallConfig(vocab_size=embedding.shape[0], hidden=embedding.shape[1], **shape)
    training, held_out = data.split(dialogues) if parts is None else parts
    ids, count = data.draft_vocabulary(dialogues, training, config.draft_vocab, config.vocab_size, [markers.end])
    model = SmallLM(config, embedding, torch.from_numpy(ids)).to(embedding.device)
    _initialise(model, torch.from_numpy(count))
    return SmallDraftTraining(model, dialogues, markers, training, held_out, settings)


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


def measure(state: SmallDraftTraining, dialogues: int, depth: int, runs: int) -> Agreement:
    """The final figures: chain drafting simulated on ``dialogues`` held-out greedy answers."""
    greedy = [number for number in state.held_out if state.dialogues.temperature[number] == 0][:dialogues]
    return chain_agreement(state.model, state.dialogues, greedy, state.markers, depth, runs)


def measure_overlap(state: SmallDraftTraining, target: Callable[[Tensor], Tensor], dialogues: int) -> float:
    """Probability of acceptance at temperature 1, on ``dialogues`` held-out answers sampled at temperature 1."""
    sampled = [number for number in state.held_out if state.dialogues.temperature[number] == 1][:dialogues]
    return overlap(state.model, target, state.dialogues, sampled, state.markers)


def export(state: SmallDraftTraining, path: Path, card: Mapping[str, str]) -> None:
    """Write what is shipped: the averaged weights, as :func:`specviz.drafters.networks.small_lm.load` reads them."""
    state.use_average()
    path.parent.mkdir(parents=True, exist_ok=True)
    save(state.model, path, dict(card))


def make(job: Job) -> None:
    """Train, measure on held-out answers, write ``assets/weights/small_draft.safetensors`` and print its card line."""
    file, name = data.find(job.data), job.recipe.name
    assets = target_assets(job.device)
    device = choose_device(job.device)
    torch.set_num_threads(1 if device.type == "cpu" else torch.get_num_threads())  # cores are shared out by rows
    settings = _settings(device, job)
    state = prepare(assets.embedding.to(device), assets.markers, data.read(file), {}, settings)
    print(f"{len(state.training)} dialogues to learn from, {len(state.held_out)} kept out; {settings}", flush=True)
    progress = train(state, checkpoint_of(name))
    agreements = measured(state)
    target = assets.target.model
    accepted = measure_overlap(state, lambda ids: target(ids[None]).logits[0], OVERLAP_DIALOGUES)
    print(f"temperature 1: {accepted:.3f} of single drafts accepted", flush=True)
    path = WEIGHTS / f"{name}.safetensors"
    facts = card(
        name, settings, dialogues_line(file), progress.spent(device.type), figures(progress, agreements, accepted),
        tokenizer_hash=assets.target.tokenizer_hash,
    )  # fmt: skip
    export(state, path, facts)
    print_card(path, facts)


def _settings(device: torch.device, job: Job) -> Settings:
    """A GPU takes wide batches and, with them, a higher rate; a processor gets one row a core at a time."""
    common = {"minutes": job.minutes, "resume": job.resume}
    if device.type == "cuda":
        return Settings(batch=64, part=32, peak=0.006, every=200, workers=1, **common)
    return Settings(workers=parallel.cores(), **common)


def measured(state: SmallDraftTraining) -> dict[int, Agreement]:
    """Chain drafting on the held-out greedy answers, at each depth."""
    agreements = {depth: measure(state, MEASURED_DIALOGUES, depth, MEASURED_STEPS) for depth in DEPTHS}
    for depth, agreement in agreements.items():
        rounded = {name: tuple(round(share, 3) for share in getattr(agreement, name)) for name in ("top1", "top5")}
        print(f"depth {depth}: tau {agreement.tau:.3f} over {agreement.steps} steps, {rounded}", flush=True)
    return agreements


def figures(progress: Progress, agreements: Mapping[int, Agreement], accepted: float) -> dict[str, Any]:
    """The card's figures: of the last milestone, of chains at each depth, and the acceptance at temperature 1."""
    last = progress.history[-1] if progress.history else {}
    deepest = agreements[max(agreements)]
    return {
        **{key: last[key] for key in ("held_out", "top1", "top5") if key in last},
        **{f"tau_depth_{depth}": round(agreement.tau, 3) for depth, agreement in agreements.items()},
        "top1_by_depth": [round(share, 3) for share in deepest.top1],
        "top5_by_depth": [round(share, 3) for share in deepest.top5],
        "accepted_at_temperature_1": round(accepted, 3),
        "repetition": round(deepest.repetition, 3),
    }
