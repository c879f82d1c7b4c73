"""Reader of LANTERN's published drafters (Jang et al. 2024, arXiv 2410.03355). Ids of a run have the codes first.

jadohu/anole_drafter: ``fc`` from [embedding; last hidden state] with a bias, ``layers.0.*`` a whole Chameleon layer (a norm on
its input, queries and keys centred and scaled by head), the target's own head.

jadohu/llamagen_drafter and llamagen2_drafter: EAGLE-1's layer, with LlamaGen's two-dimensional positions. They are one place
earlier than the target's, so that a row has the position of the code that it reads. Before the picture it reads code 0 beside
the target's states, those of padding included.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from specviz.drafting.networks.feature_head import FeatureHead
from specviz.drafting.networks.head_config import HeadConfig
from specviz.errors import ModelUnavailable, shown
from specviz.models.heads.head_parts import assembled, conventions, head_sizes
from specviz.models.heads.head_settings import OURS, SIZES, refuse_unknown, rotary, switch
from specviz.models.hub.cache_dir import Progress, no_progress
from specviz.models.hub.published import Fit, open_repository
from specviz.models.image.anole import LoadedAnole
from specviz.models.image.llamagen import LoadedLlamaGen
from specviz.models.image.prompts import CaptionPrompts

KIND = "LANTERN's Anole"
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "model_type": ("chameleon",),
    "model_parallel_size": (1,),
    "num_hidden_layers": (1,),
    "swin_norm": (False,),
}
_READ = SIZES - set(_NEUTRAL) | {"vq_config", "vocabulary_map", "bias"}
LLAMAGEN = "LANTERN's LlamaGen"
_GRIDS = {"c2i": 24, "t2i": 16, "t2i2": 32}
"""By input_type: cells a row of the pictures that LANTERN's code assumes for such a drafter."""
_LLAMAGEN_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "model_type": ("llama",),
    "num_hidden_layers": (1,),
    "rope_theta": (10000,),
    "rope_scaling": (),
    "rope_base": (10000,),
    "attention_bias": (False,),
    "qkv_bias": (False,),
    "mlp_bias": (False,),
}
_LLAMAGEN_READ = SIZES - set(_LLAMAGEN_NEUTRAL) | {"input_type", "block_size", "caption_dim", "class_dropout_p", "bias"}


def anole_head(kind: str, name: str, loaded: LoadedAnole, progress: Progress = no_progress) -> FeatureHead:
    """Read the drafter called ``name`` for this target, in its number format, over ids with the codes first.

    Raises ModelUnavailable naming the misfit.
    """
    if kind != "eagle":
        raise ModelUnavailable(f"{name} cannot be used as {kind}: published heads for Anole are read for eagle. {OURS}")
    stored, model = open_repository(name, progress), loaded.model
    settings, names = stored.config, {original.removeprefix("model."): original for original in stored.files}
    if settings.get("model_type") != "chameleon" or "layers.0.self_attn.q_norm.bias" not in names:
        raise ModelUnavailable(f"{name} holds no layer of Chameleon's: these are no heads for Anole. {OURS}")
    refuse_unknown(name, settings, _READ, _NEUTRAL, {})
    layers = int(model.config.num_hidden_layers)
    fits = Fit(loaded.name, layers, model.get_input_embeddings().weight, model.get_output_embeddings().weight)
    sizes = head_sizes(stored, fits, names, settings, KIND, narrower=False)
    how = conventions(name, (layers,), settings, head_norm=False, **rotary(stored, settings, sizes["head_size"]))
    biased = switch(name, settings, "attention_bias")
    config = HeadConfig(
        **sizes, layers=1, wide=False, how=how, bias="fc.bias" in names, attention_bias=biased, output_bias=biased,
        mlp_bias=switch(name, settings, "mlp_bias"), layer_norms=True, first_norm=True,
    )  # fmt: skip
    head = assembled(stored, fits, names, config, KIND)
    own, codes = head.embedding, loaded.code_ids
    table = torch.cat((own[codes], own))
    return replace(head, embedding=table, head=head.head[codes], draft_ids=None)


def llamagen_head(kind: str, name: str, loaded: LoadedLlamaGen, progress: Progress = no_progress) -> FeatureHead:
    """Read the drafter called ``name`` for this target, in its number format, over ids with the codes first.

    Raises ModelUnavailable naming the misfit.
    """
    if kind != "eagle":
        raise ModelUnavailable(f"{name} cannot be used as {kind}: published heads for LlamaGen are read for eagle. {OURS}")
    stored, model = open_repository(name, progress), loaded.model
    settings, names = stored.config, {original.removeprefix("model."): original for original in stored.files}
    if settings.get("input_type") not in _GRIDS or "layers.0.self_attn.q_norm.bias" in names:
        made_for = shown(settings.get("input_type"))
        raise ModelUnavailable(f"{name} has input_type {made_for}, and those for LlamaGen have {' or '.join(_GRIDS)}. {OURS}")
    refuse_unknown(name, settings, _LLAMAGEN_READ, _LLAMAGEN_NEUTRAL, {})
    _same_picture(name, settings, loaded)
    layers = int(model.config.num_hidden_layers)
    fits = Fit(loaded.name, layers, model.get_input_embeddings().weight, model.get_output_embeddings().weight)
    sizes = head_sizes(stored, fits, names, settings, LLAMAGEN, narrower=False)
    how = conventions(name, (layers,), settings, head_norm=False, rotary_pairs=True, grid=loaded.grid, grid_from=loaded.first - 1)
    head = assembled(stored, fits, names, HeadConfig(**sizes, layers=1, wide=False, how=how, bias="fc.bias" in names), LLAMAGEN)
    prompt = loaded.prompts.size if isinstance(loaded.prompts, CaptionPrompts) else len(loaded.labels)
    return replace(head, embedding=torch.cat((head.embedding, head.embedding[:1].expand(prompt, -1))))


def _same_picture(name: str, settings: Mapping[str, Any], loaded: LoadedLlamaGen) -> None:
    """Raise ModelUnavailable if the drafter was made for other prompts, or for pictures of another size."""
    kind = settings["input_type"]
    cells = settings.get("block_size") or _GRIDS[kind] ** 2
    if (kind == "c2i") != (loaded.first == 1) or cells != loaded.cells:
        asked = "classes" if kind == "c2i" else "captions"
        own = "classes" if loaded.first == 1 else "captions"
        raise ModelUnavailable(
            f"{name} drafts pictures of {cells} codes asked for by {asked}, and {loaded.name} draws {loaded.cells} by {own}: "
            "choose the drafter that was trained for it."
        )
