"""``train masked_lm``: the small draft model's weights, taught to look both ways and to fill in masks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from specviz.drafters.networks.masked_lm import MaskedLM, save
from specviz.drafters.networks.small_lm import SmallLM
from specviz.drafters.networks.small_lm import load as load_small
from specviz.models.drafters.drafts import FILE as SMALL
from specviz.training import acceptance, data, driver, features, parallel
from specviz.training.data import IGNORED, Dialogues, Markers, Row
from specviz.training.driver import Schedule, Step, TrainState
from specviz.training.families.feature import MARKS
from specviz.training.features import TargetAssets
from specviz.training.optimizer import LowRank
from specviz.training.registry import Job

LEAST = 0.05
"""The smallest probability of being hidden: 1/t of a smaller one would drown all other rows."""
MEAN = (1 + LEAST) / 2
"""The probability of being hidden, on average."""


@dataclass(frozen=True)
class Masked:
    """Texts [row, token] with hidden places, what the loss of each place counts (0 where nothing is asked), and which
    places are text at all (None: all of them)."""

    ids: Tensor
    blank: Tensor
    weight: Tensor
    is_text: Tensor | None = None


@dataclass(frozen=True)
class Example:
    """One text [token] with its hidden places and their weights."""

    tokens: np.ndarray
    blank: np.ndarray
    weight: np.ndarray

    def last(self, window: int) -> Example:
        """The last ``window`` tokens of it."""
        return Example(self.tokens[-window:], self.blank[-window:], self.weight[-window:])


def probabilities(rows: int, generator: np.random.Generator) -> np.ndarray:
    """[row] shares of hidden tokens between LEAST and 1, evenly spread so that a small batch has easy and hard rows."""
    return LEAST + (1 - LEAST) * ((generator.random() + np.arange(rows) / rows) % 1)


def standard(rows: Sequence[Row], generator: np.random.Generator) -> Masked:
    """Every counted token of packed ``rows`` hidden with its row's probability t, its loss over t."""
    tokens = np.stack([row.tokens for row in rows])
    counted = np.zeros(tokens.shape, dtype=bool)
    counted[:, 1:] = np.stack([row.counts for row in rows])
    share = probabilities(len(rows), generator)[:, None]
    blank = counted & (generator.random(tokens.shape) < share)
    weight = blank / share / max(1, counted.sum())
    return Masked(torch.from_numpy(tokens), torch.from_numpy(blank), torch.from_numpy(weight).float())


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


def joined(examples: Sequence[Example], total: float) -> Masked:
    """Texts of different length as one batch, padded behind; weights are over ``total``."""
    width = max(len(example.tokens) for example in examples)
    shape = (len(examples), width)
    tokens, blank, weight = np.zeros(shape, np.int64), np.zeros(shape, bool), np.zeros(shape, np.float32)
    is_text = np.zeros(shape, bool)
    for place, example in enumerate(examples):
        size = len(example.tokens)
        tokens[place, :size], blank[place, :size], weight[place, :size] = example.tokens, example.blank, example.weight
        is_text[place, :size] = True
    where = None if is_text.all() else torch.from_numpy(is_text)
    return Masked(torch.from_numpy(tokens), torch.from_numpy(blank), torch.from_numpy(weight / np.float32(total)), where)


def in_parts(examples: Sequence[Example], size: int) -> list[Masked]:
    """The examples as batches of at most ``size`` texts of about the same length: little of them is padding."""
    total = sum(float(example.weight.sum()) for example in examples) or 1.0
    ordered = sorted(examples, key=lambda example: len(example.tokens))
    return [joined(ordered[start : start + size], total) for start in range(0, len(ordered), size)]


@dataclass(frozen=True)
class Settings(Schedule):
    """An update reads ``batch`` texts, ``texts`` of them in a pass."""

    peak: float = 0.003
    decay: float = 0.01
    every: float = 1.0
    patience: int = 8
    batch: int = 16
    part: int = 1
    texts: int = 8
    average: float = 0.98


class MaskedTraining(TrainState):
    """A masked language model that is trained whole or, where there is one, by a low-rank ``change`` alone."""

    unit = "hidden tokens"
    settings: Settings

    def __init__(
        self, model: MaskedLM, settings: Settings, examples: Callable[[int], Iterator[list[Masked]]],
        measured: Callable[[], Mapping[str, float]], change: LowRank | None = None,
    ) -> None:  # fmt: skip
        """``examples(update)`` are the masked texts of the updates from there on, a pass in each."""
        super().__init__(settings, dict(model.named_parameters()) if change is None else change.matrices, change)
        self.model, self.examples, self.measured = model, examples, measured
        self.place = data.places_in(model.draft_ids, model.config.vocab_size)
        self.settle()
        self.begin()

    def begin(self) -> None:
        self.stream = self.examples(self.progress.updates)

    def settle(self) -> None:
        """Apply the change; the folded head goes with the old weights."""
        super().settle()
        self.model.eval()

    def step(self, share: float) -> Step:
        """The next texts' loss and gradients."""
        return self.learn_from(next(self.stream))

    def learn_from(self, batch: Sequence[Masked]) -> Step:
        """Loss and gradients of these texts, and how many tokens were asked for."""
        counted: list[int] = []

        def part_loss(part: Sequence[Masked]) -> Tensor:
            (masked,) = part
            value, tokens = loss(self.model, self.place, masked)
            counted.append(tokens)
            return value

        return self.learn(batch, part_loss, 0)._replace(tokens=sum(counted))

    def measure(self) -> Mapping[str, float]:
        return self.measured()


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


@torch.inference_mode()
def block_agreement(
    model: MaskedLM, dialogues: Dialogues, chosen: Sequence[int], markers: Markers, places: int, runs: int
) -> dict[str, float]:
    """Speculate along ``chosen`` greedy answers with blocks of ``places`` tokens, at most ``runs`` steps: the figures of the
    first eight places, and the ``longest`` accepted block. A step that the answer's end cuts short is left out."""
    rows, device = [torch.zeros(0, places, dtype=torch.long)], model.embedding.device
    for number in chosen:
        answer = dialogues.answer(number)
        text = torch.tensor([*markers.prefix, *dialogues.of(number)], device=device)
        first = len(text) - len(answer)

        def accepted(done: int, text: Tensor = text, first: int = first) -> int:
            truth = text[first + done : first + done + places]
            rows.append(acceptance.ranks_of(model(text[: first + done], places), truth, model.draft_ids)[None].cpu())
            return int((rows[-1] == 0).int().cumprod(1).sum())

        if len(rows) <= runs:
            acceptance.steps_along(len(answer), places, accepted)
    ranks = torch.cat(rows)[:runs]
    lengths = (ranks == 0).int().cumprod(1).sum(1)
    longest = float(lengths.max()) if len(lengths) else 0.0
    shown = acceptance.figures(ranks[:, :8], alone=True)
    return {**shown, "tau": 1 + float(lengths.float().mean()), "longest": longest, "steps": float(len(ranks))}


@torch.inference_mode()
def first_overlap(
    model: MaskedLM, target: Callable[[Tensor], Tensor], dialogues: Dialogues, chosen: Sequence[int], markers: Markers,
    places: int, stride: int,
) -> float:  # fmt: skip
    """Mean of sum min(p, q) at the first place of a block at temperature 1: the probability that its first token is accepted.

    ``target`` gives logits [token, vocab] of ids [token]; every ``stride``-th place of each answer begins a block.
    """
    total, blocks = 0.0, 0
    for number in chosen:
        text = torch.tensor([*markers.prefix, *dialogues.of(number)], device=model.embedding.device)
        first = len(text) - len(dialogues.answer(number))
        distribution = target(text).float().softmax(-1)[:, model.draft_ids]
        for start in range(first, len(text), stride):
            ours = model(text[:start], places)[0].float().softmax(-1)
            total += float(torch.minimum(ours, distribution[start - 1]).sum())
            blocks += 1
    return total / max(1, blocks)


WINDOW = 384
SHOWN = (12, 16)
"""Dialogues and places of the figures that are shown while training."""
MEASURED = (120, 4000)
"""Held-out greedy dialogues, and steps at most."""
PLACES = 32
SAMPLED = (12, 9)
"""Held-out dialogues sampled at temperature 1, and the stride of the blocks in them."""
EARLY = 2000
"""The first dialogues that are learned from: at every milestone these have been."""


def from_autoregressive(start: SmallLM, window: int = WINDOW) -> MaskedLM:
    """The masked model that begins as ``start``: the same layers and projections, the mean embedding as the mask."""
    model = MaskedLM(replace(start.config, window=window), start.embedding, start.draft_ids).to(start.embedding.device)
    known = {name: value.detach().clone().float() for name, value in start.state_dict().items()}
    model.load_state_dict({**known, "blank": start.embedding.float().mean(0, keepdim=True)})
    return model.requires_grad_(True)


def prepare(model: MaskedLM, dialogues: Dialogues, markers: Markers, settings: Settings) -> MaskedTraining:
    """What trains ``model`` whole on the standard objective."""
    training, held_out = data.split(dialogues)
    # As the rows begin, which are drawn from the same seed.
    early = np.random.default_rng([settings.seed, 0]).permutation(np.asarray(training))[:EARLY].tolist()

    def figures() -> dict[str, float]:
        found = milestone_figures(model, dialogues, held_out, markers)
        known = milestone_figures(model, dialogues, early, markers)["tau"]
        return {"gap": known - found["tau"], **found}

    return MaskedTraining(
        model, settings, lambda start: _examples(dialogues, training, markers, settings, start, model.config.window), figures
    )


def _examples(
    dialogues: Dialogues, training: Sequence[int], markers: Markers, settings: Settings, start: int, window: int
) -> Iterator[list[Masked]]:
    """Packed rows with hidden tokens, in passes; after a resumption other rows rather than hours of skipping."""
    generator = np.random.default_rng([settings.seed, start])
    stream = data.rows(dialogues, training, markers, window - 1, generator)
    while True:
        masked = standard(list(islice(stream, settings.batch)), generator)
        cut = range(0, settings.batch, settings.texts)
        yield [Masked(*(part[at : at + settings.texts] for part in (masked.ids, masked.blank, masked.weight))) for at in cut]


def milestone_figures(model: MaskedLM, dialogues: Dialogues, held_out: Sequence[int], markers: Markers) -> dict[str, float]:
    """Figures while training: blocks along a few held-out greedy answers."""
    greedy = data.greedy_only(dialogues, held_out)[: SHOWN[0]]
    found = block_agreement(model, dialogues, greedy, markers, SHOWN[1], 1000)
    return {name: found[name] for name in ("tau", "first1", "alone2", "longest")}


def make(job: Job) -> None:
    """Train, measure what is shipped on held-out answers, write ``assets/weights/masked_lm.safetensors``."""
    files = data.find(job.data)
    assets = features.target_assets(job.device)
    dialogues = data.read_all(files)
    embedding = assets.embedding.to(assets.target.device)
    start = load_small(SMALL, embedding, torch.float32, embedding.device)
    model = from_autoregressive(start)
    # Milestones by answer tokens read, of which a share is asked for: hidden ones that the draft vocabulary has.
    answers = np.concatenate([dialogues.answer(number) for number in data.split(dialogues)[0]])
    share = MEAN * float(np.isin(answers, start.draft_ids.cpu().numpy()).mean())
    settings = driver.settings_for(job, embedding.device, Settings, marks=tuple(round(share * mark) for mark in MARKS))
    state = prepare(model, dialogues, assets.markers, settings)
    print(f"{settings}", flush=True)
    driver.train(state, driver.checkpoint_of(job.recipe.name))
    found = dict(driver.figures_at_rest(job, state, partial(save, model), lambda: measured(model, dialogues, assets)))
    found["curve"] = [
        {"tokens": entry["tokens"] / share, "tau": entry["tau"], "gap": entry["gap"]} for entry in state.progress.history
    ]
    more = {"start": f"{SMALL.name} sha256 {data.file_digest(SMALL)}", "tokenizer_hash": assets.target.tokenizer_hash}
    driver.finish(job, state, found, data.dialogues_line(files), partial(save, model), **more)


def measured(model: MaskedLM, dialogues: Dialogues, assets: TargetAssets) -> dict[str, object]:
    """Blocks along held-out greedy answers of the kinds that are reported, what learned ones bring beyond that, and the first
    place's probability at temperature 1."""
    training, held_out = data.split(dialogues)
    greedy = data.greedy_only(dialogues, held_out)[: MEASURED[0]]

    def blocks(numbers: Sequence[int]) -> dict[str, float]:
        return block_agreement(model, dialogues, numbers, assets.markers, PLACES, MEASURED[1])

    found, target = blocks(greedy), assets.target.model
    kinds = {f"tau, {name}": blocks(numbers)["tau"] for name, numbers in data.by_kind(dialogues, greedy).items()}
    gap = blocks(data.greedy_only(dialogues, training)[: MEASURED[0]])["tau"] - found["tau"]
    sampled = data.greedy_only(dialogues, held_out, 1.0)[: SAMPLED[0]]
    accepted = first_overlap(
        model, lambda ids: target(ids[None]).logits[0], dialogues, sampled, assets.markers, PLACES, SAMPLED[1]
    )  # fmt: skip
    return {**found, **kinds, "gap": gap, "first_at_temperature_1": accepted}
