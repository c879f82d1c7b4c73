"""``train image_decoder``: the same picture codes, better drawn.

Encoder and codebook stay as they are, so that nothing else has to be trained again.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from specviz.drafters.networks.weights import read_weights, write_weights
from specviz.models.device import choose_device
from specviz.models.image.image import weights_of
from specviz.training.common import trainer
from specviz.training.common.loop import Plan, Training, card, named, weights_file
from specviz.training.image import emoji
from specviz.training.image.fast_norm import quicken
from specviz.training.image.image_codes import PREFIX, encode, vq_model
from specviz.training.image.image_sheets import reconstructions
from specviz.training.image.make_image_vq import Pictures, held_out_pixels, reconstruction
from specviz.training.registry import WEIGHTS, Job

WHOLE, SHRUNK = 6, 8
NAME = "image_decoder"


class Redrawing:
    """The shipped picture tokenizer, whose decoder is learned further."""

    def __init__(self, device: torch.device) -> None:
        self.stored, self.before = read_weights(weights_of("image_vq"))
        self.net = quicken(vq_model()[0]).to(device).requires_grad_(True)
        self.device = device

    def drawn(self, pixels: Tensor) -> Tensor:
        """What the codes of pixels [picture, rgb, row, column] give back."""
        side = pixels.shape[-1] // 4
        codes = encode(self.net, pixels).clone()
        vectors = self.net.quantize.embedding.weight.detach()[codes].view(len(pixels), side, side, -1)
        with trainer.arithmetic(self.device):
            return self.net.decoder(self.net.post_quant_conv(vectors.permute(0, 3, 1, 2))).float()

    @torch.no_grad()
    def decibels(self, pixels: Tensor) -> float:
        """Mean peak signal to noise of reconstructions."""
        parts = pixels.to(self.device).split(34)
        errors = [(self.drawn(part).clamp(-1, 1) - part).square().mean(dim=(1, 2, 3)) / 4 for part in parts]
        return float(-10 * torch.cat(errors).log10().mean())

    def write(self, training: Training, pixels: Tensor) -> None:
        """The averaged decoder with the encoder and codebook of before."""
        now = {name: value.data.clone() for name, value in training.leaves.items()}
        better = training.averaged()
        _set(training, better)
        found = {"psnr64": self.decibels(pixels), "psnr32": self.decibels(F.avg_pool2d(pixels, 2))}
        _set(training, now)
        facts = card("image_vq, then image_decoder", self.before["data"], training.progress, found)
        facts |= {
            "codebook": self.before["codebook"],
            "spent": f"{self.before['spent']}; the decoder {facts['spent']} more",
        }
        tensors = self.stored | {PREFIX + name: value for name, value in better.items()}
        write_weights(weights_file(WEIGHTS, "image_vq"), tensors, facts)
        print("written:", facts["metrics"], flush=True)


def _set(training: Training, values: dict[str, Tensor]) -> None:
    for name, value in values.items():
        training.leaves[name].data.copy_(value)


def make(job: Job) -> None:
    """Train the decoder alone, measure on held-out concepts, write ``assets/weights/image_vq.safetensors`` again."""
    device = choose_device(job.device)
    art = emoji.load()
    vq, pictures = Redrawing(device), Pictures(art, device, seed=7)
    held_out = held_out_pixels(art, 102)
    parameters = named(vq.net, "decoder", "post_quant_conv")
    training = Training(NAME, parameters, Plan(job.minutes, peak=0.005), job.resume, {})

    def step(share: float) -> dict[str, float]:
        total = 0.0
        for pixels, weight in ((F.avg_pool2d(pictures.draw(SHRUNK), 2), 0.4), (pictures.draw(WHOLE), 0.6)):
            found = weight * reconstruction(vq.drawn(pixels), pixels)
            found.backward()
            total += float(found.detach())
        return {"loss": total}

    training.run(step, dict, lambda: vq.write(training, held_out))
    print("drawn:", reconstructions().name, flush=True)
