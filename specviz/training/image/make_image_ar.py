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
from specviz.training.common.loop import Plan, Training, card, spent_before, weights_file
from specviz.training.common.trainer import gradients, sharing
from specviz.training.image import emoji
from specviz.training.image.image_codes import Batches, coded, learned_words, vq_model, word_prompts
from specviz.training.image.image_lessons import Lessons
from specviz.training.image.image_net import ImageNet, fresh, learned, stacked
from specviz.training.image.image_sheets import asked, contact
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


def make(job: Job) -> None:
    """Train, measure on held-out concepts, write the recipe's weights."""
    name = job.recipe.name
    device, grid = choose_device(job.device), GRIDS[name]
    prompts, data = word_prompts(), coded(grid)
    shape = replace(SHAPES[name], prompts=prompts.size)
    fits = _start(name, prompts.digest, data.codebook) is not None
    before = spent_before(name, place_of(name), job.resume) if fits else ""
    parameters = _begun(name, shape, prompts.digest, data.codebook, device, bool(before))
    batches = Batches(data, prompts, device, 2 + before.count("updates"))
    net = ImageNet(parameters, shape)
    leaves, workers = learned(parameters), sharing() if device.type == "cpu" else None
    plan = Plan(job.minutes, peak=0.006, decay=0.02, average=0.995, workers=workers)
    training = Training(name, leaves, plan, job.resume, {}, before)
    held_out = batches.kept_out(48)
    print(f"{len(batches.concepts)} concepts to learn, {len(data.part(held_out=True))} kept out; {shape}", flush=True)

    def averaged() -> ImageNet:
        return ImageNet({**parameters, **training.averaged()}, shape)

    lessons = Lessons(batches, averaged, grid, BATCHES[name], GUIDANCE[name], workers, training.progress.updates)

    def step(share: float) -> dict[str, float]:
        lesson = lessons.next(share)
        training.progress.tokens += lesson[1].numel()
        return {"loss": _leave_gradients(net, list(leaves.values()), lesson, workers)}

    def look() -> dict[str, float]:
        with torch.no_grad():
            return {"held_out": float(averaged().loss(*held_out))}

    def export() -> None:
        config = janus_config(SHIPPED_VQ, shape, grid)
        about = {"config": json.dumps(config), "prompts": prompts.description, "guidance": str(GUIDANCE[name])}
        write(name, {**parameters, **training.averaged()}, training, look(), {**about, "codebook": data.codebook})

    training.run(step, look, export)
    torch.set_num_threads(workers or torch.get_num_threads())
    if name in CALLED:
        WORDS.write_text("\n".join(learned_words()) + "\n", "utf-8")
        _show(CALLED[name], job.device)


def _leave_gradients(
    net: ImageNet, leaves: list[nn.Parameter], batch: tuple[Tensor, Tensor, Tensor], workers: int | None
) -> float:
    """Gradients of the mean loss on words, codes and codes as read [picture, place] onto the ``leaves``; that loss."""
    pictures = len(batch[0])
    parts = list(zip(*(one.chunk(PARTS if workers else 1) for one in batch), strict=True))
    found, value = gradients(parts, lambda part: net.loss(*part) * len(part[0]) / pictures, leaves, workers or 1)
    for leaf, gradient in zip(leaves, found, strict=True):
        leaf.grad = gradient
    return value


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
        pictures, prompts = [loaded.picture(one.tolist()) for one in codes], asked(loaded, held_out)
        told = (f"{score.found(pictures, prompts, many):.0%} among {many}" for many in (1, 5))
        print(f"own prompt found of {len(prompts)}:", ", ".join(told), flush=True)


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


def write(name: str, tensors: dict[str, Tensor], training: Training, metrics: dict[str, float], about: dict[str, str]) -> Path:
    """The averaged weights with their card, rounded as they ship; ``digest`` tells these weights from others."""
    path = place_of(name)
    sums = hashlib.sha256()
    for key in sorted(tensors):
        sums.update(tensors[key].detach().float().cpu().numpy().tobytes())
    data = f"emoji {emoji.digest()}, one concept in {emoji.HELD_OUT_EVERY} kept out; {training.progress.tokens} codes read"
    words = hashlib.sha256(about["prompts"].encode()).hexdigest()[:16]
    more = {**about, "digest": sums.hexdigest()[:16], "digest_of_prompts": words}
    write_weights(path, tensors, card(name, data, training.progress, metrics, **more))
    print(f"written {path.stat().st_size / 1e6:.1f} MB", flush=True)
    return path
