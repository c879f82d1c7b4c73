"""Reader of LANTERN's published drafter for Anole (Jang et al. 2024, arXiv 2410.03355; jadohu/anole_drafter).

The layout: ``fc`` from [embedding; last hidden state] with a bias, ``layers.0.*`` a whole Chameleon layer (a norm on its input,
queries and keys centred and scaled by head), the target's own head. Ids of a run have the codes first.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from specviz.drafters.networks.feature_head import FeatureHead, HeadConfig
from specviz.errors import ModelUnavailable
from specviz.models.drafters.head_parts import assembled, conventions, head_sizes
from specviz.models.drafters.head_settings import OURS, SIZES, refuse_unknown, rotary, switch
from specviz.models.hub.cache_dir import Progress, silent
from specviz.models.hub.published import Fit, open_repository
from specviz.models.image.anole import LoadedAnole

KIND = "LANTERN's Anole"
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "model_type": ("chameleon",),
    "model_parallel_size": (1,),
    "num_hidden_layers": (1,),
    "swin_norm": (False,),
}
_READ = SIZES - set(_NEUTRAL) | {"vq_config", "vocabulary_map", "bias"}


def anole_head(kind: str, name: str, loaded: LoadedAnole, progress: Progress = silent) -> FeatureHead:
    """The drafter called ``name`` on this target, in its number format, over ids that have the codes first.

    Raises ModelUnavailable naming what does not fit.
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
    how = conventions((layers,), settings.get("rms_norm_eps"), head_norm=False, **rotary(stored, settings, sizes["head_size"]))
    biased = switch(name, settings, "attention_bias")
    config = HeadConfig(
        **sizes, layers=1, wide=False, how=how, bias="fc.bias" in names, attention_bias=biased, output_bias=biased,
        mlp_bias=switch(name, settings, "mlp_bias"), layer_norms=True, first_norm=True,
    )  # fmt: skip
    head = assembled(stored, fits, names, config, KIND)
    own, codes = head.embedding, loaded.code_ids
    table = torch.cat((own[codes], own))
    return replace(head, embedding=table, head=head.head[codes], draft_ids=None)
