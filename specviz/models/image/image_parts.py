"""Loader of the networks trained for a shipped image model: its drafter, its up- and down-samplers, and its codes' mean patches.

The drafter (:class:`FeatureNet`, narrow) reads the target's last hidden state after the final norm and the next token's
embedding. Its embedding has a row for every id of a run (prompt tokens, then codes), its head one for every code, and
``draft_ids`` is ``first_code + code``. With a run's ids as in :mod:`specviz.models.image.image`, it drafts like any other
feature drafter. For guidance run it on both rows, each with the features of its own row, and mix logits as the target does.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from specviz.drafting.networks.feature_head import FeatureHead
from specviz.drafting.networks.feature_net import FeatureConfig, FeatureNet
from specviz.drafting.networks.latent_samplers import LatentSamplers
from specviz.drafting.networks.weights import read_weights
from specviz.errors import ModelUnavailable
from specviz.models.heads.head_settings import OURS
from specviz.models.heads.layouts import LAYOUTS
from specviz.models.heads.published import feature_head
from specviz.models.hub.cache_dir import Progress, no_progress
from specviz.models.hub.published import Fit, open_repository, reading
from specviz.models.image.anole import LoadedAnole
from specviz.models.image.image import SHIPPED, LoadedImage, embedding_table, weights_of
from specviz.models.image.llamagen import LoadedLlamaGen
from specviz.models.image.prompts import CaptionPrompts

_GRIDS = {"c2i": 24, "t2i": 16, "t2i2": 32}
"""Cells per row of the pictures that LANTERN's code assumes for a drafter, by its ``input_type``."""


def image_drafter(loaded: LoadedImage) -> FeatureNet:
    """Load the drafter that ships for this model. Raises ModelUnavailable for a model it was not trained on."""
    path = weights_of("image_drafter")
    tensors, card = read_weights(path)
    _same(card.get("target", ""), loaded, "drafter")
    config = FeatureNet.config_of(card)
    head = tensors.pop("head")
    return feature_net(loaded, config, head, tensors)


def feature_net(loaded: LoadedImage, config: FeatureConfig, head: torch.Tensor, tensors: dict[str, torch.Tensor]) -> FeatureNet:
    """A drafter of this shape and these weights on the model's embeddings, frozen. ``head`` is [code, hidden]."""
    table = embedding_table(loaded.model, loaded.first_code)
    ids = torch.arange(loaded.codes, device=loaded.device) + loaded.first_code
    net = FeatureNet(config, table, head.to(loaded.device, loaded.dtype), ids)
    try:
        net.load_state_dict(tensors)
    except RuntimeError as problem:
        raise ModelUnavailable("The image drafter's weights do not fit its shape: fetch the file again.") from problem
    return net.to(loaded.device, loaded.dtype).eval().requires_grad_(False)


def image_samplers(loaded: LoadedImage) -> LatentSamplers:
    """Load the shipped samplers over this model's codes, in float32: ``up`` and ``down`` between the shipped models' grids."""
    path = weights_of("image_samplers")
    _, card = read_weights(path)
    _same(card.get("codebook", ""), loaded, "samplers")
    return LatentSamplers.load(path, (loaded.codebook,), torch.float32, loaded.device)


def code_patches(loaded: LoadedImage) -> Tensor | None:
    """Mean of all cells that hold a code in decoded emoji, float [code, row, column, rgb] from -1 to 1.

    None for a model with a codebook other than the shipped one: its runs show each code's colour. Raises ModelUnavailable if
    the file is missing.
    """
    if loaded.name not in SHIPPED:
        return None
    tensors, card = read_weights(weights_of("image_patches"))
    if card.get("codebook") != loaded.codebook_digest:
        return None
    flat = tensors["patches"]
    side = math.isqrt(flat.shape[1] // 3)
    return flat.view(len(flat), side, side, 3)


def _same(made_for: str, loaded: LoadedImage, what: str) -> None:
    if made_for not in (loaded.digest, loaded.codebook_digest):
        raise ModelUnavailable(
            f"The {what} that ship were trained for another model than {loaded.name}: choose emoji-64, or train them again "
            f"with `python -m specviz train image_{what}`."
        )


def published_head(method: str, name: str, loaded: LoadedImage, progress: Progress = no_progress) -> FeatureHead:
    """Read LANTERN's heads called ``name`` for this Anole or LlamaGen, over ids with the codes first.

    Raises ModelUnavailable naming the misfit.
    """
    if method != "eagle" or not isinstance(loaded, LoadedAnole | LoadedLlamaGen):
        raise ModelUnavailable(
            f"Published heads for models that draw are read for Anole and LlamaGen, as eagle; {loaded.name} drawn as {method} "
            "takes none: leave the draft empty."
        )
    layout = LAYOUTS["anole" if isinstance(loaded, LoadedAnole) else "llamagen"]
    stored, model = open_repository(name, progress), loaded.model
    if not layout.fits(stored):
        raise ModelUnavailable(f"{name} holds none of {layout.title}. {OURS}")
    target = Fit(
        loaded.name,
        int(model.config.num_hidden_layers),
        model.get_input_embeddings().weight,
        model.get_output_embeddings().weight,
    )
    with reading(name):
        if isinstance(loaded, LoadedAnole):
            head, codes = feature_head(layout, stored, target), loaded.code_ids
            return replace(head, embedding=torch.cat((head.embedding[codes], head.embedding)), head=head.head[codes])
        kind = stored.config["input_type"]
        cells = stored.config.get("block_size") or _GRIDS[kind] ** 2
        if (kind == "c2i") != (loaded.first == 1) or cells != loaded.cells:
            asked, own = ("classes" if by_class else "captions" for by_class in (kind == "c2i", loaded.first == 1))
            raise ModelUnavailable(
                f"{name} drafts pictures of {cells} codes asked for by {asked}, and {loaded.name} draws {loaded.cells} by {own}: "
                "choose the drafter that was trained for it."
            )
        head = feature_head(layout, stored, target, grid=loaded.grid, grid_from=loaded.first - 1)
        prompt = loaded.prompts.size if isinstance(loaded.prompts, CaptionPrompts) else len(loaded.labels)
        return replace(head, embedding=torch.cat((head.embedding, head.embedding[:1].expand(prompt, -1))))
