"""``train owl``: target and dialogues in, a recurrence and its probe out."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor

from specviz.drafters.networks.recurrent_net import RecurrentConfig, RecurrentNet, save
from specviz.training.common import parallel
from specviz.training.common.card import card, dialogues_line, print_card
from specviz.training.common.data import by_kind, greedy_only
from specviz.training.common.loop import Progress, Schedule, Step, TrainState, checkpoint_of, rate, train
from specviz.training.common.optimizer import Optimizer
from specviz.training.common.parallel import products
from specviz.training.feature.recipes import MARKS, TrainInputs, gather
from specviz.training.owl import owl
from specviz.training.owl.owl_start import start
from specviz.training.registry import WEIGHTS, Job

DEPTH = 5
MEASURED = 60
"""Held-out answers of the final figures."""
SHOWN = 24
"""The same of a milestone's."""
FITTED = 240
"""Windows that the linear start is fitted on."""
PROBED, PROBE_PLACES = 8, 16
"""Windows of an update that teaches the probe, and places in each."""
GPU_WIDER = 16
"""So many times the windows of an update on a GPU."""
PROBE_PEAK = 0.3
"""How large the probe's steps are at first, in units of the embedding's spread."""
DRAFTING = "drafting"
"""The second stage."""


@dataclass(frozen=True)
class Settings(Schedule):
    """The ``probing`` share of the time teaches the probe. An update learns from ``batch`` windows, of which ``fresh`` are
    read by the target for the first time, at ``places`` of each; it remembers the last ``kept``."""

    minutes: float = 12.0
    decay: float = 0.02
    every: float = 1.0
    patience: int = 8
    probing: float = 0.15
    batch: int = 24
    fresh: int = 6
    kept: int = 2400
    places: int = 28
    marks: tuple[int, ...] = MARKS


class OwlTraining(TrainState):
    """The probe first, then the recurrence; a stage has an optimizer of its own."""

    unit = "tokens read"
    settings: Settings

    def __init__(self, inputs: TrainInputs, settings: Settings) -> None:
        """A fresh network whose probe starts as the mean word, and the held-out greedy answers of the six kinds."""
        torch.manual_seed(settings.seed)
        self.inputs, self.model = inputs, inputs.assets.target.model.requires_grad_(False)
        embedding, layers = inputs.assets.embedding, int(self.model.config.get_text_config().num_hidden_layers)
        config = RecurrentConfig(embedding.shape[0], embedding.shape[1], layers)
        head = self.model.get_output_embeddings().weight.detach().float()
        self.net = RecurrentNet(config, embedding, head, inputs.draft_ids).to(inputs.device)
        with torch.no_grad():
            self.net.probe.copy_(embedding[inputs.draft_ids].mean(0))
        self.windows = owl.Windows(inputs.store.dialogues, inputs.assets.markers, inputs.training)
        buffers = {"reads": self.windows.reads}
        super().__init__(settings, Optimizer({"probe": self.net.probe}), self.net.state_dict(), buffers)
        self.decay = 0.0  # of the probe
        self.known: deque[owl.WindowFeatures] = deque()
        self.held_out = inputs.judged_on[:MEASURED]

    def begin(self) -> None:
        """A resumed training goes on with what it has not read."""
        self.generator = np.random.default_rng([self.settings.seed, self.progress.updates])
        self.stream = self.windows.stream(self.generator)

    def enter(self, stage: str) -> None:
        """An optimizer of its own, over all but the probe."""
        super().enter(stage)
        learned = {name: value for name, value in self.net.named_parameters() if name != "probe"}
        stacked = {"first.weight": 4, "later.weight": 4}
        self.optimizer = Optimizer(learned, stacked=stacked, rough=products(self.inputs.device))
        self.decay = self.settings.decay

    def step(self, share: float) -> Step:
        """The probe's loss, or once it stays as it is the network's, and the gradients."""
        if self.progress.stage != DRAFTING and share < self.settings.probing:
            return self._probe()
        if self.progress.stage != DRAFTING:
            self._start()
        return self._draft()

    def rate(self, share: float) -> float:
        """The probe's steps get smaller all the while; the network has a schedule of its own."""
        probing = self.settings.probing
        if self.progress.stage != DRAFTING:
            return PROBE_PEAK * float(self.inputs.assets.embedding.std()) * (1 - 0.9 * share / probing)
        return rate(self.settings.peak, (share - probing) / (1 - probing), self.optimizer.updates, self.settings.warm)

    def measure(self) -> dict[str, float]:
        """Acceptance on held-out answers and its gap to learned ones of the same kinds, once the network drafts."""
        if self.progress.stage != DRAFTING:
            return {}
        figures = self.accepted(self.held_out[:SHOWN])
        read = {"read": len(self.windows.visited()), "distinct": self.windows.distinct}
        return {**read, "gap": self.gap(figures["tau"], SHOWN), **figures}

    def gap(self, tau: float, count: int) -> float:
        """How much more than ``tau`` the acceptance length is on as many learned answers of the kinds that are reported."""
        known = greedy_only(self.inputs.store.dialogues, self.windows.visited())[:count]
        return self.accepted(known)["tau"] - tau if known else float("nan")

    def accepted(self, numbers: Sequence[int]) -> dict[str, float]:
        """Chains along these greedy answers."""
        store, prefix = self.inputs.store, len(self.inputs.assets.markers.prefix)
        texts = [
            (torch.from_numpy(store.ids(number)).to(self.inputs.device), prefix + int(store.dialogues.prompt[number]))
            for number in numbers
        ]
        return owl.acceptance_figures(self.model, self.net, texts, DEPTH)

    def _probe(self) -> Step:
        tokens = self._windows(PROBED)
        loss = owl.probe_loss(self.model, self.net, tokens, owl.some_places(PROBE_PLACES, self.generator).to(tokens.device))
        return Step(float(loss.detach()), tokens.numel(), {"probe": torch.autograd.grad(loss, [self.net.probe])[0]})

    def _start(self) -> None:
        """The probe is taught: from here on it stays, and the network starts from what can be guessed without learning."""
        self.use_average()
        for _ in range(FITTED // self.settings.fresh):
            self.known.append(self._read())
            self.progress.tokens += self.known[-1].tokens.numel()
        start(self.net, self.model.base_model.norm.weight.float(), self.known)
        self.enter(DRAFTING)

    def _draft(self) -> Step:
        settings, batch = self.settings, [self._read()]
        while len(batch) * settings.fresh < settings.batch and self.known:
            batch.append(self.known[int(self.generator.integers(len(self.known)))])
        self.known.append(batch[0])
        while len(self.known) * settings.fresh > settings.kept:
            self.known.popleft()
        generator = torch.Generator().manual_seed(int(self.generator.integers(1 << 40)))
        parameters = self.optimizer.parameters
        gradients, value = parallel.gradients(
            batch, lambda part: owl.loss(self.net, part, generator) / len(batch), list(parameters.values()), 1
        )
        return Step(value, batch[0].tokens.numel(), dict(zip(parameters, gradients, strict=True)))

    def _windows(self, count: int) -> Tensor:
        return torch.from_numpy(np.stack(list(islice(self.stream, count)))).to(self.inputs.device)

    def _read(self) -> owl.WindowFeatures:
        """Fresh windows, as the target sees them; kept in half precision."""
        tokens = self._windows(self.settings.fresh)
        places = owl.some_places(self.settings.places, self.generator).to(tokens.device)
        read = owl.read(self.model, self.net, tokens, places)
        return replace(read, own=read.own.bfloat16(), behind=read.behind.bfloat16())


def make(job: Job) -> None:
    """Train, measure on held-out answers, write ``assets/weights/owl.safetensors`` and print its card line."""
    inputs = gather(job)
    if inputs.device.type == "cpu":
        torch.set_num_threads(parallel.cores())  # gathering left one: here products are split, not parts
    state = OwlTraining(inputs, settings_for(job, inputs))
    finish(job, state, train(state, checkpoint_of(job.recipe.name)))


def settings_for(job: Job, inputs: TrainInputs) -> Settings:
    """A GPU reads many more windows in a pass."""
    common = Settings(minutes=job.minutes, resume=job.resume)
    if inputs.device.type != "cuda":
        return common
    wider = {name: GPU_WIDER * getattr(common, name) for name in ("batch", "fresh", "kept")}
    return replace(common, **wider, every=min(common.every, job.minutes / 10))


def finish(job: Job, state: OwlTraining, progress: Progress) -> None:
    """Measure on held-out answers, write the weights with their card, and print the card's line."""
    inputs, figures = state.inputs, _figures(state, progress)
    print("held-out:", "  ".join(f"{name} {value}" for name, value in figures.items()), flush=True)
    facts = card(
        job.recipe.name, state.settings, dialogues_line(inputs.files, f"windows of {owl.LENGTH} tokens"),
        progress.spent(inputs.device.type, "tokens read by the target"), figures,
        tokenizer_hash=inputs.assets.target.tokenizer_hash,
    )  # fmt: skip
    path = WEIGHTS / f"{job.recipe.name}.safetensors"
    save(state.net, path, facts)
    print_card(path, facts)


def _figures(state: OwlTraining, progress: Progress) -> dict[str, Any]:
    """What a card tells: acceptance on held-out answers, by kind too, the gap to learned ones, and how it came to that."""
    figures: dict[str, Any] = state.accepted(state.held_out)
    numbers_by_kind = by_kind(state.inputs.store.dialogues, state.held_out)
    figures |= {f"tau, {name}": state.accepted(numbers)["tau"] for name, numbers in numbers_by_kind.items()}
    figures["gap"] = state.gap(figures["tau"], MEASURED)
    # A later window of a dialogue overlaps an earlier one by up to a half, so that not all tokens read are distinct ones.
    figures["curve"] = [
        {"tokens": entry["tokens read"], "distinct": entry["distinct"], "tau": entry["tau"], "gap": entry["gap"]}
        for entry in progress.history
        if "distinct" in entry
    ]
    return figures
