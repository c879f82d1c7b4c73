"""Block drafter of DFlash and DSpark: ``train dspark``.

DFlash (arXiv 2602.06036) and DSpark (arXiv 2607.05147). A block starts at an anchor, a random position of an answer, and attends
to the target's hidden states before the anchor and to itself. The weight of the loss falls exponentially with the slot. DFlash
minimises the cross-entropy to the target's distribution. DSpark adds the total variation distance, given the true previous token.
This distance is the rejection rate of a sampled token. The confidence head learns to predict the acceptance rate. DFlash's loss
stays part of DSpark's here, so that one network drafts well with and without its corrections.

Layers are initialised from the target's last layers.
Axis names: ``block``, ``slot``, ``token``, ``hidden``, ``kv``, ``size`` (of a head), ``support``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from specviz.drafting.networks.block_fill import RECURRENT, BlockFill, FillConfig, FillRuntime
from specviz.drafting.networks.head_config import HeadConventions
from specviz.training import acceptance, driver, parallel
from specviz.training.data import IGNORED
from specviz.training.driver import Job
from specviz.training.families.feature import (
    DROPOUT,
    EAGLE3_NOISE,
    FeatureTraining,
    dense,
    dropout,
    gated_layer,
    run,
    shape_of,
    uniform,
)
from specviz.training.features import DialogueFeatures, FeatureStore, gather, target_distribution
from specviz.training.parallel import apply_padded

MASK = 3
"""Mask token: SmolLM2's ``<repo_name>``, which occurs in no dialogue."""
DENSITY = 0.3
"""Anchors per answer token."""
FADE = 4.0
"""Number of slots over which the weight of the loss falls by a factor of e."""
CROSS_ENTROPY, VARIATION, MARGINAL = 0.1, 0.9, 0.3


def fill_shape(config: Any, taps: Sequence[int], draft_vocab: int, **own: Any) -> FillConfig:
    """Return the config of a drafter with the target's sizes. ``own``: further fields of the config.

    Raises ValueError for a recurrent Markov head, whose state :func:`fill_loss` cannot provide for single slots.
    """
    if own.get("markov") == RECURRENT:
        raise ValueError("this family cannot train a recurrent Markov head")
    target = vars(shape_of(config, tuple(taps), wide=True))
    sizes = {name: target[name] for name in ("vocab_size", "hidden", "heads", "kv_heads", "head_size", "inner")}
    how = HeadConventions(tuple(taps), theta=target["theta"], eps=target["eps"])
    return FillConfig(
        **{**sizes, "target_hidden": target["hidden"], "wide": False, "head_norms": False, "scaled": True, **own},
        how=how, mask=MASK, from_anchor=True, draft_vocab=draft_vocab,
    )  # fmt: skip


@torch.no_grad()
def start(net: BlockFill, model: Any, dialogues: Sequence[DialogueFeatures]) -> None:
    """Initialise ``net`` from the target ``model``, and the scale of the inputs from ``dialogues``."""
    config, tensors, layers = net.config, net.tensors, model.base_model.layers
    states = torch.cat([dialogue.features for dialogue in dialogues])
    scale = states.flatten(1).square().mean(0).clamp_min(1e-12).rsqrt()
    first = max(0, len(layers) - config.layers - 1)
    nearest = min(range(len(config.taps)), key=lambda number: abs(config.taps[number] - first))
    columns = slice(nearest * config.hidden, (nearest + 1) * config.hidden)
    tensors["fc.scale"].copy_(scale)
    tensors["fc.weight"][:, columns] = torch.diag(1 / scale[columns])
    tensors["hidden_norm.weight"].fill_(1.0)
    tensors["norm.weight"].copy_(model.base_model.norm.weight)
    for number in range(config.layers):
        part = dict(net.get_submodule(f"layers.{number}").named_parameters())
        with gated_layer(model):
            own = layers[first + number]
            for name in "qkv":  # folds the norm's weight into the matrices, since the context is not normalised
                weight = dense(getattr(own.self_attn, f"{name}_proj")) * own.input_layernorm.weight
                part[f"self_attn.{name}_proj.weight"].copy_(weight)
            part["self_attn.o_proj.weight"].copy_(dense(own.self_attn.o_proj))
            gate, up, down = (dense(getattr(own.mlp, f"{name}_proj")) for name in ("gate", "up", "down"))
            strongest = (gate.norm(dim=1) * up.norm(dim=1) * down.norm(dim=0)).topk(config.inner).indices
            for name, weight in (("gate", gate[strongest]), ("up", up[strongest]), ("down", down[:, strongest])):
                part[f"mlp.{name}_proj.weight"].copy_(weight)
            part["input_layernorm.weight"].fill_(1.0)
            part["post_attention_layernorm.weight"].copy_(own.post_attention_layernorm.weight)
    generator = torch.Generator(states.device).manual_seed(0)
    tensors["markov_head.markov_w1.weight"].normal_(std=config.rank**-0.5, generator=generator)


def fill_loss(net: BlockFill, place: Tensor, dialogue: DialogueFeatures, generator: torch.Generator, scale: float) -> Tensor:
    """Return the weighted loss, summed over the slots of all blocks, times ``scale``.

    ``place`` [vocab]: index in the draft vocabulary, or IGNORED. Only answer tokens inside the draft vocabulary count.
    ``dialogue``: one dialogue or several joined ones.
    """
    tokens, device, config = dialogue.tokens, dialogue.tokens.device, net.config
    chosen = []
    for begin, first, end in dialogue.spans:
        possible = torch.arange(min(max(begin + 1, first - 1), end - 1), end - 1)  # an answer of one token has none
        drawn = possible[torch.randperm(len(possible), generator=generator)[: max(1, round(DENSITY * (end - first)))]]
        chosen.append((drawn.sort().values, torch.full_like(drawn, begin), torch.full_like(drawn, end)))
    anchors, starts, stops = (torch.cat(parts).to(device) for parts in zip(*chosen, strict=True))
    labels = anchors[:, None] + 1 + torch.arange(config.slots, device=device)
    counts = labels < stops[:, None]
    counts &= place[tokens[labels.clamp_max(len(tokens) - 1)]] != IGNORED
    features = dialogue.features.flatten(1)
    features = features + (2 * uniform(features, generator) - 1) * EAGLE3_NOISE / net.get_parameter("fc.scale")
    network = FillRuntime(net)
    outputs = network.blocks(network.fuse(dropout(features, DROPOUT, generator)), tokens, anchors, starts)
    weight = torch.exp(-torch.arange(config.slots, device=device) / FADE).expand_as(counts)[counts] / DENSITY
    distribution, at = target_distribution(net.head, dialogue)
    truth, at_slots = distribution[at[labels[counts]]], outputs[counts]
    words, marginal = tokens[labels[counts] - 1], apply_padded(network.logits, at_slots)
    logits, _ = network.correct(marginal, at_slots, words, network.state(words))
    wrong = 0.5 * (logits.float().softmax(-1) - truth).abs().sum(-1)
    losses = CROSS_ENTROPY * F.cross_entropy(logits, truth, reduction="none") + VARIATION * wrong
    losses = losses + MARGINAL * F.cross_entropy(marginal, truth, reduction="none")
    sure = F.binary_cross_entropy_with_logits(network.confidence(at_slots, words).float(), 1 - wrong.detach(), reduction="none")
    return ((losses + sure) * weight).sum() * scale


def acceptance_metrics(net: BlockFill, store: FeatureStore, numbers: Sequence[int]) -> dict[str, float]:
    """Return the acceptance of blocks from every position of the answers, each slot given the true previous tokens."""
    network = FillRuntime(net)

    def draft(dialogue: DialogueFeatures, starts: Tensor) -> Sequence[Tensor]:
        anchors, tokens = starts + 1, dialogue.tokens
        outputs = network.blocks(network.fuse(dialogue.features.flatten(1)), tokens, anchors)
        return network.conditional_logits(outputs, tokens, anchors).unbind(1)

    ranks = acceptance.chain_ranks(store.get(numbers), net.config.slots, draft, net.draft_ids)
    return acceptance.metrics(ranks, alone=True)


def make(job: Job) -> None:
    """Train, measure on held-out answers, and write ``assets/weights/NAME.safetensors``."""
    inputs = gather(job)
    settings, store, model = driver.settings_for(job, inputs.device), inputs.store, inputs.assets.target.model
    shape = fill_shape(model.config, store.taps, len(inputs.draft_ids), **job.recipe.shape)
    net = BlockFill(shape, inputs.assets.embedding, inputs.head, inputs.draft_ids).to(inputs.device)
    parallel.keep_cast(net.head)
    start(net, model, store.get(inputs.fitting_set(settings)))
    loss: Callable[..., Tensor] = partial(fill_loss, net, inputs.place)
    measured = partial(acceptance_metrics, net, store)
    state = FeatureTraining(net, store, inputs.training, inputs.evaluation_set, settings, loss, measured)
    run(job, inputs, state, net.save)
