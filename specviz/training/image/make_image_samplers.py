"""``train image_samplers``: pairs of coarse and fine picture codes in, the two row-causal samplers out.

Learned on the codes' vectors, and through the frozen decoder on pixels. Peruzzo et al. 2026 (arXiv 2601.05149).
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from specviz.drafters.networks.latent_samplers import LatentSamplers, SamplerConfig, save
from specviz.models.device import choose_device
from specviz.training.common import trainer
from specviz.training.common.loop import Plan, Training, card, weights_file
from specviz.training.image import emoji
from specviz.training.image.fast_norm import quicken
from specviz.training.image.image_codes import Coded, coded, vq_model
from specviz.training.registry import WEIGHTS, Job

BATCH = 48
DRAWN = 6
"""How many of a batch are also compared in pixels."""
COARSE, FINE = 8, 16


def pairs(data: tuple[Coded, Coded], held_out: bool) -> np.ndarray:
    """Rows of pictures to learn from or kept out, of all concepts that can be drawn."""
    return np.array([row for one in data[0].part(held_out) for row in one.rows.values()])


def batch(data: tuple[Coded, Coded], rows: np.ndarray, grounds: np.ndarray) -> tuple[Tensor, Tensor]:
    """Coarse [picture, row, column] and fine codes of these pictures."""
    coarse, fine = (torch.from_numpy(one.codes[rows, grounds].astype(np.int64)) for one in data)
    return coarse.view(-1, COARSE, COARSE), fine.view(-1, FINE, FINE)


@torch.no_grad()
def measure(net: LatentSamplers, coarse: Tensor, fine: Tensor) -> dict[str, float]:
    """How often the very code is hit, and how near the vectors are, both ways, against copying each code four times."""
    up, down = net.fine(net.vectors(coarse)), net.coarse(net.vectors(fine))
    copied = coarse.repeat_interleave(2, 1).repeat_interleave(2, 2)
    true, small = net.vectors(fine), net.vectors(coarse)
    return {
        "up_same": float((net.nearest(up) == fine).float().mean()),
        "up_distance": float((net.vectors(net.nearest(up)) - true).square().sum(1).mean()),
        "copied_same": float((copied == fine).float().mean()),
        "copied_distance": float((net.vectors(copied) - true).square().sum(1).mean()),
        "down_same": float((net.nearest(down) == coarse).float().mean()),
        "down_distance": float((net.vectors(net.nearest(down)) - small).square().sum(1).mean()),
    }


def make(job: Job) -> None:
    """Train, measure on held-out concepts, write ``assets/weights/image_samplers.safetensors``."""
    device = choose_device(job.device)
    data = (coded(COARSE), coded(FINE))
    vq, number = vq_model()
    vq = quicken(vq).to(device)
    torch.manual_seed(0)
    net = LatentSamplers(SamplerConfig(width=96, layers=3), vq.quantize.embedding.weight.detach().clone()).to(device)
    learning, kept_out = pairs(data, held_out=False), pairs(data, held_out=True)
    generator = np.random.default_rng(4)
    held = tuple(one.to(device) for one in batch(data, kept_out, np.zeros(len(kept_out), int)))
    training = Training("image_samplers", dict(net.named_parameters()), Plan(job.minutes, peak=0.006), job.resume, {})

    def drawn(vectors: Tensor) -> Tensor:
        with trainer.arithmetic(device):
            return vq.decoder(vq.post_quant_conv(vectors)).float()

    def step(share: float) -> dict[str, float]:
        rows = generator.choice(learning, BATCH)
        coarse, fine = (one.to(device) for one in batch(data, rows, generator.integers(0, 2, BATCH)))
        up, down = net.fine(net.vectors(coarse)), net.coarse(net.vectors(fine))
        total = distance(net, up, fine) + distance(net, down, coarse)
        if training.progress.updates % 2:
            with torch.no_grad():
                wanted = drawn(net.vectors(fine[:DRAWN]))
            total = total + (drawn(up[:DRAWN]) - wanted).abs().mean()
        total.backward()
        return {"loss": float(total.detach())}

    def export() -> None:
        best = averaged_copy(net, training)
        found = measure(best, held[0], held[1])
        text = f"emoji {emoji.digest()}, one concept in {emoji.HELD_OUT_EVERY} kept out"
        path = weights_file(WEIGHTS, "image_samplers")
        save(best, path, card("image_samplers", text, training.progress, found, codebook=number))
        print(f"written {path.stat().st_size / 1e6:.2f} MB", flush=True)

    training.run(step, lambda: measure(net, held[0], held[1]), export)


def distance(net: LatentSamplers, vectors: Tensor, codes: Tensor) -> Tensor:
    """Squared distance to the codes' vectors, and how clearly the right code is the nearest."""
    rows = vectors.permute(0, 2, 3, 1).flatten(0, 2)
    scores = rows @ net.codebook.T * 12
    return (vectors - net.vectors(codes)).square().sum(1).mean() + 0.1 * F.cross_entropy(scores, codes.flatten())


def averaged_copy(net: LatentSamplers, training: Training) -> LatentSamplers:
    """The same with the weights averaged over the last updates."""
    copy = LatentSamplers(net.config, net.codebook).to(net.codebook.device)
    copy.load_state_dict(training.averaged())
    return copy
