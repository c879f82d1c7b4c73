"""The training of masked language models: masked texts in, the gradients of the whole network or of a low-rank change out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from specviz.drafters.networks.masked_lm import MaskedLM
from specviz.training.common import parallel
from specviz.training.common.data import IGNORED, places_in
from specviz.training.common.loop import Schedule, Step, TrainState
from specviz.training.common.optimizer import Optimizer
from specviz.training.diffusion.masking import Masked
from specviz.training.feature.gto import LowRank


@dataclass(frozen=True)
class Settings(Schedule):
    """An update reads ``batch`` texts, ``part`` at a time on each of ``workers`` cores. ``half`` computes in bfloat16, which
    pays where the processor can. ``average`` is the share that an average of the weights keeps at each update."""

    minutes: float = 16.0
    peak: float = 0.003
    decay: float = 0.01
    every: float = 1.0
    patience: int = 8
    batch: int = 16
    part: int = 8
    average: float = 0.98
    half: bool = True


class MaskedTraining(TrainState):
    """A masked language model that is trained whole or, where there is one, by a low-rank ``change`` alone."""

    unit = "hidden"
    settings: Settings

    def __init__(
        self, model: MaskedLM, settings: Settings, examples: Callable[[int], Iterator[list[Masked]]],
        measured: Callable[[], Mapping[str, float]], change: LowRank | None = None,
    ) -> None:  # fmt: skip
        """``examples(update)`` are the masked texts of the updates from there on."""
        parameters = dict(model.named_parameters()) if change is None else change.factors
        super().__init__(settings, Optimizer(parameters, average=settings.average))
        self.model, self.examples, self.measured, self.change = model, examples, measured, change
        self.leaves = list(parameters.values()) if change is None else change.leaves
        self.place = places_in(model.draft_ids, model.config.vocab_size)
        self.settle()
        self.begin()

    def begin(self) -> None:
        self.stream = self.examples(self.progress.updates)

    def settle(self) -> None:
        """Apply the change; the folded head goes with the old weights."""
        if self.change is not None:
            self.change.put()
        self.model.eval()

    def step(self, share: float) -> Step:
        """The next texts' loss and gradients."""
        return self.learn_from(next(self.stream))

    def learn_from(self, batch: Sequence[Masked]) -> Step:
        """Loss and gradients of these texts, and how many tokens were asked for."""
        counted: list[int] = []

        def part_loss(part: Masked) -> Tensor:
            value, tokens = loss(self.model, self.place, part, self.settings.half)
            counted.append(tokens)
            return value

        leaf_gradients, value = parallel.gradients(list(batch), part_loss, self.leaves, self.settings.workers)
        gradients = (
            dict(zip(self.optimizer.parameters, leaf_gradients, strict=True))
            if self.change is None
            else self.change.gradients(leaf_gradients)
        )
        return Step(value, sum(counted), gradients)

    def measure(self) -> Mapping[str, float]:
        return self.measured()


def loss(model: MaskedLM, place: Tensor, masked: Masked, half: bool) -> tuple[Tensor, int]:
    """Weighted cross-entropy (nats) of the hidden tokens that the draft vocabulary has, and how many there are."""
    device = place.device
    ids, blank, weight = (part.to(device) for part in (masked.ids, masked.blank, masked.weight))
    label = place[ids[:, 1:]]
    mask = blank[:, 1:] & (label != IGNORED) & (weight[:, 1:] > 0)
    with torch.autocast(device.type, torch.bfloat16, enabled=half):
        is_text = None if masked.is_text is None else masked.is_text.to(device)
        features = model.features(ids, blank, is_text)[:, :-1][mask]
        logits = parallel.evenly(partial(F.linear, weight=model.head(), bias=model.bias), features)
    losses = F.cross_entropy(logits.float(), label[mask], reduction="none")
    return (losses * weight[:, 1:][mask]).sum(), int(mask.sum())
