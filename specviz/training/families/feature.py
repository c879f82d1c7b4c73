"""Drafters that read the target's hidden states: ``train eagle`` and ``train eagle3`` whole, and what other families share with
them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from specviz.drafting.networks.feature_net import FeatureNet
from specviz.engine.tree import shape_from_counts
from specviz.methods.eagle import PUBLISHED
from specviz.methods.medusa.cartesian_tree import paths_of
from specviz.training import acceptance, data, driver, features, parallel
from specviz.training.data import Dialogues
from specviz.training.driver import Schedule, Step, TrainState
from specviz.training.families.feature_start import sample, shape_of, start
from specviz.training.families.unrolling import EAGLE3_TAPS, EAGLE_TAPS, eagle3_loss, eagle_loss, unroll
from specviz.training.features import DialogueFeatures, FeatureStore, TargetAssets, joined
from specviz.training.registry import Job

SUPPORT = 8192
FITTED_DIALOGUES = 96
MEASURED_DIALOGUES = 60
DEPTH = 5
MARKS = (500_000, 1_000_000, 2_000_000, 4_000_000, 8_000_000)
"""Answer tokens at which the learning curve is read off: in the first pass all of them are distinct."""


@dataclass(frozen=True)
class Settings(Schedule):
    """An update reads ``batch`` dialogues, ``part`` of them joined in one pass. A milestone measures ``measured`` held-out
    dialogues and as many learned ones, by acceptance length."""

    peak: float = 0.0015
    decay: float = 0.5
    every: float = 4.0
    marks: tuple[int, ...] = MARKS
    patience: int = 8
    batch: int = 8
    part: int = 1
    measured: int = 24


Loss = Callable[[DialogueFeatures, torch.Generator, float], Tensor]
"""A dialogue (or several joined), a generator, and what to scale by (one over the answer tokens of the update)."""
Measure = Callable[[Sequence[int]], dict[str, float]]
"""Dialogues to figures, ``tau`` among them: the acceptance length, by which the best weights are told."""


class DialogueTraining(TrainState):
    """A drafter, the dialogues it is judged on, and how; ``shown`` are those of a milestone."""

    dialogues: Dialogues
    held_out: Sequence[int]
    measured: Measure
    shown = 24

    visited: Callable[[], list[int]]
    """The dialogues that were learned from, each once, the first ones first."""
    distinct: Callable[[], int]
    """How many different tokens were."""

    def compared(self, count: int) -> dict[str, float]:
        """Figures of so many held-out dialogues, and how many dialogues and tokens were learned from.

        ``gap`` is what the acceptance length on as many learned dialogues of the same kinds, drawn alike, is above theirs.
        """
        found, read = self.measured(self.held_out[:count]), self.visited()
        known = data.greedy_only(self.dialogues, read)[:count]
        gap = self.measured(known)["tau"] - found["tau"] if known else float("nan")
        return {"read": len(read), "distinct": self.distinct(), "gap": gap, **found}

    def measure(self) -> dict[str, float]:
        return self.compared(self.shown)

    def figures(self) -> dict[str, Any]:
        """With the acceptance length of each kind, and the learning curve."""
        kinds = data.by_kind(self.dialogues, self.held_out[:MEASURED_DIALOGUES])
        entries = [entry for entry in self.progress.history if "distinct" in entry]
        curve = [{name: entry[name] for name in ("tokens", "distinct", "tau", "gap")} for entry in entries]
        by_kind = {f"tau, {name}": self.measured(numbers)["tau"] for name, numbers in kinds.items()}
        return {**self.compared(MEASURED_DIALOGUES), **by_kind, "curve": curve}


class FeatureTraining(DialogueTraining):
    """A drafter on the target's features, the dialogues it learns from and those kept out."""

    settings: Settings

    def __init__(
        self, net: nn.Module, store: FeatureStore, training: Sequence[int], held_out: Sequence[int], settings: Settings,
        loss: Loss, measured: Measure, **optimizer: Any,
    ) -> None:  # fmt: skip
        learned = {name: value for name, value in net.named_parameters() if value.requires_grad}
        super().__init__(settings, learned, weights=net.state_dict(), **optimizer)
        self.net, self.store, self.training, self.held_out, self.measured = net, store, training, held_out, measured
        self.loss, self.shown, self.dialogues = loss, settings.measured, store.dialogues
        self.begin()

    def begin(self) -> None:
        """The order of dialogues goes on exactly where it stopped."""
        self.stream = islice(batches(self.training, self.settings), self.progress.updates, None)

    def answers(self, numbers: Sequence[int]) -> int:
        """Answer tokens of these dialogues."""
        return sum(len(self.dialogues.answer(number)) for number in numbers)

    def learn_from(self, batch: Sequence[int]) -> Step:
        """Loss and gradients of these dialogues, by answer token; the longest first, so that the passes end together."""
        answers, seed = self.answers(batch), self.settings.seed + 1_000_003 * self.optimizer.updates
        longest_first = sorted(batch, key=lambda number: -len(self.dialogues.of(number)))

        def loss(examples: Sequence[tuple[int, int]]) -> Tensor:
            generator = torch.Generator().manual_seed(seed + examples[0][0])
            return self.loss(joined(self.store.get([number for _, number in examples])), generator, 1.0 / answers)

        return self.learn(list(enumerate(longest_first)), loss, answers)

    def visited(self) -> list[int]:
        past = islice(batches(self.training, self.settings), self.progress.updates)
        return list(dict.fromkeys(number for batch in past for number in batch))

    def distinct(self) -> int:
        return self.answers(self.visited())

    def figures(self) -> dict[str, Any]:
        read_all(self.store, self.held_out[:MEASURED_DIALOGUES], self.settings.workers)
        return super().figures()


def batches(training: Sequence[int], settings: Schedule) -> Iterator[list[int]]:
    """Endless batches of dialogue numbers: every dialogue once, then every one again in another order, and so on."""
    generator, waiting = np.random.default_rng([settings.seed]), list[int]()
    while True:
        while len(waiting) < settings.batch:
            waiting += generator.permutation(np.asarray(training)).tolist()
        yield waiting[: settings.batch]
        waiting = waiting[settings.batch :]


@dataclass(frozen=True)
class TrainInputs:
    """The frozen target's assets, the data and its split, the features, and the draft vocabulary's ids [support]. ``unread`` are
    dialogues that drafters do not learn from and that changes to them do."""

    assets: TargetAssets
    files: list[Path]
    store: FeatureStore
    training: list[int]
    held_out: list[int]
    draft_ids: Tensor
    unread: Sequence[int] = ()

    @property
    def device(self) -> torch.device:
        """Where the target is, and so where training is."""
        return self.assets.target.device

    @property
    def dialogues(self) -> Dialogues:
        """All dialogues."""
        return self.store.dialogues

    @property
    def head(self) -> Tensor:
        """The target's own head, [vocab, hidden]."""
        weight: Tensor = self.assets.target.model.get_output_embeddings().weight
        return weight.detach().float()

    @property
    def judged_on(self) -> list[int]:
        """The held-out answers that figures are taken on: greedy ones, of the kinds that results are reported on."""
        return data.greedy_only(self.dialogues, self.held_out)

    @property
    def place(self) -> Tensor:
        """[vocab]: a token's place in the draft vocabulary."""
        return data.places_in(self.draft_ids, self.assets.embedding.shape[0])

    def fitted_on(self, settings: Schedule) -> list[int]:
        """Dialogues that a linear start is fitted on, read by the target."""
        generator = np.random.default_rng(settings.seed)
        chosen = generator.permutation(np.asarray(self.training))[:FITTED_DIALOGUES].tolist()
        read_all(self.store, chosen, settings.workers)
        return chosen


def gather(job: Job) -> TrainInputs:
    """Load the target and the data."""
    files, assets = data.find(job.data), features.target_assets(job.device)
    dialogues, vocab = data.read_all(files), assets.embedding.shape[0]
    both, held_out = data.split(dialogues)
    training, unread = data.set_apart(dialogues, both)
    store = features.store_for(assets.target.model, assets.target.name, dialogues, assets.markers)
    ids, _ = data.draft_vocabulary(dialogues, training, min(SUPPORT, vocab), vocab, [assets.markers.end])
    return TrainInputs(assets, files, store, training, held_out, torch.from_numpy(ids).to(assets.target.device), unread)


def read_all(store: FeatureStore, numbers: Sequence[int], workers: int) -> None:
    """Let the target read these dialogues now, on all cores."""
    missing = [number for number in numbers if not store.has(number)]
    if store.keeps and missing:
        groups = [missing[place : place + 4] for place in range(0, len(missing), 4)]
        with ThreadPoolExecutor(workers) as pool:
            list(pool.map(store.get, groups))


def run(job: Job, inputs: TrainInputs, state: TrainState, save: driver.Save, *data_more: str, **card: str) -> None:
    """Train, measure, and write the recipe's file; ``data_more`` and ``card`` are what its card says beside the rest."""
    line, tokenizer = data.dialogues_line(inputs.files, *data_more), inputs.assets.target.tokenizer_hash
    driver.run(job, state, line, save, tokenizer_hash=tokenizer, **card)


def make(job: Job) -> None:
    """Train, measure on held-out answers, write ``assets/weights/NAME.safetensors`` and print its card line."""
    inputs, fused = gather(job), job.recipe.name == "eagle3"
    settings, store, columns = (
        driver.settings_for(job, inputs.device, Settings),
        inputs.store,
        EAGLE3_TAPS if fused else EAGLE_TAPS,
    )
    model, embedding = inputs.assets.target.model, inputs.assets.embedding
    shape = shape_of(model.config, store.taps[columns], fused)
    net = FeatureNet(shape, embedding, inputs.head, inputs.draft_ids).to(inputs.device)
    parallel.keep_cast(net.head)
    start(net, model, sample(store, inputs.fitted_on(settings), embedding, columns))
    loss = partial(eagle3_loss, net, inputs.place) if fused else partial(eagle_loss, net)
    measured = partial(acceptance_figures, net, store, columns, depth=DEPTH)
    state = FeatureTraining(net, store, inputs.training, inputs.judged_on, settings, loss, measured)
    run(job, inputs, state, net.save)


def acceptance_figures(
    net: FeatureNet, store: FeatureStore, columns: slice, numbers: Sequence[int], depth: int
) -> dict[str, float]:
    """Chain drafting from every position of these answers, and EAGLE's tree of 25 nodes as far as ``depth`` reaches."""

    def draft(dialogue: DialogueFeatures, starts: Tensor) -> list[Tensor]:
        outputs = unroll(net, dialogue.tokens, dialogue.features[:, columns].flatten(1), [starts] * depth)
        return [net.logits(output) for output in outputs]

    ranks = acceptance.chain_ranks(store.get(numbers), depth, draft, net.draft_ids)
    return acceptance.figures(ranks, {path[:depth] for path in paths_of(shape_from_counts(PUBLISHED))})
