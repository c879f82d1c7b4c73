"""``train masked_lm``: the small draft model, trained further with bidirectional attention to fill in masks.

``train deer``: a low-rank change to the masked model in two stages, after DEER (arXiv 2512.15176). The first stage learns to
continue an answer from a random cut. The second stage learns the last R tokens of a text, with most weight on the first of them.
The paper puts a separator at the cut. Here each row predicts the next position, so the last token before the cut predicts the
first one after, and the masks mark the cut.
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
from specviz.models.hub.packed_model import BASE_KEY, digest, named
from specviz.training import acceptance, data, driver, parallel
from specviz.training.data import IGNORED, Dialogues, Markers, Row
from specviz.training.driver import Job, Schedule, Step, TrainState
from specviz.training.families.feature import TrainInputs, gather, run
from specviz.training.optimizer import LowRank
from specviz.training.registry import WEIGHTS

LEAST = 0.05
"""Minimum masking probability t. The weight of a row is 1/t, so rows with a very small t would dominate."""


class MaskedTexts(NamedTuple):
    """Texts with masks: ``ids``, ``blank``, ``weight`` and ``is_text``, each [row, token].

    ``blank``: whether the token is masked. ``weight``: weight in the loss; 0: not predicted. ``is_text``: False for padding;
    None: no padding.
    """

    ids: Tensor
    blank: Tensor
    weight: Tensor
    is_text: Tensor | None = None


class Example(NamedTuple):
    """One text with masks, each field [token]; see :class:`MaskedTexts`."""

    tokens: np.ndarray
    blank: np.ndarray
    weight: np.ndarray


def probabilities(rows: int, generator: np.random.Generator) -> np.ndarray:
    """Return masking probabilities [row] between LEAST and 1, evenly spread, so that small batches have easy and hard rows."""
    return LEAST + (1 - LEAST) * ((generator.random() + np.arange(rows) / rows) % 1)


def standard(rows: Sequence[Row], generator: np.random.Generator) -> list[Example]:
    """Mask each counted token of packed ``rows`` with a probability t per row.

    Weights are 1/t over the number of counted tokens.
    """
    counted = np.stack([np.append(False, row.counts) for row in rows])
    share = probabilities(len(rows), generator)[:, None]
    blank = counted & (generator.random(counted.shape) < share)
    weight = blank / share / max(1, counted.sum())
    return [Example(row.tokens, *parts) for row, *parts in zip(rows, blank, weight, strict=True)]


def continuation(tokens: np.ndarray, first: int, share: float, generator: np.random.Generator) -> Example:
    """DEER's first stage: cut the answer, which begins at ``first``, at random; mask later tokens with probability ``share``."""
    cut = int(generator.integers(first, len(tokens)))
    blank = (np.arange(len(tokens)) >= cut) & (generator.random(len(tokens)) < share)
    return Example(tokens, blank, blank / share)


def refinement(tokens: np.ndarray, first: int, reach: int, emphasis: float, generator: np.random.Generator) -> Example:
    """DEER's second stage: end the text at random in the answer and mask the last R <= ``reach`` tokens.

    The weight of the i-th masked token is proportional to ``emphasis`` ** (R - i), since an early mistake costs the whole block.
    The weights of a text sum to 1; otherwise texts with many masks would dominate. In the paper, training diverged with an
    emphasis of 1.05 and R up to 96.
    """
    end = int(generator.integers(first + 1, len(tokens) + 1))
    hidden = int(generator.integers(1, min(reach, end - first) + 1))
    blank = np.arange(end) >= end - hidden
    weight = blank * float(emphasis) ** (end - 1.0 - np.arange(end))
    return Example(tokens[:end], blank, weight / weight.sum())


def batches(examples: Sequence[Example], size: int, total: float = 1.0) -> list[MaskedTexts]:
    """Return right-padded batches of at most ``size`` texts of similar length. Weights are divided by ``total``."""
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
    """Training of a masked language model, or of a low-rank ``change``."""

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
        """Yield the batches of each update from ``update`` on; ``update`` is also part of the seed."""
        settings, generator = self.settings, np.random.default_rng([0, update])
        stream = data.rows(self.dialogues, self.training, self.markers, self.model.config.window - 1, generator)
        while True:
            yield batches(standard(list(islice(stream, settings.batch)), generator), settings.part)

    def learn_from(self, batch: Sequence[MaskedTexts]) -> Step:
        """Return loss, gradients and the number of predicted tokens."""
        counted: list[int] = []

        def part_loss(part: Sequence[MaskedTexts]) -> Tensor:
            value, tokens = loss(self.model, self.place, *part)
            counted.append(tokens)
            return value

        return self.learn(batch, part_loss, 0)._replace(tokens=sum(counted))

    def measure(self) -> dict[str, float]:
        """Return the acceptance of blocks along a few held-out answers, and the gap to early training dialogues."""
        # The seed of the rows gives the dialogues that training read first.
        order = np.random.default_rng([0, 0]).permutation(np.asarray(self.training))
        return self.blocks(order[:EARLY].tolist(), *SHOWN)

    def blocks(self, known: Sequence[int], count: int, places: int, runs: int) -> dict[str, float]:
        """Return :func:`block_agreement` along ``count`` held-out greedy answers.

        ``gap``: τ on the training dialogues ``known`` minus τ on held-out answers.
        """
        found, learned = (
            block_agreement(
                self.model, self.dialogues, data.greedy_only(self.dialogues, numbers)[:count], self.markers, places, runs
            )
            for numbers in (self.held_out, known)
        )
        return {**found, "gap": learned["tau"] - found["tau"]}

    def metrics(self) -> dict[str, Any]:
        history = self.progress.history
        curve = [{name: entry[name] for name in ("tokens", "tau", "gap")} for entry in history]
        return {**self.blocks(self.training, *MEASURED), "curve": curve}


def loss(model: MaskedLM, place: Tensor, masked: MaskedTexts) -> tuple[Tensor, int]:
    """Return the weighted cross-entropy in nats of masked tokens in the draft vocabulary, and the number of these tokens."""
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
    """Return metrics of speculative decoding along the ``chosen`` greedy answers with blocks of ``places`` tokens.

    ``runs``: approximate number of steps. ``longest``: longest accepted prefix of a block. Metrics by depth cover eight
    positions.
    """

    def drafter(text: Tensor, first: int) -> Callable[[int], Tensor]:
        return lambda done: acceptance.ranks_of(
            model(text[: first + done], places), text[first + done :][:places], model.draft_ids
        )

    ranks = acceptance.steps_along(dialogues, chosen, markers, places, runs, drafter, model.embedding.device)
    lengths = (ranks == 0).int().cumprod(1).sum(1).tolist()
    shown = acceptance.metrics(ranks[:, :8], alone=True)
    return {**shown, "tau": 1 + float(np.mean(lengths or [0])), "longest": max(lengths, default=0), "steps": len(lengths)}


WINDOW = 384
SHOWN, MEASURED = (12, 16, 1000), (120, 32, 4000)
"""(Number of dialogues, block length, number of steps) for milestones and for the card."""
EARLY = 2000
"""Number of training dialogues, the first ones read, with which milestones compare held-out ones."""


def from_autoregressive(start: SmallLM, window: int = WINDOW) -> MaskedLM:
    """Return a masked model initialised from ``start``, with the mean embedding as the mask embedding."""
    model = MaskedLM(replace(start.config, window=window), start.embedding, start.draft_ids).to(start.embedding.device)
    known = {name: value.detach().clone().float() for name, value in start.state_dict().items()}
    model.load_state_dict({**known, "blank": start.embedding.float().mean(0, keepdim=True)})
    return model.requires_grad_(True)


SECOND = "refinement"
START = "masked_lm"


RANK = 24
"""Rank of the change."""
REACH, EMPHASIS = 32, 1.2
"""Maximum number of masked tokens R and emphasis alpha of the second stage; the paper uses 96 and 1.01.

The paper's accepted blocks are three times as long. Here the last tokens are rarely reached, so they weigh less.
"""
CALM = 0.25
"""Peak learning rate of the second stage, as a share of the first stage's.

Texts of the second stage have few masks, so gradients are noisy. At the full rate, acceptance of the first token fell from 0.405
to 0.385.
"""


class DeerTraining(MaskedTraining):
    """Training in two stages, each with an optimizer and a learning rate schedule."""

    second = (SECOND, 0.4)

    def __init__(self, model: MaskedLM, inputs: TrainInputs, settings: Schedule) -> None:
        super().__init__(model, inputs, settings, LowRank(model, RANK))

    def enter(self, stage: str) -> None:
        super().enter(stage)
        self.move(self.leaves)
        self.begin()

    def rate(self, share: float) -> float:
        """Return the learning rate, with a warm-up and a decay in each stage."""
        first, peak = self.second[1], self.settings.peak
        share, peak = ((share - first) / (1 - first), peak * CALM) if self.in_second_stage else (share / first, peak)
        return driver.rate(peak, share, self.optimizer.updates, self.settings.warm)

    def texts(self, update: int) -> Iterator[list[MaskedTexts]]:
        """Yield the batches of the stage. A seed per update lets a resumed run continue with the same batches."""
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

    def metrics(self) -> dict[str, Any]:
        """Return the metrics on the initial model's card, and the metrics with the change."""
        card = read_weights(WEIGHTS / f"{START}.safetensors")[1]
        return {"start": json.loads(card.get("metrics", "{}")), "deer": self.blocks(self.training, *MEASURED)}

    def example(self, number: int, share: float, generator: np.random.Generator) -> Example:
        """Return a dialogue as an example for the stage."""
        tokens = np.concatenate((np.asarray(self.markers.prefix, np.int64), self.dialogues.of(number)))
        first = len(self.markers.prefix) + int(self.dialogues.prompt[number])
        example = (
            refinement(tokens, first, REACH, EMPHASIS, generator)
            if self.in_second_stage
            else continuation(tokens, first, share, generator)
        )
        return Example(*(part[-self.model.config.window :] for part in example))


def make(job: Job) -> None:
    """Train, measure on held-out answers, and write ``assets/weights/masked_lm.safetensors`` or ``deer.safetensors``."""
    inputs = gather(job)
    where, settings = inputs.device, driver.settings_for(job, inputs.device)
    embedding = inputs.assets.embedding
    if job.recipe.name == "deer":
        base = WEIGHTS / f"{START}.safetensors"
        change = DeerTraining(MaskedLM.load(base, (embedding,), torch.float32, where), inputs, settings)
        run(job, inputs, change, change.save, **{BASE_KEY: named(base)})
        return
    small = WEIGHTS / "small_draft.safetensors"
    start = SmallLM.load(small, (embedding,), torch.float32, where)
    state = MaskedTraining(from_autoregressive(start), inputs, settings)
    run(job, inputs, state, state.model.save, start=f"{small.name} sha256 {digest(small)}")
