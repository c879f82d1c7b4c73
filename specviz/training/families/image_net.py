"""The image model as training runs it: transformers' Janus over [begin, words …, picture, codes …].

Norm weights stay at one: the matrices behind them learn the same. Axis names: ``batch``, ``place``, ``hidden``, ``code``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import DynamicCache, JanusConfig, JanusForConditionalGeneration

from specviz.engine.cache import CACHE_ARGUMENT
from specviz.models.image.image_shape import TextShape, VqShape, janus_config
from specviz.models.loading_lock import exclusive_loading

LAYERS = "model.language_model.layers."
PARTS = ("model.language_model.", "model.generation_")
"""Beginnings of the names of what draws; the rest of the class sees pictures, writes text, or is the picture tokenizer's."""
ADDS = ("o_proj.weight", "down_proj.weight")


def fresh(vq: VqShape, text: TextShape, grid: int, codebook: Tensor, seed: int = 0) -> Any:
    """A model drawn anew, whose codes start from their vectors [code, dim]."""
    torch.manual_seed(seed)
    with exclusive_loading():
        model = JanusForConditionalGeneration(JanusConfig(**janus_config(vq, text, grid)))
    model.set_attn_implementation("eager")  # backwards and for single queries torch's fused attention is slow on processors
    with torch.no_grad():
        model.model.generation_embeddings.weight.copy_(codebook)
        for name, value in drawing(model).items():
            if value.ndim == 2 and name.startswith(LAYERS):
                value.normal_(std=value.shape[1] ** -0.5)
            if name.endswith(ADDS):
                value.mul_(0.3)
    learning = learned(model)
    for name, value in model.named_parameters():
        value.requires_grad_(name in learning)
    return model


def drawing(model: Any) -> dict[str, nn.Parameter]:
    """The parameters that ship."""
    return {name: value for name, value in model.named_parameters() if name.startswith(PARTS)}


def learned(model: Any) -> dict[str, nn.Parameter]:
    """Those that are moved: all but the norms."""
    return {name: value for name, value in drawing(model).items() if not name.endswith("norm.weight")}


@torch.no_grad()
def stack(small: Mapping[str, Tensor], model: Any) -> None:
    """Start a deep model from one with fewer layers: behind each come copies that look at the same and add nothing yet."""
    times = model.config.text_config.num_hidden_layers // len({name.split(".")[3] for name in small if name.startswith(LAYERS)})
    for name, value in drawing(model).items():
        if not name.startswith(LAYERS):
            value.copy_(small[name])
            continue
        layer, _, rest = name.removeprefix(LAYERS).partition(".")
        number, copy = divmod(int(layer), times)
        value.copy_(small[f"{LAYERS}{number}.{rest}"])
        if copy and name.endswith(ADDS):
            value.zero_()


def hidden_states(model: Any, prompts: Tensor, codes: Tensor) -> Tensor:
    """Prompts [batch, place] and codes [batch, place] to final hidden states [batch, place, hidden] of all places."""
    rows = (model.get_input_embeddings()(prompts), model.prepare_embeddings_for_image_generation(codes))
    return model.model.language_model(inputs_embeds=torch.cat(rows, dim=1), use_cache=False).last_hidden_state


def loss(model: Any, prompts: Tensor, codes: Tensor, read: Tensor | None = None) -> Tensor:
    """Mean cross-entropy in nats of codes [batch, place] given prompts [batch, word] and the codes before, as they are
    or, for what is learned from, as ``read`` has them."""
    states = hidden_states(model, prompts, (codes if read is None else read)[:, :-1])[:, prompts.shape[1] - 1 :]
    return F.cross_entropy(model.model.generation_head(states).flatten(0, 1).float(), codes.flatten())


def guided(with_words: Tensor, without: Tensor, strength: float) -> Tensor:
    """Logits after guidance."""
    return without + strength * (with_words - without)


@torch.inference_mode()
def draw(model: Any, prompts: Tensor, empty: Tensor, cells: int, guidance: float, seed: int) -> Tensor:
    """Codes [picture, cell] at temperature 1 for prompts [picture, word] with guidance against ``empty`` ones."""
    generator = torch.Generator(prompts.device).manual_seed(seed)
    rows, cache, columns = model.get_input_embeddings()(torch.cat((prompts, empty))), DynamicCache(), list[Tensor]()
    while len(columns) < cells:
        states = model.model.language_model(inputs_embeds=rows, use_cache=True, **{CACHE_ARGUMENT: cache}).last_hidden_state
        logits = guided(*model.model.generation_head(states[:, -1:])[:, 0].float().chunk(2), guidance)
        columns.append(torch.multinomial(logits.softmax(-1), 1, generator=generator))
        rows = model.prepare_embeddings_for_image_generation(columns[-1].repeat(2, 1))
    return torch.cat(columns, dim=1)
