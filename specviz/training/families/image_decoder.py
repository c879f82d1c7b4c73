"""``train image_decoder``: the same picture codes, better drawn.

Encoder and codebook stay as they are, so that nothing else has to be trained again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from specviz.drafters.networks.weights import read_weights, write_weights
from specviz.models.device import choose_device
from specviz.models.image.image import weights_of
from specviz.training import driver
from specviz.training.driver import Schedule, Step, TrainState
from specviz.training.families import emoji
from specviz.training.families.image_codes import PREFIX, encode, vq_model
from specviz.training.families.image_vq import Pictures, held_out_pixels, reconstruction
from specviz.training.registry import Job, recipes

WHOLE, SHRUNK = 6, 8


class DecoderTraining(TrainState):
    """The shipped picture tokenizer, whose decoder is learned further."""

    unit = "pictures"

    def __init__(self, settings: Schedule, device: torch.device) -> None:
        self.net, art = vq_model()[0].to(device).requires_grad_(True), emoji.load()
        self.pictures, self.held_out = Pictures(art, device, seed=7), held_out_pixels(art, 102)
        learned = {name: value for name, value in self.net.named_parameters() if name.startswith(("decoder", "post_quant_conv"))}
        super().__init__(settings, learned)

    def step(self, share: float) -> Step:
        """Shrunk pictures and whole ones."""
        parts = [(F.avg_pool2d(self.pictures.draw(SHRUNK), 2), 0.4), (self.pictures.draw(WHOLE), 0.6)]

        def loss(some: Sequence[tuple[Tensor, float]]) -> Tensor:
            ((pixels, weight),) = some
            return weight * reconstruction(self.drawn(pixels), pixels)

        return self.learn(parts, loss, SHRUNK + WHOLE)

    def drawn(self, pixels: Tensor) -> Tensor:
        """What the codes of pixels [picture, rgb, row, column] give back."""
        side = pixels.shape[-1] // 4
        codes = encode(self.net, pixels).clone()
        vectors = self.net.quantize.embedding.weight.detach()[codes].view(len(pixels), side, side, -1)
        return self.net.decoder(self.net.post_quant_conv(vectors.permute(0, 3, 1, 2))).float()

    @torch.no_grad()
    def decibels(self, pixels: Tensor) -> float:
        """Mean peak signal to noise of reconstructions."""
        parts = pixels.to(self.device).split(34)
        errors = [(self.drawn(part).clamp(-1, 1) - part).square().mean(dim=(1, 2, 3)) / 4 for part in parts]
        return float(-10 * torch.cat(errors).log10().mean())

    def measure(self) -> dict[str, float]:
        return {"psnr64": self.decibels(self.held_out), "psnr32": self.decibels(F.avg_pool2d(self.held_out, 2))}


def make(job: Job) -> None:
    """Train the decoder alone, measure on held-out concepts, write ``assets/weights/image_vq.safetensors`` again."""
    device = choose_device(job.device)
    stored, card = read_weights(weights_of("image_vq"))
    state = DecoderTraining(driver.settings_for(job, device, Schedule), device)
    driver.train(state, driver.checkpoint_of(job.recipe.name))

    def save(path: Path, facts: dict[str, str]) -> None:
        write_weights(path, stored | {PREFIX + name: value.data for name, value in state.leaves.items()}, facts)

    spent = f"{card['spent']}; the decoder {state.progress.spent(device.type, state.unit)} more"
    facts = driver.card(job, state.settings, card["data"], spent, state.measure(), emoji.LICENCE, codebook=card["codebook"])
    driver.ship(replace(job, recipe=recipes()["image_vq"]), facts, save)
