"""``train masked_lm``: the small draft model's weights, taught to look both ways and to fill in masks.

``train deer``: a low-rank change to that, learned in two stages. DEER (arXiv 2512.15176): first the answer's continuation from a
random cut, then the last R tokens alone, the earliest of which count most. The paper puts a separator at the cut; here a row
predicts the place after it, so that the last token before the cut speaks for the first place, and the masks themselves say where
the text ends.
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
from specviz.models.heads.drafts import FILE as SMALL
from specviz.models.heads.lora_heads import CHANGES, digest
from specviz.training import acceptance, data, driver, parallel
from specviz.training.data import IGNORED, Dialogues, Markers, Row
from specviz.training.driver import Job, Schedule, Step, TrainState
from specviz.training.families.feature import TrainInputs, gather, run
from specviz.training.optimizer import LowRank
from specviz.training.registry import WEIGHTS

LEAST = 0.05
"""The smallest probability of being hidden: 1/t of a smaller one would drown all other rows."""


class Masked(NamedTuple):
    """Texts [row, token] with hidden places, what the loss of each place counts (0 where nothing is asked), and which
    places are text at all (None: all of them)."""

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
    """[row] shares of hidden tokens between LEAST and 1, evenly spread so that a small batch has easy and hard rows."""
    return LEAST + (1 - LEAST) * ((generator.random() + np.arange(rows) / rows) % 1)


def standard(rows: Sequence[Row], generator: np.random.Generator) -> list[Example]:
    """Every counted token of packed ``rows`` hidden with its row's probability t, its loss over t and their number."""
    counted = np.stack([np.append(False, row.counts) for row in rows])
    share = probabilities(len(rows), generator)[:, None]
    blank = counted & (generator.random(counted.shape) < share)
    weight = blank / share / max(1, counted.sum())
    return [Example(row.tokens, *parts) for row, *parts in zip(rows, blank, weight, strict=True)]


def continuation(tokens: np.ndarray, first: int, share: float, generator: np.random.Generator) -> Example:
    """DEER's first stage: the answer (from ``first`` on) is cut anywhere; what follows is hidden, each with ``share``."""
    cut = int(generator.integers(first, len(tokens)))
    blank = (np.arange(len(tokens)) >= cut) & (generator.random(len(tokens)) < share)
    return Example(tokens, blank, blank / share)


def refinement(tokens: np.ndarray, first: int, reach: int, emphasis: float, generator: np.random.Generator) -> Example:
    """DEER's second stage: a text that ends anywhere in the answer, its last R <= ``reach`` tokens hidden.

    The i-th of them counts ``emphasis`` ** (R - i): where a mistake costs the whole block, it costs most. Every text
    counts 1 in all: by their bare sums the few with the longest ends would drown the rest, the more so the larger
    ``emphasis`` (the paper saw 1.05 diverge with R up to 96).
    """
    end = int(generator.integers(first + 1, len(tokens) + 1))
    hidden = int(generator.integers(1, min(reach, end - first) + 1))
    blank = np.arange(end) >= end - hidden
    weight = blank * float(emphasis) ** (end - 1.0 - np.arange(end))
    return Example(tokens[:end], blank, weight / weight.sum())


def in_parts(examples: Sequence[Example], size: int, total: float = 1.0) -> list[Masked]:
    """The examples as batches of at most ``size`` texts of about the same length, padded behind; weights are over ``total``."""
    ordered, parts = sorted(examples, key=lambda example: len(example.tokens)), list[Masked]()
    for start in range(0, len(ordered), size):
        some = ordered[start : start + size]
        columns = zip(*((example.tokens, example.blank, example.weight / total) for example in some), strict=True)
        tokens, blank, weight = (pad_sequence([torch.from_numpy(row) for row in column], True) for column in columns)
        lengths = torch.tensor([len(example.tokens) for example in some])
        is_text = torch.arange(tokens.shape[1]) < lengths[:, None]
        parts.append(Masked(tokens, blank, weight.float(), None if is_text.all() else is_text))
    return parts


class MaskedTraining(TrainState):
    """A masked language model that is trained whole or, where there is one, by a low-rank ``change`` alone."""

    unit = "hidden tokens"

    def __init__(self, model: MaskedLM, inputs: TrainInputs, settings: Schedule, change: LowRank | None = None) -> None:
        super().__init__(settings, change or model)
        self.model = self.folding = model
        self.part = 1  # a pass is made where its texts are hidden
        self.dialogues, self.markers = inputs.dialogues, inputs.assets.markers
        self.training, self.held_out = data.split(self.dialogues)
        self.place = data.places_in(model.draft_ids, model.config.vocab_size)
        self.settle()
        self.begin()

    def begin(self) -> None:
        self.stream = self.texts(self.progress.updates)

    def texts(self, update: int) -> Iterator[list[Masked]]:
        """The masked texts of the updates from there on, a pass in each: packed rows, other ones where a training goes on."""
        settings, generator = self.settings, np.random.default_rng([0, update])
        stream = data.rows(self.dialogues, self.training, self.markers, self.model.config.window - 1, generator)
        while True:
            yield in_parts(standard(list(islice(stream, settings.batch)), generator), settings.part)

    def learn_from(self, batch: Sequence[Masked]) -> Step:
        """Loss and gradients of these texts, and how many tokens were asked for."""
        counted: list[int] = []

        def part_loss(part: Sequence[Masked]) -> Tensor:
            value, tokens = loss(self.model, self.place, *part)
            counted.append(tokens)
            return value

        return self.learn(batch, part_loss, 0)._replace(tokens=sum(counted))

    def measure(self) -> dict[str, float]:
        """Blocks along a few held-out answers, and the gap to the first ones that were read."""
        # As the rows begin, which are drawn from the same seed.
        order = np.random.default_rng([0, 0]).permutation(np.asarray(self.training))
        return self.blocks(order[:EARLY].tolist(), *SHOWN)

    def blocks(self, known: Sequence[int], count: int, places: int, runs: int) -> dict[str, float]:
        """:func:`block_agreement` along ``count`` held-out greedy answers, and what ``known`` ones bring beyond that."""
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


def loss(model: MaskedLM, place: Tensor, masked: Masked) -> tuple[Tensor, int]:
    """Weighted cross-entropy (nats) of the hidden tokens that the draft vocabulary has, and how many there are."""
    device = place.device
    ids, blank, weight = (part.to(device) for part in (masked.ids, masked.blank, masked.weight))
    label = place[ids[:, 1:]]
    mask = blank[:, 1:] & (label != IGNORED) & (weight[:, 1:] > 0)
    is_text = None if masked.is_text is None else masked.is_text.to(device)
    states = model.features(ids, blank, is_text)[:, :-1][mask]
    logits = parallel.evenly(partial(F.linear, weight=model.head(), bias=model.bias), states)
    losses = F.cross_entropy(logits.float(), label[mask], reduction="none")
    return (losses * weight[:, 1:][mask]).sum(), int(mask.sum())


def block_agreement(
    model: MaskedLM, dialogues: Dialogues, chosen: Sequence[int], markers: Markers, places: int, runs: int
) -> dict[str, float]:
    """Speculate along ``chosen`` greedy answers with blocks of ``places`` tokens, at most ``runs`` steps: the figures of the
    first eight places, and the ``longest`` accepted block."""

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
"""Dialogues, places, and steps at most of the figures that are shown while training, and of those of the card."""
EARLY = 2000
"""The first dialogues that are learned from: at every milestone these have been."""


def from_autoregressive(start: SmallLM, window: int = WINDOW) -> MaskedLM:
    """The masked model that begins as ``start``: the same layers and projections, the mean embedding as the mask."""
    model = MaskedLM(replace(start.config, window=window), start.embedding, start.draft_ids).to(start.embedding.device)
    known = {name: value.detach().clone().float() for name, value in start.state_dict().items()}
    model.load_state_dict({**known, "blank": start.embedding.float().mean(0, keepdim=True)})
    return model.requires_grad_(True)


SECOND = "refinement"
START = "masked_lm"


RANK = 24
"""Of the change."""
REACH, EMPHASIS = 32, 1.2
"""In the second stage up to so many tokens are hidden, 96 in the paper, whose blocks are accepted three times as far. The other
is its alpha: 1.01 there, so that the first of them counts 2.6 times what the last does; here what is rarely reached can wait."""
CALM = 0.25
"""How far an update of the second stage goes, of one of the first: its texts have few hidden tokens, at the first stage's pace
their noise undid more at the first place (0.405 to 0.385) than was learned."""


class DeerTraining(MaskedTraining):
    """Both stages, each with an optimizer and a schedule of its own."""

    second = (SECOND, 0.4)

    def __init__(self, model: MaskedLM, inputs: TrainInputs, settings: Schedule) -> None:
        super().__init__(model, inputs, settings, LowRank(model, RANK))

    def enter(self, stage: str) -> None:
        super().enter(stage)
        self.move(self.leaves)
        self.begin()

    def rate(self, share: float) -> float:
        """Each stage warms up and falls by itself."""
        first, peak = self.second[1], self.settings.peak
        share, peak = ((share - first) / (1 - first), peak * CALM) if self.advanced else (share / first, peak)
        return driver.rate(peak, share, self.optimizer.updates, self.settings.warm)

    def texts(self, update: int) -> Iterator[list[Masked]]:
        """Batches of the stage, every dialogue before any twice; an update has numbers of its own, so that a resumed training
        sees what it would have."""
        settings, seed = self.settings, [0, int(self.advanced)]
        size, update = settings.later if self.advanced else settings.batch, update - self.progress.entered
        while True:
            generator = np.random.default_rng([*seed, update])
            chosen = data.in_turn(self.training, update * size, size, seed)
            shares = probabilities(len(chosen), generator)
            examples = [self.example(number, float(share), generator) for number, share in zip(chosen, shares, strict=True)]
            total = sum(float(example.weight.sum()) for example in examples) or 1.0
            yield in_parts(examples, settings.part, total)
            update += 1

    def figures(self) -> dict[str, Any]:
        """Beside those of the start, from its card."""
        card = read_weights(WEIGHTS / f"{START}.safetensors")[1]
        return {"start": json.loads(card.get("metrics", "{}")), "deer": self.blocks(self.training, *MEASURED)}

    def example(self, number: int, share: float, generator: np.random.Generator) -> Example:
        """One dialogue as an example of the stage."""
        tokens = np.concatenate((np.asarray(self.markers.prefix, np.int64), self.dialogues.of(number)))
        first = len(self.markers.prefix) + int(self.dialogues.prompt[number])
        example = (
            refinement(tokens, first, REACH, EMPHASIS, generator)
            if self.advanced
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
        run(job, inputs, change, change.save, **{CHANGES: f"{base.name} {digest(base)}"})
        return
    start = SmallLM.load(SMALL, (embedding,), torch.float32, where)
    state = MaskedTraining(from_autoregressive(start), inputs, settings)
    run(job, inputs, state, state.model.save, start=f"{SMALL.name} sha256 {digest(SMALL)}")
