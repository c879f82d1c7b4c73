"""Encoded prompt of a vision-language run: token ids with placeholders for the image, and the image's features.

Features depend only on the model and the pixels, so they are cached with the model for other runs on the same image.
"""

from __future__ import annotations

import hashlib
import inspect
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from specviz.engine.cached import cached
from specviz.errors import BadInput

KEPT = 8
"""Maximum number of encoded images cached per model; the least recently used is evicted."""


@dataclass(frozen=True)
class Encoding:
    """Encoded image. ``features``: the encoder's output object in transformers."""

    features: Any
    nanoseconds: int


@dataclass(frozen=True)
class ImagePrompt:
    """Prompt with its image. ``visual``: whether each token is a placeholder for the image.

    ``positions`` [3, 1, token]: set for models with three position axes; text after the image has position index + ``shift``.
    ``encoding_ns``: time spent on encoding the image, possibly in an earlier run.
    """

    ids: tuple[int, ...]
    visual: tuple[bool, ...]
    placeholder: int
    features: Any = None
    positions: Tensor | None = None
    shift: int = 0
    encoding_ns: int = 0


_LOCK = threading.Lock()


def sight(model: Any, ids: Sequence[int], inputs: Mapping[str, Tensor], axes: int = 1) -> ImagePrompt:
    """Build the prompt from the output of a model's processor, and encode the image.

    ``inputs``: ``pixel_values`` and further inputs of the encoder; without pixels the prompt is plain text. ``axes``: number of
    position axes. Raises BadInput if the placeholders do not match the image.
    """
    placeholder = int(model.config.image_token_id)
    visual = tuple(token == placeholder for token in ids)
    if "pixel_values" not in inputs:
        if any(visual):
            raise BadInput("The prompt has a placeholder for a picture, but there is no picture. Choose one.")
        return ImagePrompt(tuple(ids), visual, placeholder)
    if not any(visual):
        raise BadInput("There is a picture, but the prompt has no placeholder for it. Leave the picture out.")
    encoding = encoded(model, inputs)
    pooled = encoding.features.pooler_output
    parts: Sequence[Tensor] = pooled if isinstance(pooled, list | tuple) else [pooled]
    if (rows := sum(part.numel() // part.shape[-1] for part in parts)) != sum(visual):
        raise BadInput(
            f"The picture takes {rows} tokens, but the prompt has {sum(visual)} placeholders; prepare both with one processor."
        )
    positions, shift = None, 0
    if axes > 1:
        kinds = torch.tensor([visual], dtype=torch.int, device=model.device)
        tokens = torch.tensor([list(ids)], dtype=torch.long, device=model.device)
        grid = inputs["image_grid_thw"].to(model.device)
        positions, delta = model.model.get_rope_index(tokens, mm_token_type_ids=kinds, image_grid_thw=grid)
        shift = int(delta)
    return ImagePrompt(tuple(ids), visual, placeholder, encoding.features, positions, shift, encoding.nanoseconds)


def encoded(model: Any, inputs: Mapping[str, Tensor]) -> Encoding:
    """Return the encoded image of ``inputs``, from the cache if possible."""
    takes = inspect.signature(model.model.get_image_features).parameters
    tensors = {name: value for name, value in inputs.items() if name in takes}
    key = digest(tensors)
    cache = cached(model, "encoded pictures", OrderedDict[str, Encoding])
    with _LOCK:
        if key in cache:
            cache.move_to_end(key)
            return cache[key]
    started = time.perf_counter_ns()
    with torch.inference_mode():
        floating = {name: model.dtype for name, value in tensors.items() if value.is_floating_point()}
        moved = {name: value.to(model.device, floating.get(name)) for name, value in tensors.items()}
        features = model.model.get_image_features(**moved, return_dict=True)
    if model.device.type == "cuda":
        torch.cuda.synchronize(model.device)
    encoding = Encoding(features, time.perf_counter_ns() - started)
    with _LOCK:
        cache[key] = encoding
        while len(cache) > KEPT:
            cache.popitem(last=False)
    return encoding


def digest(inputs: Mapping[str, Tensor]) -> str:
    """Return the SHA-256 digest of these tensors' names, shapes, dtypes and values."""
    checksum = hashlib.sha256()
    for name in sorted(inputs):
        value = inputs[name].detach().cpu().contiguous()
        checksum.update(repr((name, tuple(value.shape), str(value.dtype))).encode())
        checksum.update(value.flatten().view(torch.uint8).numpy().tobytes())
    return checksum.hexdigest()
