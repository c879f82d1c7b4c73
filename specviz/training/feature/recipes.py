"""The recipes of feature drafters: ``train eagle`` and ``train eagle3`` whole, and the training that others share with them."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from specviz.drafters.networks.feature_file import save
from specviz.drafters.networks.feature_net import FeatureNet
from specviz.drafters.networks.weights import read_weights
from specviz.training.common import data, parallel
from specviz.training.common.card import card, dialogues_line, print_card
from specviz.training.common.features import DialogueFeatures, FeatureStore, joined, store_for
from specviz.training.common.loop import Progress, Schedule, Step, TrainState, checkpoint_of, train
from specviz.training.common.optimizer import Optimizer
from specviz.training.common.parallel import cores, products
from specviz.training.common.target_assets import TargetAssets, target_assets
from specviz.training.feature import eagle, eagle3
from specviz.training.feature.acceptance_eval import acceptance_figures
from specviz.training.feature.feature_start import sample, shape_of, start
from specviz.training.registry import WEIGHTS, Job

SUPPORT = 8192
FITTED_DIALOGUES = 96
MEASURED_DIALOGUES = 60
DEPTH = 5
MARKS = (500_000, 1_000_000, 2_000_000, 4_000_000, 8_000_000)
"""Answer tokens at which the learning curve is read off: in the first pass all of them are distinct."""
GPU_BATCH, GPU_GROWTH = 64, 0.25
"""Dialogues of an update on a GPU, and the power of their number with which the learning rate grows."""


@dataclass(frozen=True)
class Settings(Schedule):
    """An update reads ``batch`` dialogues, ``together`` of them in one pass, which where it is one are shared out among
    ``workers`` cores. A milestone measures ``measured`` held-out dialogues and as many learned ones, by acceptance length."""

    peak: float = 0.0015
    decay: float = 0.5
    every: float = 4.0
    marks: tuple[int, ...] = MARKS
    patience: int = 8
    workers: int = 2
    batch: int = 8
    together: int = 1
    measured: int = 24


Loss = Callable[[DialogueFeatures, torch.Generator, float], Tensor]
"""A dialogue (or several joined, where ``Settings.together`` asks for it), a generator, and what to scale by (one over the answer
tokens of the update)."""
Measure = Callable[[Sequence[int]], dict[str, float]]
"""Dialogues to figures, ``tau`` among them: the acceptance length, by which the best weights are told."""


class DialogueTraining(TrainState):
    """A drafter, the dialogues it learns from and those kept out; a subclass says what is learned from some of them."""

    settings: Settings
    learn_from: Callable[[Sequence[int]], Step]
    """Loss and gradients of the dialogues with these numbers, by answer token."""

    def __init__(
        self, net: nn.Module, store: FeatureStore, training: Sequence[int], held_out: Sequence[int], settings: Settings,
        measured: Measure, optimizer: Optimizer | None = None,
    ) -> None:  # fmt: skip
        super().__init__(settings, optimizer or Optimizer(learned(net)), net.state_dict())
        self.net, self.store, self.training, self.held_out, self.measured = net, store, training, held_out, measured
        self.begin()

    def begin(self) -> None:
        """The order of dialogues goes on exactly where it stopped."""
        all_batches = batches(self.training, self.settings, self.progress.provenance)
        self.stream = islice(all_batches, self.progress.updates, None)

    def step(self, share: float) -> Step:
        """The next dialogues' loss and gradients."""
        return self.learn_from(next(self.stream))

    def measure(self) -> dict[str, float]:
        """Held-out figures, the gap of the acceptance length to learned dialogues, and how many of those there are."""
        figures = self.measured(self.held_out[: self.settings.measured])
        visited_numbers = visited(self.training, self.settings, self.progress)
        # Of the same kinds, drawn as the held-out ones were: only such figures can be compared.
        known = data.greedy_only(self.store.dialogues, visited_numbers)[: self.settings.measured]
        gap = self.measured(known)["tau"] - figures["tau"] if known else float("nan")
        distinct = sum(len(self.store.dialogues.answer(number)) for number in visited_numbers)
        return {"read": len(visited_numbers), "distinct": distinct, "gap": gap, **figures}


class FeatureTraining(DialogueTraining):
    """A drafter on the target's features, which learns dialogue by dialogue, or from ``Settings.together`` of them at once."""

    def __init__(
        self, net: nn.Module, store: FeatureStore, training: Sequence[int], held_out: Sequence[int], settings: Settings,
        loss: Loss, measured: Measure, optimizer: Optimizer | None = None, pace: Callable[[float], None] | None = None,
    ) -> None:  # fmt: skip
        """``pace`` is told how much of the time is gone before each update, for losses that change on the way."""
        self.loss, self.pace = loss, pace
        super().__init__(net, store, training, held_out, settings, measured, optimizer)

    def step(self, share: float) -> Step:
        """The next dialogues' loss and gradients."""
        if self.pace is not None:
            self.pace(share)
        return super().step(share)

    def learn_from(self, batch: Sequence[int]) -> Step:
        """Loss and gradients of these dialogues, by answer token."""
        answers = sum(len(self.store.dialogues.answer(number)) for number in batch)

        def loss(part: tuple[int, Sequence[int]]) -> Tensor:
            place, numbers = part
            generator = torch.Generator().manual_seed(self.settings.seed + 1_000_003 * self.optimizer.updates + place)
            return self.loss(joined(self.store.get(numbers)), generator, 1.0 / answers)

        longest_first, together = sorted(batch, key=lambda number: -len(self.store.dialogues.of(number))), self.settings.together
        parts = list(enumerate(longest_first[place : place + together] for place in range(0, len(batch), together)))
        # A long and a short one together: gradients leave bfloat16 once for both, and the parts take equally long.
        half = (len(parts) + 1) // 2
        pairs = [[part for part in pair if part] for pair in zip_longest(parts[:half], reversed(parts[half:]))]
        parameters = self.optimizer.parameters
        gradients, value = parallel.gradients(
            pairs, lambda pair: torch.stack([*map(loss, pair)]).sum(), list(parameters.values()), self.settings.workers
        )
        return Step(value, answers, dict(zip(parameters, gradients, strict=True)))


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
    past_batches = islice(batches(training, settings, progress.provenance), progress.updates)
    return list(dict.fromkeys(number for batch in past_batches for number in batch))


@dataclass(frozen=True)
class TrainInputs:
    """The frozen target's assets, the data and its split, the features, and the draft vocabulary's ids [support]."""

    assets: TargetAssets
    files: list[Path]
    store: FeatureStore
    training: list[int]
    held_out: list[int]
    draft_ids: Tensor

    @property
    def device(self) -> torch.device:
        """Where the target is, and so where training is."""
        return self.assets.target.device

    @property
    def judged_on(self) -> list[int]:
        """The held-out answers that figures are taken on: greedy ones, of the kinds that results are reported on."""
        return data.greedy_only(self.store.dialogues, self.held_out)

    @property
    def place(self) -> Tensor:
        """[vocab]: a token's place in the draft vocabulary."""
        return data.places_in(self.draft_ids, self.assets.embedding.shape[0])


@dataclass(frozen=True)
class Kind:
    """What one drafter reads of the store's taps, whether its layer is ``wide``, and its loss."""

    columns: slice
    wide: bool
    loss: Callable[[FeatureNet, TrainInputs], Loss]


KINDS = {
    "eagle": Kind(eagle.TAPS, False, lambda net, inputs: partial(eagle.loss, net)),
    "eagle3": Kind(eagle3.TAPS, True, lambda net, inputs: partial(eagle3.loss, net, inputs.place)),
}


def make(job: Job) -> None:
    """Train, measure on held-out answers, write ``assets/weights/NAME.safetensors`` and print its card line."""
    inputs, kind = gather(job), KINDS[job.recipe.name]
    settings = settings_for(job, inputs)
    net = fresh_net(inputs, kind, settings)
    checkpoint = checkpoint_of(job.recipe.name)
    provenance = shipped(job, net) if settings.resume and not checkpoint.is_file() else ""
    state = FeatureTraining(
        net, inputs.store, inputs.training, inputs.judged_on, settings, kind.loss(net, inputs),
        lambda numbers: acceptance_figures(net, inputs.store, kind.columns, numbers, DEPTH),
        Optimizer(learned(net), rough=products(inputs.device)),
    )  # fmt: skip
    print(f"{len(state.training)} dialogues to learn from, {len(inputs.held_out)} kept out; {settings}", flush=True)
    progress = train(state, checkpoint, provenance=provenance)
    finish(job, inputs, net, kind, state, progress)


def gather(job: Job) -> TrainInputs:
    """Load the target and the data. On a processor each core works on its own, so torch is kept to one thread."""
    files = data.find(job.data)
    assets = target_assets(job.device)
    if assets.target.device.type == "cpu":
        torch.set_num_threads(1)
    dialogues = data.read_all(files)
    training, held_out = data.split(dialogues)
    training, _ = data.set_apart(dialogues, training)
    store = store_for(assets.target.model, assets.target.name, dialogues, assets.markers)
    vocab = assets.embedding.shape[0]
    ids, _ = data.draft_vocabulary(dialogues, training, min(SUPPORT, vocab), vocab, [assets.markers.end])
    return TrainInputs(assets, files, store, training, held_out, torch.from_numpy(ids).to(assets.target.device))


def settings_for(job: Job, inputs: TrainInputs, **own: float) -> Settings:
    """A GPU reads the many dialogues of an update in one pass, unless ``together`` is one, at a rate that fits them; a processor
    one a core at a time."""
    common = {"minutes": job.minutes, "resume": job.resume, **own}
    if inputs.device.type != "cuda":
        return Settings(workers=cores(), **{**common, "together": 1})
    common |= {"workers": 1, "every": min(Settings.every, job.minutes / 10)}
    if common.get("together") != 1:
        peak, batch = common.get("peak", Settings.peak), common.get("batch", Settings.batch)
        common |= {"together": GPU_BATCH, "batch": GPU_BATCH, "peak": peak * (GPU_BATCH / batch) ** GPU_GROWTH}
    return Settings(**common)


def fresh_net(inputs: TrainInputs, kind: Kind, settings: Settings) -> FeatureNet:
    """A network that starts from the target; its norms, projections and layer are learned, the rest is the target's."""
    model, embedding = inputs.assets.target.model, inputs.assets.embedding
    head = model.get_output_embeddings().weight.detach().float()
    shape = shape_of(model.config, inputs.store.taps[kind.columns], kind.wide)
    net = FeatureNet(shape, embedding, head, inputs.draft_ids).to(inputs.device)
    parallel.keep_cast(net.head)
    start(net, model, sample(inputs.store, fitted_on(inputs, settings), embedding, kind.columns))
    return net


def fitted_on(inputs: TrainInputs, settings: Settings) -> list[int]:
    """Dialogues that the linear start is fitted on, read by the target."""
    generator = np.random.default_rng(settings.seed)
    chosen = [int(number) for number in generator.permutation(np.asarray(inputs.training))[:FITTED_DIALOGUES]]
    read_all(inputs.store, chosen, settings.workers)
    return chosen


def read_all(store: FeatureStore, numbers: list[int], workers: int) -> None:
    """Let the target read these dialogues now, on all cores."""
    missing = [number for number in numbers if not store.has(number)]
    if store.keeps and missing:
        groups = [missing[place : place + 4] for place in range(0, len(missing), 4)]
        with ThreadPoolExecutor(workers) as pool:
            list(pool.map(store.get, groups))


def at_hand(inputs: TrainInputs, enough: int) -> list[int]:
    """The dialogues to learn from that the target has read already, if there are so many; else all."""
    read = [number for number in inputs.training if inputs.store.has(number)]
    return read if len(read) >= enough else inputs.training


def shipped(job: Job, net: FeatureNet) -> str:
    """Where there is no checkpoint, go on from the weights that ship, and return what was spent on those.

    Their eight-bit rounding is small beside an update; the optimiser's memory starts anew, and so do the minutes. The draft
    vocabulary may be another one: it picks rows of the target's head, which are not learned.
    """
    path = WEIGHTS / f"{job.recipe.name}.safetensors"
    if not path.is_file():
        return ""
    tensors, card = read_weights(path)
    tensors.pop("draft_ids", None)
    net.load_state_dict(tensors)
    print(f"Going on from {path.name}: {card.get('spent', '')}", flush=True)
    return card.get("spent", "")


def finish(
    job: Job, inputs: TrainInputs, net: FeatureNet, kind: Kind, state: FeatureTraining, progress: Progress
) -> None:  # fmt: skip
    """Measure on held-out answers, write the weights with their card, and print the card's line."""
    store, chosen = inputs.store, inputs.judged_on[:MEASURED_DIALOGUES]
    read_all(store, chosen, state.settings.workers)
    figures = {**acceptance_figures(net, store, kind.columns, chosen, DEPTH), **learning(state, progress)}
    print("held-out:", "  ".join(f"{name} {value}" for name, value in figures.items()), flush=True)
    visited_numbers = visited(state.training, state.settings, progress)
    tokens = sum(len(store.dialogues.answer(number)) for number in visited_numbers)
    read = f"{len(visited_numbers)} dialogues of {tokens} answer tokens learned from"
    facts = card_of(job, inputs, state.settings, progress, figures, read)
    path = WEIGHTS / f"{job.recipe.name}.safetensors"
    save(net, path, facts)
    print_card(path, facts)


def learning(state: DialogueTraining, progress: Progress) -> dict[str, Any]:
    """What a card tells of a training beside its last figures: the acceptance length of each kind, its gap to learned dialogues
    of the same kinds, and the learning curve."""
    held_out = state.held_out[:MEASURED_DIALOGUES]
    facts: dict[str, Any] = {
        f"tau, {name}": state.measured(numbers)["tau"] for name, numbers in data.by_kind(state.store.dialogues, held_out).items()
    }
    known = data.greedy_only(state.store.dialogues, visited(state.training, state.settings, progress))[:MEASURED_DIALOGUES]
    if known:
        facts["gap"] = state.measured(known)["tau"] - state.measured(held_out)["tau"]
    curve = ", ".join(f"{entry['tokens']:.0f} tokens τ {entry['tau']:.3f}" for entry in progress.history)
    print("learning curve:", curve, flush=True)
    facts["curve"] = [{name: entry[name] for name in ("tokens", "distinct", "tau", "gap")} for entry in progress.history]
    return facts


def card_of(
    job: Job, inputs: TrainInputs, settings: Settings, progress: Progress, figures: Mapping[str, Any], read: str
) -> dict[str, str]:  # fmt: skip
    """The model card of a feature drafter; ``read`` says how much it learned from."""
    return card(
        job.recipe.name, settings, dialogues_line(inputs.files, read), progress.spent(inputs.device.type), figures,
        tokenizer_hash=inputs.assets.target.tokenizer_hash,
    )  # fmt: skip
