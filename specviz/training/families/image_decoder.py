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
from specviz.training.common import parallel
from specviz.training.common.loop import Schedule, checkpoint_of, train
from specviz.training.families import emoji
from specviz.training.families.image_codes import PREFIX, encode, vq_model
from specviz.training.families.image_samples import reconstructions
from specviz.training.families.image_training import ImageTraining, named, weights_file
from specviz.training.families.image_vq import Pictures, held_out_pixels, reconstruction
from specviz.training.registry import WEIGHTS, Job

WHOLE, SHRUNK = 6, 8


class DecoderTraining(ImageTraining):
    """The shipped picture tokenizer, whose decoder is learned further."""

    unit = "pictures"

    def __init__(self, settings: Schedule, device: torch.device) -> None:
        self.stored, self.stored_card = read_weights(weights_of("image_vq"))
        self.net, self.device = vq_model()[0].to(device).requires_grad_(True), device
        art = emoji.load()
        self.pictures, self.held_out = Pictures(art, device, seed=7), held_out_pixels(art, 102)
        super().__init__(settings, named(self.net, "decoder", "post_quant_conv"))

    def backward(self, share: float) -> tuple[float, int]:
        total = 0.0
        for pixels, weight in ((F.avg_pool2d(self.pictures.draw(SHRUNK), 2), 0.4), (self.pictures.draw(WHOLE), 0.6)):
            loss = weight * reconstruction(self.drawn(pixels), pixels)
            loss.backward()
            total += float(loss.detach())
        return total, SHRUNK + WHOLE

    def drawn(self, pixels: Tensor) -> Tensor:
        """What the codes of pixels [picture, rgb, row, column] give back."""
        side = pixels.shape[-1] // 4
        codes = encode(self.net, pixels).clone()
        vectors = self.net.quantize.embedding.weight.detach()[codes].view(len(pixels), side, side, -1)
        with parallel.arithmetic(self.device):
            return self.net.decoder(self.net.post_quant_conv(vectors.permute(0, 3, 1, 2))).float()

    @torch.no_grad()
    def decibels(self, pixels: Tensor) -> float:
        """Mean peak signal to noise of reconstructions."""
        parts = pixels.to(self.device).split(34)
        errors = [(self.drawn(part).clamp(-1, 1) - part).square().mean(dim=(1, 2, 3)) / 4 for part in parts]
        return float(-10 * torch.cat(errors).log10().mean())

    def measure(self) -> dict[str, float]:
        return {"psnr64": self.decibels(self.held_out), "psnr32": self.decibels(F.avg_pool2d(self.held_out, 2))}

    def export(self) -> None:
        """The averaged decoder with the encoder and codebook of before."""
        stored = self.stored_card
        facts = self.card("image_vq, then image_decoder", stored["data"], self.measure(), codebook=stored["codebook"])
        facts["spent"] = f"{stored['spent']}; the decoder {facts['spent']} more"
        tensors = self.stored | {PREFIX + name: value.data for name, value in self.leaves.items()}
        write_weights(weights_file(WEIGHTS, "image_vq"), tensors, facts)
        print("written:", facts["metrics"], flush=True)


def make(job: Job) -> None:
    """Train the decoder alone, measure on held-out concepts, write ``assets/weights/image_vq.safetensors`` again."""
    settings = Schedule(job.minutes, peak=0.005, every=1.0, resume=job.resume)
    train(DecoderTraining(settings, choose_device(job.device)), checkpoint_of("image_decoder"))
    print("drawn:", reconstructions().name, flush=True)
