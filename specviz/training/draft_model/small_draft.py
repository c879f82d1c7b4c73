"""``train small_draft``, a small autoregressive draft model that learns what the target thinks of each token of its answers.

The target's distribution is read off the hidden states that the feature store keeps, so that one token teaches as much as many
would by themselves (DistillSpec, Zhou et al. 2024, arXiv 2310.08461). Where a target's states are not at hand,
:class:`SmallDraftTraining` learns from the tokens alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from specviz.drafters.networks.small_lm import SmallConfig, SmallLM, load, save
from specviz.training.common import data, parallel
from specviz.training.common.agreement import Agreement, chain_agreement, next_token_agreement, overlap
from specviz.training.common.card import print_card
from specviz.training.common.data import IGNORED
from specviz.training.common.features import DialogueFeatures, FeatureStore
from specviz.training.common.loop import Progress, Schedule, Step, TrainState, checkpoint_of, provenance_of, train
from specviz.training.common.optimizer import Optimizer
from specviz.training.feature.recipes import DialogueTraining, Measure, card_of, gather, learning, settings_for, visited
from specviz.training.feature.recipes import Settings as FeatureSettings
from specviz.training.registry import WEIGHTS, Job

PEAK, DECAY = 0.004, 0.1
BATCH, TOGETHER = 16, 4
"""Dialogues of an update on a processor, and those of them that are read in one pass."""
DEPTHS = (4, 6)
MEASURED_DIALOGUES = 60
MEASURED_STEPS = 4000
OVERLAP_DIALOGUES = 20

Part = TypeVar("Part")


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
        """Mean cross-entropy (nats) over answer tokens of the draft vocabulary, and its gradients."""
        ids, labels = examples(batch, self.place)
        scale = 1.0 / int((labels != IGNORED).sum())

        def loss(start: int, head: Tensor) -> Tensor:
            part = slice(start, start + self.settings.part)
            return summed_loss(self.model, head, ids[part], labels[part]) * scale

        starts = range(0, len(batch), self.settings.part)
        gradients, value = folded_gradients(self.model, starts, loss, self.settings.workers)
        return Step(value, sum(int(row.counts.sum()) for row in batch), gradients)

    def measure(self) -> dict[str, float]:
        """Cross-entropy and agreement on held-out answers."""
        return next_token_agreement(self.model, self.dialogues, self.held_out[:100], self.markers, self.place)


def folded_gradients(
    model: SmallLM, parts: Sequence[Part], loss: Callable[[Part, Tensor], Tensor], workers: int
) -> tuple[dict[str, Tensor], float]:
    """Gradients by parameter and the summed loss of ``parts``, each told the head that is folded into the draft's width.

    It is folded once an update, and its gradient unfolded: it would be the dearest product of all.
    """
    folded = model.head()
    head = folded.detach().requires_grad_()
    named = {name: value for name, value in model.named_parameters() if name != "leave.weight"}
    leaf_gradients, value = parallel.gradients(parts, lambda part: loss(part, head), [*named.values(), head], workers)
    gradients = dict(zip(named, leaf_gradients, strict=False))
    gradients["leave.weight"] = torch.autograd.grad(folded, model.leave.weight, leaf_gradients[-1])[0]
    return gradients, value


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
    training, held_out = data.split(dialogues) if parts is None else parts
    model = fresh(embedding, markers, dialogues, training, shape, settings.seed)
    return SmallDraftTraining(model, dialogues, markers, training, held_out, settings)


def fresh(
    embedding: Tensor, markers: data.Markers, dialogues: data.Dialogues, training: Sequence[int], shape: Mapping[str, int],
    seed: int,
) -> SmallLM:  # fmt: skip
    """A network on the target's ``embedding`` [vocab, hidden] that knows how often the training answers use each token."""
    torch.manual_seed(seed)
    config = SmallConfig(vocab_size=embedding.shape[0], hidden=embedding.shape[1], **shape)
    ids, count = data.draft_vocabulary(dialogues, training, config.draft_vocab, config.vocab_size, [markers.end])
    model = SmallLM(config, embedding, torch.from_numpy(ids)).to(embedding.device)
    _initialise(model, torch.from_numpy(count))
    return model


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


def export(state: SmallDraftTraining, path: Path, card: Mapping[str, str]) -> None:
    """Write what is shipped: the averaged weights, as :func:`specviz.drafters.networks.small_lm.load` reads them."""
    state.use_average()
    path.parent.mkdir(parents=True, exist_ok=True)
    save(state.model, path, dict(card))


class Distillation(DialogueTraining):
    """A draft model that learns the target's distributions. Dialogues of like length are read together: at this width a
    dialogue by itself is too little work for the products to be what takes the time."""

    net: SmallLM

    def __init__(
        self, net: SmallLM, store: FeatureStore, training: Sequence[int], held_out: Sequence[int], settings: FeatureSettings,
        measured: Measure,
    ) -> None:  # fmt: skip
        self.frozen = net.embedding[net.draft_ids]
        parallel.keep_cast(self.frozen)
        self.place = data.places_in(net.draft_ids, net.config.vocab_size)
        super().__init__(net, store, training, held_out, settings, measured)

    def settle(self) -> None:
        """What the model folded from its old weights goes with these."""
        self.net.eval()

    def learn_from(self, batch: Sequence[int]) -> Step:
        """Loss and gradients of these dialogues, by answer token."""
        answers = sum(len(self.store.dialogues.answer(number)) for number in batch)
        by_length = sorted(batch, key=lambda number: len(self.store.dialogues.of(number)))
        together = max(TOGETHER, self.settings.together)
        parts = [by_length[place : place + together] for place in range(0, len(by_length), together)]

        def loss(numbers: Sequence[int], head: Tensor) -> Tensor:
            return distilled(self.net, head, self.frozen, self.place, self.store.get(numbers)) / answers

        gradients, value = folded_gradients(self.net, parts, loss, self.settings.workers)
        return Step(value, answers, gradients)


def distilled(
    model: SmallLM, head: Tensor, frozen: Tensor, place: Tensor, dialogues: Sequence[DialogueFeatures]
) -> Tensor:  # fmt: skip
    """Cross-entropy (nats) to the target's distribution over the draft vocabulary, summed over the answers' tokens that are in
    it. ``head`` [draft, width] gives the draft's logits, ``frozen`` [draft, hidden] the target's; ``place`` [vocab] is a token's
    place in the draft vocabulary."""
    ids = pad_sequence([dialogue.tokens[:-1] for dialogue in dialogues], batch_first=True)
    ids = F.pad(ids, (0, -ids.shape[1] % 32))
    # One index over all answers: a mask a dialogue would make a GPU's host wait twice for each of them.
    answers = torch.cat([dialogue.tokens[dialogue.first :] for dialogue in dialogues])
    inside = (place[answers] != IGNORED).nonzero()[:, 0]
    with torch.no_grad():
        thoughts = torch.cat([dialogue.features[dialogue.first - 1 : -1, -1] for dialogue in dialogues])
        distribution = parallel.evenly(partial(F.linear, weight=frozen), thoughts[inside]).softmax(-1)
    features = model.features(F.pad(ids[:, :-1], (1, 0)), ids)
    rows = [row[dialogue.first - 1 : len(dialogue.tokens) - 1] for row, dialogue in zip(features, dialogues, strict=True)]
    logits = parallel.evenly(partial(F.linear, weight=head, bias=model.bias), torch.cat(rows)[inside])
    return F.cross_entropy(logits.float(), distribution.float(), reduction="sum")


def make(job: Job) -> None:
    """Train, measure on held-out answers, write ``assets/weights/small_draft.safetensors`` and print its card line."""
    inputs = gather(job)
    settings = settings_for(job, inputs, peak=PEAK, decay=DECAY, batch=BATCH)
    dialogues, markers = inputs.store.dialogues, inputs.assets.markers
    shape = {"draft_vocab": len(inputs.draft_ids)}
    path = WEIGHTS / f"{job.recipe.name}.safetensors"
    provenance = provenance_of(job.recipe.name, path, settings.resume)
    if provenance:
        print(f"Going on from {path.name}: {provenance}", flush=True)
        model = load(path, inputs.assets.embedding, torch.float32, inputs.device).requires_grad_(True)
    else:
        model = fresh(inputs.assets.embedding, markers, dialogues, inputs.training, shape, settings.seed)
    state = Distillation(
        model, inputs.store, inputs.training, inputs.judged_on, settings,
        lambda numbers: _milestone(chain_agreement(on_host(model), dialogues, numbers, markers, DEPTHS[0], MEASURED_STEPS)),
    )  # fmt: skip
    print(f"{len(state.training)} dialogues to learn from, {len(inputs.held_out)} kept out; {settings}", flush=True)
    progress = train(state, checkpoint_of(job.recipe.name), provenance=provenance)
    agreements = {depth: _agreement(state, depth) for depth in DEPTHS}
    sampled = data.sampled_only(dialogues, inputs.held_out)[:OVERLAP_DIALOGUES]
    target = inputs.assets.target.model
    target_logits = lambda ids: target(ids[None].to(inputs.device)).logits[0].cpu()  # noqa: E731
    accepted = overlap(on_host(model), target_logits, dialogues, sampled, markers)
    print(f"temperature 1: {accepted:.3f} of single drafts accepted", flush=True)
    named = figures(progress, agreements, accepted) | learning(state, progress)
    read = visited(state.training, settings, progress)
    tokens = sum(len(dialogues.answer(number)) for number in read)
    facts = card_of(job, inputs, settings, progress, named, f"{len(read)} dialogues of {tokens} answer tokens learned from")
    save(model, path, facts)
    print_card(path, facts)


def on_host(model: SmallLM) -> SmallLM:
    """The model where its chains are drafted fastest: of one token after the other a GPU would mostly wait."""
    if model.embedding.device.type == "cpu":
        return model
    copied = SmallLM(model.config, model.embedding.cpu(), model.draft_ids.cpu())
    copied.load_state_dict({name: value.cpu() for name, value in model.state_dict().items()})
    return copied.eval()


def _milestone(agreement: Agreement) -> dict[str, float]:
    return {"tau": agreement.tau, "first": agreement.top1[0]}


def _agreement(state: Distillation, depth: int) -> Agreement:
    """Chain drafting on held-out greedy answers of the kinds that are reported."""
    chosen = state.held_out[:MEASURED_DIALOGUES]
    agreement = chain_agreement(on_host(state.net), state.store.dialogues, chosen, state.store.markers, depth, MEASURED_STEPS)
    _say(depth, agreement)
    return agreement


def _say(depth: int, agreement: Agreement) -> None:
    rounded = {name: tuple(round(share, 3) for share in getattr(agreement, name)) for name in ("top1", "top5")}
    print(f"depth {depth}: tau {agreement.tau:.3f} over {agreement.steps} steps, {rounded}", flush=True)


def figures(progress: Progress, agreements: Mapping[int, Agreement], accepted: float) -> dict[str, Any]:
    """The card's figures: of the last milestone, of chains at each depth, and the acceptance at temperature 1."""
    last = progress.history[-1] if progress.history else {}
    deepest = agreements[max(agreements)]
    return {
        **{key: last[key] for key in ("loss",) if key in last},
        **{f"tau_depth_{depth}": round(agreement.tau, 3) for depth, agreement in agreements.items()},
        "top1_by_depth": [round(share, 3) for share in deepest.top1],
        "top5_by_depth": [round(share, 3) for share in deepest.top5],
        "accepted_at_temperature_1": round(accepted, 3),
        "repetition": round(deepest.repetition, 3),
    }
