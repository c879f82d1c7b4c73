"""``train image_decoder``: the same picture codes, better drawn.

Encoder and codebook stay as they are, so that nothing else has to be trained again.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from specviz.drafters.weights import read_weights, write_weights
from specviz.models.device import choose_device
from specviz.models.image import weights_of
from specviz.training import emoji
from specviz.training.fast_norm import quicken
from specviz.training.image_codes import PREFIX, encode, vq_model
from specviz.training.image_loop import Plan, Training, card, named, weights_file
from specviz.training.image_sheets import reconstructions
from specviz.training.make_image_vq import Pictures, held_out_pixels, reconstruction
from specviz.training.registry import WEIGHTS, Job

WHOLE, SHRUNK = 6, 8


def make(job: Job) -> None:
    """Train the decoder alone, measure on held-out concepts, write ``assets/weights/image_vq.safetensors`` again."""
    device = choose_device(job.device)
    art = emoji.load()
    stored, before = read_weights(weights_of("image_vq"))
    net = quicken(vq_model()[0]).to(device).requires_grad_(True)
    pictures = Pictures(art, device, seed=7)
    training = Training(
        "image_decoder", named(net, "decoder", "post_quant_conv"), Plan(job.minutes, peak=0.005), job.resume, {}
    )

    def drawn(pixels: Tensor) -> Tensor:
        codes = encode(net, pixels)
        side = pixels.shape[-1] // 4
        vectors = (
            net.quantize.embedding.weight.detach()[codes.clone()].view(len(pixels), side, side, -1).permute(0, 3, 1, 2)
        )
        with torch.autocast(device.type, torch.bfloat16):
            return net.decoder(net.post_quant_conv(vectors)).float()

    def step(share: float) -> dict[str, float]:
        small = F.avg_pool2d(pictures.draw(SHRUNK), 2)
        total = 0.0
        for pixels, weight in ((small, 0.4), (pictures.draw(WHOLE), 0.6)):
            found = weight * reconstruction(drawn(pixels), pixels)
            found.backward()
            total += float(found.detach())
        return {"loss": total}

    def measure() -> dict[str, float]:
        pixels = held_out_pixels(art, 102)
        with torch.no_grad():
            return {"psnr64": decibels(drawn, pixels), "psnr32": decibels(drawn, F.avg_pool2d(pixels, 2))}

    def export() -> None:
        now = {name: value.data.clone() for name, value in training.leaves.items()}
        better = training.averaged()
        for name, value in better.items():
            training.leaves[name].data.copy_(value)
        facts = card(
            "image_vq, then image_decoder", before["data"], training.progress, measure(), codebook=before["codebook"]
        )
        facts["spent"] = f"{before['spent']}; then {facts['spent']} of the decoder alone"
        write_weights(
            weights_file(WEIGHTS, "image_vq"),
            {**stored, **{PREFIX + name: value for name, value in better.items()}},
            facts,
        )
        print("written:", facts["metrics"], flush=True)
        for name, value in now.items():
            training.leaves[name].data.copy_(value)

    training.run(step, dict, export)
    print("drawn:", reconstructions().name, flush=True)


def decibels(drawn: Callable[[Tensor], Tensor], pixels: Tensor) -> float:
    """Mean peak signal to noise of reconstructions."""
    errors = [(drawn(part).clamp(-1, 1) - part).square().mean(dim=(1, 2, 3)) / 4 for part in pixels.split(34)]
    return float(-10 * torch.cat(errors).log10().mean())
