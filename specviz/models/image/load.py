"""Loader of image models and their networks: drafters, up- and down-samplers, and the codes' mean patches.

The shipped drafter (:class:`EagleHead`, narrow) reads the target's last hidden state after the final norm and the next token's
embedding. The embedding has a row for each id of a run, the head a row for each code; ``draft_ids`` is ``first_code + code``.
Guidance runs the drafter on both rows, each with its own features, and mixes the logits as the target does.
"""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import AutoTokenizer, ChameleonForConditionalGeneration, JanusConfig, JanusForConditionalGeneration

from specviz.drafting.networks.eagle_head import EagleHead, PublishedEagleHead
from specviz.drafting.networks.latent_samplers import LatentSamplers
from specviz.drafting.networks.weights import read_weights
from specviz.errors import ModelUnavailable
from specviz.models.cache import exclusive_loading, load_once
from specviz.models.device import choose_device, dtype_name
from specviz.models.heads.published import published_eagle_head
from specviz.models.hub.cache_dir import Progress, no_progress
from specviz.models.hub.opening import LOCAL, opening, refuse_missing
from specviz.models.hub.packed_model import shipped_file
from specviz.models.hub.prepare import prepare, type_in
from specviz.models.hub.published import LAYOUTS, OURS, Fit, open_repository, reading
from specviz.models.image.image import UNTRAINED, LoadedAnole, LoadedImage, LoadedSprites, cell_side, embedding_table, janus
from specviz.models.image.llamagen import LoadedLlamaGen, load_llamagen
from specviz.models.image.prompts import AnolePrompts, CaptionPrompts, JanusPrompts, WordPrompts
from specviz.paths import WEIGHTS

SHIPPED = {"emoji-64": "image_ar", "emoji-32": "image_ar_small", "sprites-32": "image_sprites"}
"""Catalogue names of the shipped image models, and the recipes that train them."""
CODECS = {name: "image_codebook" if name.startswith("sprites") else "image_vq" for name in SHIPPED}
"""Recipe of the pixel decoder or of the patches of each shipped model."""
DRAFTERS = {"emoji-64": "image_drafter", "sprites-32": "image_sprites_drafter"}
"""Recipe of the drafter of each shipped model that has one."""
JANUS_GUIDANCE, ANOLE_GUIDANCE = 5.0, 3.0
"""Default guidance of transformers for Janus models and of LANTERN for Anole."""
_GRIDS = {"c2i": 24, "t2i": 16, "t2i2": 32}
"""Cells per row that LANTERN's code assumes for a drafter, by ``input_type``."""


def load_image_model(name: str, dtype: str = "auto", device: str = "auto", progress: Progress = no_progress) -> LoadedImage:
    """Load the image model called ``name``: a shipped one, or a Janus, Anole or LlamaGen model.

    Models stay loaded while they fit. ``dtype`` and ``device`` are "auto" or the user's choice. Raises ModelUnavailable, BadInput
    or OutOfMemory.
    """
    where = choose_device(device)
    files = [WEIGHTS / f"{SHIPPED[name]}.safetensors", WEIGHTS / f"{CODECS[name]}.safetensors"] if name in SHIPPED else []

    def load(how: torch.dtype) -> LoadedImage:
        progress(f"Loading {name} in {dtype_name(how)} on {where}", None)
        return _shipped(name, how, where) if files else _from_folder(name, prepare(name, progress), how, where)

    return load_once(name, dtype, (where,), load, *(file.stat().st_mtime_ns for file in files if file.is_file()))


def weights_of(recipe: str) -> Path:
    """Return the shipped file of a recipe. Raises ModelUnavailable, with the command that trains it, if it is missing."""
    return shipped_file(WEIGHTS / f"{recipe}.safetensors")


def _shipped(name: str, dtype: torch.dtype, device: torch.device) -> LoadedImage:
    path, codec = weights_of(SHIPPED[name]), weights_of(CODECS[name])
    tensors, card = read_weights(path)
    pixels, pixel_card = read_weights(codec)
    patches = pixels.pop("patches", None)
    if card.get("codebook") != pixel_card.get("codebook"):
        raise ModelUnavailable(
            f"{path.name} was not trained on the picture codes of {codec.name}: take both files from one version of "
            f"the project, or train it again with `python -m specviz train {path.stem}`."
        )
    with exclusive_loading():
        model: Any = JanusForConditionalGeneration(JanusConfig(**json.loads(card["config"])))
    try:
        missing, unexpected = model.load_state_dict({**tensors, **pixels}, strict=False)
    except RuntimeError as problem:
        raise ModelUnavailable(f"These weights do not fit the image model: {str(problem)[:300]}") from problem
    unused = UNTRAINED if patches is None else (*UNTRAINED, "model.vqmodel.")
    strange = [key for key in missing if not key.startswith(unused)] + unexpected
    if strange:
        raise ModelUnavailable(f"The image model's weights are incomplete ({strange[:3]}): fetch them again.")
    codebook = model.model.vqmodel.quantize.embedding.weight
    codebook.data = F.normalize(codebook.data, dim=-1)
    model = model.to(device, dtype).eval().requires_grad_(False)
    prompts, guidance = WordPrompts(card["prompts"]), float(card["guidance"])
    loaded = janus(name, model, prompts, guidance, card["digest"], card["codebook"])
    if patches is None:
        return loaded
    patches = patches.to(device)
    return LoadedSprites(**{**vars(loaded), "codebook": patches.flatten(1)}, patches=patches)


def _from_folder(name: str, folder: Path, dtype: torch.dtype, device: torch.device) -> LoadedImage:
    """Load the model in ``folder``. Raises ModelUnavailable if its type is not supported or weights are missing."""
    kind = type_in(folder)
    if kind == "llamagen":
        return load_llamagen(name, folder, dtype, device)
    if kind == "emu3":
        raise ModelUnavailable(
            f"{name} is an Emu3 model, which ends each row and each picture with special tokens that no method here "
            "drafts or forces yet; choose a Janus model, Anole or LlamaGen."
        )
    anole = kind == "chameleon"
    auto: Any = ChameleonForConditionalGeneration if anole else JanusForConditionalGeneration
    with opening(name, folder, "a Chameleon model" if anole else "a Janus model"), exclusive_loading():
        tokenizer = AutoTokenizer.from_pretrained(folder, **LOCAL)
        model, info = auto.from_pretrained(folder, dtype=dtype, use_safetensors=True, output_loading_info=True, **LOCAL)
    model = model.to(device).eval().requires_grad_(False)
    if not anole:
        return janus(name, model, JanusPrompts(tokenizer, name), JANUS_GUIDANCE, name, name)
    refuse_missing(name, (key for key in info["missing_keys"] if "vqmodel.encoder" not in key and "quant_conv" not in key))
    codebook, vq = model.model.vqmodel.quantize.embedding.weight.float(), model.config.vq_config
    token_of = model.model.vocabulary_mapping.img2bpe
    code_ids = torch.tensor([token_of[code] for code in range(len(codebook))], device=device)
    weight = model.lm_head.weight[code_ids]
    return LoadedAnole(
        name, model, model.model, lambda hidden: F.linear(hidden, weight), AnolePrompts(tokenizer, name),
        int(vq.resolution) // cell_side(vq), 1, 0, codebook, ANOLE_GUIDANCE, name, name, code_ids,
    )  # fmt: skip


def image_drafter(loaded: LoadedImage) -> EagleHead:
    """Load the shipped drafter for this model. Raises ModelUnavailable if it was trained on a different model."""
    recipe = DRAFTERS.get(loaded.name, "image_drafter")
    if isinstance(loaded, LoadedSprites) and not (WEIGHTS / f"{recipe}.safetensors").is_file():
        raise ModelUnavailable(
            f"No drafter for {loaded.name} is included: choose the target emoji-64 or a method that needs none, or train one "
            f"with `python -m specviz train {recipe}`."
        )
    tensors, card = read_weights(weights_of(recipe))
    _same(card.get("target", ""), loaded, "drafter's weights", recipe)
    table, head = embedding_table(loaded.model, loaded.first_code), tensors.pop("head")
    ids = torch.arange(loaded.codes, device=loaded.device) + loaded.first_code
    net = EagleHead(EagleHead.config_of(card), table, head.to(loaded.device, loaded.dtype), ids)
    try:
        net.load_state_dict(tensors)
    except RuntimeError as problem:
        raise ModelUnavailable("The image drafter's weights do not fit its shape: fetch the file again.") from problem
    return net.to(loaded.device, loaded.dtype).eval().requires_grad_(False)


def image_samplers(loaded: LoadedImage) -> LatentSamplers:
    """Load the shipped samplers ``up`` and ``down`` between the shipped models' grids, in float32, for this model's codes."""
    path = weights_of("image_samplers")
    _, card = read_weights(path)
    _same(card.get("codebook", ""), loaded, "samplers", "image_samplers")
    return LatentSamplers.load(path, (loaded.codebook,), torch.float32, loaded.device)


def code_patches(loaded: LoadedImage) -> Tensor | None:
    """Patch of each code, or its mean appearance in decoded emoji, float [code, row, column, rgb] in [-1, 1].

    None for a model that does not use the shipped codebook. Raises ModelUnavailable if the file is missing.
    """
    if isinstance(loaded, LoadedSprites):
        return loaded.patches.cpu()
    if loaded.name not in SHIPPED:
        return None
    tensors, card = read_weights(weights_of("image_patches"))
    if card.get("codebook") != loaded.codebook_digest:
        return None
    flat = tensors["patches"]
    side = math.isqrt(flat.shape[1] // 3)
    return flat.view(len(flat), side, side, 3)


def _same(made_for: str, loaded: LoadedImage, what: str, recipe: str) -> None:
    if made_for not in (loaded.digest, loaded.codebook_digest):
        raise ModelUnavailable(
            f"The included {what} were trained for a model other than {loaded.name}: choose emoji-64, or train them again "
            f"with `python -m specviz train {recipe}`."
        )


def published_head(method: str, name: str, loaded: LoadedImage, progress: Progress = no_progress) -> PublishedEagleHead:
    """Read LANTERN's heads called ``name`` for this Anole or LlamaGen; the codes come first in the embedding.

    Raises ModelUnavailable naming what does not fit.
    """
    if method != "eagle" or not isinstance(loaded, LoadedAnole | LoadedLlamaGen):
        raise ModelUnavailable(
            f"Published heads for models that draw are read only for Anole and LlamaGen, as eagle; {loaded.name} with {method} "
            "takes none: leave the draft empty."
        )
    layout = LAYOUTS["anole" if isinstance(loaded, LoadedAnole) else "llamagen"]
    stored, model = open_repository(name, progress), loaded.model
    if not layout.fits(stored):
        raise ModelUnavailable(f"{name} does not hold {layout.title}. {OURS}")
    target = Fit(
        loaded.name,
        int(model.config.num_hidden_layers),
        model.get_input_embeddings().weight,
        model.get_output_embeddings().weight,
    )
    with reading(name):
        if isinstance(loaded, LoadedAnole):
            head, codes = published_eagle_head(layout, stored, target), loaded.code_ids
            return replace(head, embedding=torch.cat((head.embedding[codes], head.embedding)), head=head.head[codes])
        kind = stored.config["input_type"]
        cells = stored.config.get("block_size") or _GRIDS[kind] ** 2
        if (kind == "c2i") != (loaded.first == 1) or cells != loaded.cells:
            asked, own = ("classes" if by_class else "captions" for by_class in (kind == "c2i", loaded.first == 1))
            raise ModelUnavailable(
                f"{name} drafts pictures of {cells} codes from {asked}, but {loaded.name} draws {loaded.cells} from {own}: "
                "choose the drafter that was trained for it."
            )
        head = published_eagle_head(layout, stored, target, grid=loaded.grid, grid_from=loaded.first - 1)
        prompt = loaded.prompts.size if isinstance(loaded.prompts, CaptionPrompts) else len(loaded.labels)
        return replace(head, embedding=torch.cat((head.embedding, head.embedding[:1].expand(prompt, -1))))
