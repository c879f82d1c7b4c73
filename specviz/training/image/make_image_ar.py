"""``train image_ar_small``, ``image_ar_shallow``, ``image_ar``: prompts and picture codes in, autoregressive models out.

The small one draws 8 x 8 codes with 6 layers; the shallow one, which does not ship, 16 x 16 with as many, and starts from
the small one; the last has 12 layers and starts from the shallow one, or the small one where that is missing. What words
mean and what a code looks like is learned where pictures are short, and how they are composed where layers are few.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

from specviz.drafters.networks.weights import read_weights, write_weights
from specviz.errors import ModelUnavailable
from specviz.models.device import choose_device
from specviz.models.hub.cache_dir import cache_folder
from specviz.models.image.image import SHIPPED, load_image_model, weights_of
from specviz.models.image.image_score import load as load_score
from specviz.models.image.image_shape import SHIPPED_VQ, TextShape, janus_config
from specviz.models.image.image_vocabulary import WORDS
from specviz.training.common.loop import Schedule, Step, checkpoint_of, provenance_of, train
from specviz.training.common.parallel import sharing
from specviz.training.image.image_codes import Batches, coded, learned_names, vq_model, word_prompts
from specviz.training.image.image_curriculum import Curriculum
from specviz.training.image.image_net import ImageNet, fresh, learned, stacked
from specviz.training.image.image_sheets import contact, sheet_prompts
from specviz.training.image.image_training import ImageTraining, emoji_line, weights_file
from specviz.training.registry import WEIGHTS, Job

SMALL, SHALLOW = "image_ar_small", "image_ar_shallow"
GUIDANCE = {SMALL: 3.0, SHALLOW: 3.0, "image_ar": 2.0}
"""How hard each draws: one that knows its pictures is sure already, and at 3 they break up."""
_BEFORE: dict[str, tuple[str, ...]] = {SMALL: (), SHALLOW: (SMALL,), "image_ar": (SHALLOW, SMALL)}
CALLED = {recipe: name for name, recipe in SHIPPED.items()}
GRIDS = {SMALL: 8, SHALLOW: 16, "image_ar": 16}
SHAPES = {SMALL: TextShape(layers=6), SHALLOW: TextShape(layers=6), "image_ar": TextShape(layers=12)}
BATCHES = {SMALL: 24, SHALLOW: 12, "image_ar": 12}
PARTS = 4
"""An update is read in so many parts: what one of three pictures of 16 x 16 codes leaves behind still fits a core's cache."""


class ImageArTraining(ImageTraining):
    """One of the image models, and its curriculum of prompts and pictures."""

    def __init__(self, name: str, settings: Schedule, device: torch.device, provenance: str) -> None:
        """``provenance`` says what was spent on the recipe's own weights, where training goes on from those."""
        self.name, self.grid = name, GRIDS[name]
        self.prompts, self.data = word_prompts(), coded(self.grid)
        self.shape = replace(SHAPES[name], prompts=self.prompts.size)
        self.parameters = _begun(name, self.shape, self.prompts.digest, self.data.codebook, device, bool(provenance))
        self.batches = Batches(self.data, self.prompts, device, 2 + provenance.count("updates"))
        self.net, self.held_out = ImageNet(self.parameters, self.shape), self.batches.kept_out(48)
        super().__init__(settings, learned(self.parameters), average=0.995)
        kept_out = len(self.data.part(held_out=True))
        print(f"{len(self.batches.concepts)} concepts to learn, {kept_out} kept out; {self.shape}", flush=True)

    def begin(self) -> None:
        """A resumed training meets other pictures."""
        workers = self.settings.workers if self.held_out[0].device.type == "cpu" else None
        self.curriculum = Curriculum(
            self.batches, lambda: ImageNet({**self.parameters, **self.average()}, self.shape), self.grid, BATCHES[self.name],
            GUIDANCE[self.name], workers, self.progress.updates,
        )  # fmt: skip

    def step(self, share: float) -> Step:
        """Mean loss on words, codes and codes as read [picture, place], and its gradients."""
        batch = self.curriculum.next(share)
        pictures, many = len(batch[0]), PARTS if batch[0].device.type == "cpu" else 1
        parts = list(zip(*(tensor.chunk(many) for tensor in batch), strict=True))
        return self.shared(parts, lambda part: self.net.loss(*part) * len(part[0]) / pictures, batch[1].numel())

    @torch.no_grad()
    def measure(self) -> dict[str, float]:
        return {"held_out": float(self.net.loss(*self.held_out))}

    def export(self) -> None:
        """The averaged weights with their card, rounded as they ship; ``digest`` tells these weights from others."""
        path, tensors, prompts = place_of(self.name), dict(self.parameters), self.prompts.description
        sums = hashlib.sha256()
        for key in sorted(tensors):
            sums.update(tensors[key].detach().float().cpu().numpy().tobytes())
        about = {
            "config": json.dumps(janus_config(SHIPPED_VQ, self.shape, self.grid)), "prompts": prompts,
            "guidance": str(GUIDANCE[self.name]), "codebook": self.data.codebook, "digest": sums.hexdigest()[:16],
            "digest_of_prompts": hashlib.sha256(prompts.encode()).hexdigest()[:16],
        }  # fmt: skip
        data = emoji_line(f"{self.progress.tokens} codes read")
        write_weights(path, tensors, self.card(self.name, data, self.measure(), **about))
        print(f"written {path.stat().st_size / 1e6:.1f} MB", flush=True)


def make(job: Job) -> None:
    """Train, measure on held-out concepts, write the recipe's weights."""
    name, device = job.recipe.name, choose_device(job.device)
    fits = _start(name, word_prompts().digest, coded(GRIDS[name]).codebook) is not None
    provenance = provenance_of(name, place_of(name), job.resume) if fits else ""
    workers = sharing() if device.type == "cpu" else 1
    settings = Schedule(job.minutes, peak=0.006, decay=0.02, every=1.0, workers=workers, resume=job.resume)
    train(ImageArTraining(name, settings, device, provenance), checkpoint_of(name), provenance=provenance)
    torch.set_num_threads(workers if device.type == "cpu" else torch.get_num_threads())
    if name in CALLED:
        WORDS.write_text("\n".join(learned_names()) + "\n", "utf-8")
        _show(CALLED[name], job.device)


def _begun(
    name: str, shape: TextShape, prompts: str, codebook: str, device: torch.device, again: bool
) -> dict[str, nn.Parameter]:
    """New parameters, or those of the first smaller model that is there, grown; ``again`` the model's own."""
    net_vq, _ = vq_model()
    parameters = fresh(SHIPPED_VQ, shape, GRIDS[name], net_vq.quantize.embedding.weight)
    for smaller in (name, *_BEFORE[name]) if again else _BEFORE[name]:
        if weights := _start(smaller, prompts, codebook):
            print(f"starts from {place_of(smaller).name}", flush=True)
            stacked(weights, shape.layers, parameters)
            break
    return {key: nn.Parameter(value.data.to(device)) for key, value in parameters.items()}


def _show(called: str, device: str) -> None:
    """Draw the sheets of learned and of held-out prompts, and say how often a picture's prompt can be told."""
    loaded = load_image_model(called, "float32", device)
    for held_out in (False, True):
        path, codes = contact(loaded, held_out)
        print("drawn:", path.name, flush=True)
        try:
            score = load_score(weights_of("image_score"))
        except ModelUnavailable as problem:
            print(f"not scored: {problem}", flush=True)
            continue
        pictures, prompts = [loaded.picture(picture_codes.tolist()) for picture_codes in codes], sheet_prompts(loaded, held_out)
        shares = (f"{score.retrieval_rate(pictures, prompts, many):.0%} among {many}" for many in (1, 5))
        print(f"own prompt found of {len(prompts)}:", ", ".join(shares), flush=True)


def place_of(name: str) -> Path:
    """Where weights go: with the project, or into the cache folder when they are only a start for others."""
    return weights_file(cache_folder() / "training" / "weights" if name == SHALLOW else WEIGHTS, name)


def _start(name: str, prompts: str, codebook: str) -> dict[str, Tensor] | None:
    """A smaller model's weights, where they are there and speak of the same codes in the same words."""
    path = place_of(name)
    if not path.exists():
        return None
    weights, facts = read_weights(path)
    if facts.get("codebook") != codebook or facts.get("digest_of_prompts") != prompts:
        return None
    return weights
