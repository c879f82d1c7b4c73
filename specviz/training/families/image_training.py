"""The training of an image recipe: gradients that a backward pass left on its parameters, an early export, and its card."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from specviz.models.device import cpu_has_bfloat16
from specviz.training.common.card import card
from specviz.training.common.loop import Schedule, Step, TrainState
from specviz.training.common.optimizer import Optimizer
from specviz.training.common.parallel import Part, gradients
from specviz.training.families import emoji

LICENCE = "Apache-2.0; learned from Noto Emoji (Apache-2.0), Twemoji (CC-BY 4.0), Fluent Emoji (MIT)"


class ImageTraining(TrainState):
    """Parameters by name, whose gradients :meth:`backward` leaves on them or :meth:`shared` sums over threads."""

    unit = "codes"
    backward: Callable[[float], tuple[float, int]]
    """Leaves the gradients of the next update's pictures on the leaves; their loss, and how many codes were read."""

    def __init__(
        self, settings: Schedule, leaves: Mapping[str, nn.Parameter], buffers: Mapping[str, Tensor] | None = None,
        average: float = 0.99,
    ) -> None:  # fmt: skip
        """``buffers`` are further tensors that belong to the checkpoint and change in place."""
        self.leaves = dict(leaves)
        flat = {key: _flat(value.data) for key, value in self.leaves.items()}
        rough = torch.bfloat16 if cpu_has_bfloat16() else None
        super().__init__(settings, Optimizer(flat, average=average, rough=rough), buffers=buffers)

    def step(self, share: float) -> Step:
        """Loss and gradients, which are taken off the leaves."""
        loss, codes = self.backward(share)
        leaf_gradients = {key: _flat(value.grad) for key, value in self.leaves.items() if value.grad is not None}
        for value in self.leaves.values():
            value.grad = None
        return Step(loss, codes, leaf_gradients)

    def shared(self, parts: Sequence[Part], loss: Callable[[Part], Tensor], codes: int) -> Step:
        """Loss and gradients summed over ``parts``, which the workers share."""
        leaf_gradients, value = gradients(parts, loss, list(self.leaves.values()), self.settings.workers)
        return Step(value, codes, {key: _flat(gradient) for key, gradient in zip(self.leaves, leaf_gradients, strict=True)})

    def average(self) -> dict[str, Tensor]:
        """The weights averaged over the last updates, in their own shapes."""
        return {key: value.view_as(self.leaves[key]) for key, value in self.optimizer.averaged().items()}

    def card(self, name: str, data: str, figures: Mapping[str, float], **more: str) -> dict[str, str]:
        """What travels inside the file of weights."""
        device = next(iter(self.leaves.values())).device.type
        facts = card(name, self.settings, data, self.progress.spent(device, self.unit), figures, LICENCE, **more)
        return {**facts, "metrics": "; ".join(f"{key} {value:.4g}" for key, value in figures.items())}


def emoji_line(*more: str) -> str:
    """What was learned from: the emoji art and the concepts that were kept out."""
    return "; ".join((f"emoji {emoji.digest()}, one concept in {emoji.HELD_OUT_EVERY} kept out", *more))


def _flat(value: Tensor) -> Tensor:
    """Convolutions as matrices [out, in * place], so that they are updated as matrices are."""
    return value if value.ndim < 2 else value.view(len(value), -1)


def named(model: nn.Module, *prefixes: str) -> dict[str, nn.Parameter]:
    """The parameters of ``model`` whose names start with one of ``prefixes``, all contiguous."""
    chosen = {key: value for key, value in model.named_parameters() if key.startswith(prefixes or "")}
    for value in chosen.values():
        value.data = value.data.contiguous()
    return chosen


def weights_file(folder: Path, recipe: str) -> Path:
    """Where a recipe's weights go."""
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"{recipe}.safetensors"
