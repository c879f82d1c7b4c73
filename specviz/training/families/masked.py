"""``train masked_lm``: the small draft model, trained further with bidirectional attention to fill in masks.

``train deer``: a low-rank change to that model in two stages, after DEER (arXiv 2512.15176). The first learns the answer's
continuation from a random cut; the second learns only the last R tokens, with the highest weight on the earliest. The paper
puts a separator at the cut. Here each row predicts the place after it: the last token before the cut predicts the first place,
and the masks themselves mark the text's end.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from specviz.drafting.networks.masked_lm import MaskedLM
from specviz.drafting.networks.small_lm import SmallLM
from specviz.drafting.networks.weights import read_weights
from specviz.models.hub.packed_model import CHANGES, digest, named
from specviz.training import acceptance, data, driver, parallel
from specviz.training.data import IGNORED, Dialogues, Markers, Row
from specviz.training.driver import Job, Schedule, Step, TrainState
from specviz.training.families.feature import TrainInputs, gather, run
from specviz.training.optimizer import LowRank
from specviz.training.registry import WEIGHTS

LEAST = 0.05
"""The smallest masking probability t: a row's weight is 1/t, and a smaller t would dominate all other rows."""


class MaskedTexts(NamedTuple):
    """Texts [row, token] with their hidden places, the loss weight of each place (0 for no prediction), and the places that are
    text, not padding (None: all)."""

    ids: Tensor
    blank: Tensor
    weight: Tensor
    is_text: Tensor | None = None


class Example(NamedTuple):
    """One text [token] with its hidden places and their weights."""

    tokens: np.ndarray
    blank: np.ndarray
    weight: np.ndarray


def probabilities(rows: int, generator: np.random.Generator) -> np.ndarray:
    """Masking probabilities [row] between LEAST and 1, evenly spread so that a small batch has easy and hard rows."""
    return LEAST + (1 - LEAST) * ((generator.random() + np.arange(rows) / rows) % 1)


def standard(rows: Sequence[Row], generator: np.random.Generator) -> list[Example]:
    """Hide each counted token of packed ``rows`` with its row's probability t; its loss is divided by t and their number."""
    counted = np.stack([np.append(False, row.counts) for row in rows])
    share = probabilities(len(rows), generator)[:, None]
    blank = counted & (generator.random(counted.shape) < share)
    weight = blank / share / max(1, counted.sum())
    return [Example(row.tokens, *parts) for row, *parts in zip(rows, blank, weight, strict=True)]


def continuation(tokens: np.ndarray, first: int, share: float, generator: np.random.Generator) -> Example:
    """DEER's first stage: cut the answer (from ``first`` on) at random and hide each later token with probability ``share``."""
    cut = int(generator.integers(first, len(tokens)))
    blank = (np.arange(len(tokens)) >= cut) & (generator.random(len(tokens)) < share)
    return Example(tokens, blank, blank / share)


def refinement(tokens: np.ndarray, first: int, reach: int, emphasis: float, generator: np.random.Generator) -> Example:
    """DEER's second stage: end the text at random in the answer and hide its last R <= ``reach`` tokens.

    The i-th of them weighs ``emphasis`` ** (R - i), most where a mistake costs the whole block. The weights of a text sum to 1;
    otherwise the few texts with the longest hidden ends would dominate, the more so the larger ``emphasis``. The paper's
    training diverged at 1.05 with R up to 96.
    """
    end = int(generator.integers(first + 1, len(tokens) + 1))
    hidden = int(generator.integers(1, min(reach, end - first) + 1))
    blank = np.arange(end) >= end - hidden
    weight = blank * float(emphasis) ** (end - 1.0 - np.arange(end))
    return Example(tokens[:end], blank, weight / weight.sum())


def batches(examples: Sequence[Example], size: int, total: float = 1.0) -> list[MaskedTexts]:
    """Batch the examples, at most ``size`` texts of similar length, right-padded; weights are divided by ``total``."""
    ordered, parts = sorted(examples, key=lambda example: len(example.tokens)), list[MaskedTexts]()
    for start in range(0, len(ordered), size):
        some = ordered[start : start + size]
        columns = zip(*((example.tokens, example.blank, example.weight / total) for example in some), strict=True)
        tokens, blank, weight = (pad_sequence([torch.from_numpy(row) for row in column], True) for column in columns)
        lengths = torch.tensor([len(example.tokens) for example in some])
        is_text = torch.arange(tokens.shape[1]) < lengths[:, None]
        parts.append(MaskedTexts(tokens, blank, weight.float(), None if is_text.all() else is_text))
    return parts


class MaskedTraining(TrainState):
    """Training of a whole masked language model or of a low-rank ``change`` alone."""

    unit = "hidden tokens"

    def __init__(self, model: MaskedLM, inputs: TrainInputs, settings: Schedule, change: LowRank | None = None) -> None:
        super().__init__(settings, change or model)
        self.model = self.folding = model
        self.part = 1  # ``batches`` already forms the passes
        self.dialogues, self.markers = inputs.dialogues, inputs.assets.markers
        self.training, self.held_out = data.split(self.dialogues)
        self.place = data.draft_index(model.draft_ids, model.config.vocab_size)
        self.settle()
        self.begin()

    def begin(self) -> None:
        self.stream = self.texts(self.progress.updates)

    def texts(self, update: int) -> Iterator[list[MaskedTexts]]:
        """Yield the masked texts of each update from ``update`` on, one pass per item; the seed depends on ``update``."""
        settings, generator = self.settings, np.random.default_rng([0, update])
        stream = data.rows(self.dialogues, self.training, self.markers, self.model.config.window - 1, generator)
        while True:
            yield batches(standard(list(islice(stream, settings.batch)), generator), settings.part)

    def learn_from(self, batch: Sequence[MaskedTexts]) -> Step:
        """Loss and gradients of these texts, and the number of predicted tokens."""
        counted: list[int] = []

        def part_loss(part: Sequence[MaskedTexts]) -> Tensor:
            value, tokens = loss(self.model, self.place, *part)
            counted.append(tokens)
            return value

        return self.learn(batch, part_loss, 0)._replace(tokens=sum(counted))

    def measure(self) -> dict[str, float]:
        """Acceptance of blocks along a few held-out answers, and its gap to that on the first training dialogues."""
        # The rows' seed, hence the dialogues that they read first.
        order = np.random.default_rng([0, 0]).permutation(np.asarray(self.training))
        return self.blocks(order[:EARLY].tolist(), *SHOWN)

    def blocks(self, known: Sequence[int], count: int, places: int, runs: int) -> dict[str, float]:
        """:func:`block_agreement` along ``count`` held-out greedy answers, and its ``gap`` to the training answers ``known``."""
        found, learned = (
            block_agreement(
                self.model, self.dialogues, data.greedy_only(self.dialogues, numbers)[:count], self.markers, places, runs
            )
            for numbers in (self.held_out, known)
        )
        return {**found, "gap": learned["tau"] - found["tau"]}

    def figures(self) -> dict[str, Any]:
        history = self.progress.history
        curve = [{name: entry[name] for name in ("tokens", "tau", "gap")} for entry in history]
        return {**self.blocks(self.training, *MEASURED), "curve": curve}


def loss(model: MaskedLM, place: Tensor, masked: MaskedTexts) -> tuple[Tensor, int]:
    """Return the weighted cross-entropy (nats) of the hidden tokens in the draft vocabulary, and their number."""
    device = place.device
    ids, blank, weight = (part.to(device) for part in (masked.ids, masked.blank, masked.weight))
    label = place[ids[:, 1:]]
    mask = blank[:, 1:] & (label != IGNORED) & (weight[:, 1:] > 0)
    is_text = None if masked.is_text is None else masked.is_text.to(device)
    states = model.features(ids, blank, is_text)[:, :-1][mask]
    logits = parallel.apply_padded(partial(F.linear, weight=model.head(), bias=model.bias), states)
    losses = F.cross_entropy(logits.float(), label[mask], reduction="none")
    return (losses * weight[:, 1:][mask]).sum(), int(mask.sum())


def block_agreement(
    model: MaskedLM, dialogues: Dialogues, chosen: Sequence[int], markers: Markers, places: int, runs: int
) -> dict[str, float]:
    """Speculate along ``chosen`` greedy answers with blocks of ``places`` tokens, at most ``runs`` steps.

    Returns the figures of the first eight places and the ``longest`` accepted block.
    """

    def drafter(text: Tensor, first: int) -> Callable[[int], Tensor]:
        return lambda done: acceptance.ranks_of(
            model(text[: first + done], places), text[first + done :][:places], model.draft_ids
        )

    ranks = acceptance.steps_along(dialogues, chosen, markers, places, runs, drafter, model.embedding.device)
    lengths = (ranks == 0).int().cumprod(1).sum(1).tolist()
    shown = acceptance.figures(ranks[:, :8], alone=True)
    return {**shown, "tau": 1 + float(np.mean(lengths or [0])), "longest": max(lengths, default=0), "steps": len(lengths)}


WINDOW = 384
SHOWN, MEASURED = (12, 16, 1000), (120, 32, 4000)
"""Dialogues, places and maximum steps of a milestone's figures, and of the card's."""
EARLY = 2000
"""The number of training dialogues compared at a milestone: the first ones, all read before it."""


def from_autoregressive(start: SmallLM, window: int = WINDOW) -> MaskedLM:
    """A masked model initialised from ``start``: the same layers and projections, the mean embedding as the mask."""
    model = MaskedLM(replace(start.config, window=window), start.embedding, start.draft_ids).to(start.embedding.device)
    known = {name: value.detach().clone().float() for name, value in start.state_dict().items()}
    model.load_state_dict({**known, "blank": start.embedding.float().mean(0, keepdim=True)})
    return model.requires_grad_(True)


SECOND = "refinement"
START = "masked_lm"


RANK = 24
"""The rank of the change."""
REACH, EMPHASIS = 32, 1.2
"""The second stage's maximum number of hidden tokens and its alpha. The paper uses 96, since its accepted blocks are three times
as long, and 1.01: its first token weighs 2.6 times the last. Here the rarely reached last tokens weigh less."""
CALM = 0.25
"""The second stage's peak learning rate divided by the first's. Its texts have few hidden tokens: at the first stage's rate,
their noise lowered acceptance at the first place (0.405 to 0.385)."""


class DeerTraining(MaskedTraining):
    """Training in both stages, each with its own optimizer and schedule."""

    second = (SECOND, 0.4)

    def __init__(self, model: MaskedLM, inputs: TrainInputs, settings: Schedule) -> None:
        super().__init__(model, inputs, settings, LowRank(model, RANK))

    def enter(self, stage: str) -> None:
        super().enter(stage)
        self.move(self.leaves)
        self.begin()

    def rate(self, share: float) -> float:
        """The learning rate, with a warm-up and a decay in each stage."""
        first, peak = self.second[1], self.settings.peak
        share, peak = ((share - first) / (1 - first), peak * CALM) if self.in_second_stage else (share / first, peak)
        return driver.rate(peak, share, self.optimizer.updates, self.settings.warm)

    def texts(self, update: int) -> Iterator[list[MaskedTexts]]:
        """Yield the stage's batches; every dialogue comes once before any repeats. Each update has its own seed, so that a
        resumed run reads the same batches."""
        settings, seed = self.settings, [0, int(self.in_second_stage)]
        size, update = settings.later if self.in_second_stage else settings.batch, update - self.progress.entered
        while True:
            generator = np.random.default_rng([*seed, update])
            chosen = data.cycle_shuffled(self.training, update * size, size, seed)
            shares = probabilities(len(chosen), generator)
            examples = [self.example(number, float(share), generator) for number, share in zip(chosen, shares, strict=True)]
            total = sum(float(example.weight.sum()) for example in examples) or 1.0
            yield batches(examples, settings.part, total)
            update += 1

    def figures(self) -> dict[str, Any]:
        """The figures on the initial model's card, and those of the change."""
        card = read_weights(WEIGHTS / f"{START}.safetensors")[1]
        return {"start": json.loads(card.get("metrics", "{}")), "deer": self.blocks(self.training, *MEASURED)}

    def example(self, number: int, share: float, generator: np.random.Generator) -> Example:
        """One dialogue as an example of the stage."""
        tokens = np.concatenate((np.asarray(self.markers.prefix, np.int64), self.dialogues.of(number)))
        first = len(self.markers.prefix) + int(self.dialogues.prompt[number])
        example = (
            refinement(tokens, first, REACH, EMPHASIS, generator)
            if self.in_second_stage
            else continuation(tokens, first, share, generator)
        )
        return Example(*(part[-self.model.config.window :] for part in example))


def make(job: Job) -> None:
    """Train, measure on held-out answers, write ``assets/weights/masked_lm.safetensors`` or ``deer.safetensors``."""
    inputs = gather(job)
    where, settings = inputs.device, driver.settings_for(job, inputs.device)
    embedding = inputs.assets.embedding
    if job.recipe.name == "deer":
        base = WEIGHTS / f"{START}.safetensors"
        change = DeerTraining(MaskedLM.load(base, (embedding,), torch.float32, where), inputs, settings)
        run(job, inputs, change, change.save, **{CHANGES: named(base)})
        return
    small = WEIGHTS / "small_draft.safetensors"
    start = SmallLM.load(small, (embedding,), torch.float32, where)
    state = MaskedTraining(from_autoregressive(start), inputs, settings)
    run(job, inputs, state, state.model.save, start=f"{small.name} sha256 {digest(small)}")
