"""Where the training of a feature drafter starts: from the target's last layer and a linear guess, not from noise.

A linear map from (features of token i, embedding of token i + 1) to the target's thought at token i + 1 has a closed form.
It goes into the network's projections; the layer around it is the target's last one, so that features, head and
feed-forward speak the same language from the first update on.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from specviz.drafting.networks.feature_net import FeatureConfig, FeatureNet
from specviz.errors import ModelUnavailable
from specviz.training.features import FeatureStore

_RIDGE = 1e-2
# What a token's own key scores with its query over what another's does, before training: it attends to itself.
_SELF = 1.0


class Sample(NamedTuple):
    """Rows to fit on: true ``features`` [row, tap * hidden], the ``embedded`` next token [row, hidden], and the target's
    ``thought`` at that next token, which its head reads [row, hidden]."""

    features: Tensor
    embedded: Tensor
    thought: Tensor


def shape_of(config: Any, taps: tuple[int, ...], wide: bool) -> FeatureConfig:
    """A drafter with the target's own widths and rotary positions."""
    parts = config.get_text_config()
    return FeatureConfig(
        vocab_size=parts.vocab_size, hidden=parts.hidden_size, heads=parts.num_attention_heads,
        kv_heads=parts.num_key_value_heads, head_size=parts.head_dim, inner=parts.intermediate_size, taps=taps, wide=wide,
        theta=float(parts.rope_parameters["rope_theta"]), eps=parts.rms_norm_eps,
    )  # fmt: skip


def sample(store: FeatureStore, chosen: list[int], embedding: Tensor, columns: slice) -> Sample:
    """Answer positions of the ``chosen`` dialogues; ``columns`` are the drafter's taps among the store's."""
    rows = []
    for dialogue in store.get(chosen):
        places = torch.arange(max(0, dialogue.first - 2), len(dialogue.tokens) - 1, device=dialogue.tokens.device)
        rows.append(
            (
                dialogue.features[places][:, columns].flatten(1),
                F.embedding(dialogue.tokens[places + 1], embedding),
                dialogue.features[places + 1, -1],
            )
        )
    return Sample(*(torch.cat(parts) for parts in zip(*rows, strict=True)))


@torch.no_grad()
def start(net: FeatureNet, model: Any, rows: Sample) -> None:
    """Set every weight of ``net`` from the target ``model`` and ``rows``."""
    _take_last_layer(net, model)
    if net.config.wide:
        _start_wide(net, model, rows)
    else:
        _start_narrow(net, rows)


def dense(linear: Any) -> Tensor:
    """The weight [out, in] of a linear layer, also of one that keeps it in a layout of its own."""
    if getattr(linear, "weight", None) is not None:
        return linear.weight.detach()
    packed: Tensor = linear.packed.to_dense()
    return packed


def _take_last_layer(net: FeatureNet, model: Any) -> None:
    last = model.base_model.layers[-1]
    mlp, hidden = net.layer.mlp, net.config.hidden
    with gated_layer(model):
        for name in ("gate_proj", "up_proj", "down_proj"):
            getattr(mlp, name).weight.copy_(dense(getattr(last.mlp, name)))
        net.layer.post_attention_layernorm.weight.copy_(last.post_attention_layernorm.weight)
        for name in ("q_proj", "k_proj", "v_proj"):
            getattr(net.layer.self_attn, name).weight[:, -hidden:].copy_(dense(getattr(last.self_attn, name)))
        net.layer.self_attn.o_proj.weight.copy_(dense(last.self_attn.o_proj))


@contextmanager
def gated_layer(model: Any) -> Iterator[None]:
    """Inside, the target's last layer is read. Raises ModelUnavailable where it has other parts than a drafter's."""
    try:
        yield
    except (AttributeError, RuntimeError) as problem:
        raise ModelUnavailable(
            f"The last layer of {type(model).__name__} is no gated decoder layer that a drafter can start from "
            f"({problem}): choose a Llama-like target."
        ) from problem


def _even_out(net: FeatureNet, inputs: Tensor) -> Tensor:
    """Give the entering projection its scale, and return the inputs it then sees."""
    scale = 1 / inputs.square().mean(0).sqrt().clamp_min(1e-6)
    net.fc.scale.copy_(scale)
    return inputs * scale


def fit(inputs: Tensor, outputs: Tensor, ridge: float = _RIDGE) -> Tensor:
    """Ridge regression: float64 [in, out] with inputs @ it near ``outputs``."""
    x, y = inputs.double(), outputs.double()
    gram = x.T @ x / len(x)
    gram += ridge * gram.diagonal().mean() * torch.eye(len(gram), dtype=gram.dtype, device=gram.device)
    return torch.linalg.solve(gram, x.T @ y / len(x))


def _start_narrow(net: FeatureNet, rows: Sample) -> None:
    """The projection guesses the next feature; the layer starts silent."""
    inputs = _even_out(net, torch.cat((rows.embedded, rows.features), dim=-1))
    net.fc.weight.copy_(fit(inputs, rows.thought).T)
    net.layer.self_attn.o_proj.weight.zero_()
    net.layer.mlp.down_proj.weight.zero_()


def _start_wide(net: FeatureNet, model: Any, rows: Sample) -> None:
    """The projection guesses from the features, attention to oneself adds what the embedding says; both in units in which
    the final norm has little to do."""
    config, attention = net.config, net.layer.self_attn
    net.norm.weight.copy_(model.base_model.norm.weight)
    features = _even_out(net, rows.features)
    embedded = F.rms_norm(rows.embedded, (config.hidden,), eps=config.eps)
    outputs = rows.thought / net.norm.weight.where(net.norm.weight.abs() > 1e-3, torch.ones_like(net.norm.weight))
    linear = fit(torch.cat((features, embedded), dim=-1), outputs)
    net.fc.weight.copy_(linear[: features.shape[1]].T)
    _attend_to_oneself(net, linear[features.shape[1] :], embedded)
    attention.q_proj.weight[:, config.hidden :].zero_()
    attention.k_proj.weight[:, config.hidden :].zero_()
    attention.v_proj.weight[:, config.hidden :].zero_()
    net.layer.mlp.down_proj.weight.zero_()


def _attend_to_oneself(net: FeatureNet, linear: Tensor, embedded: Tensor) -> None:
    """Queries and keys that match on equal tokens; values and output carry the best low-rank part of ``linear`` [in, out]."""
    config, attention, hidden = net.config, net.layer.self_attn, net.config.hidden
    size, groups = config.head_size, config.kv_heads
    spread = embedded.double().T @ embedded.double() / len(embedded)
    values, vectors = torch.linalg.eigh(spread)
    root = vectors * values.clamp_min(1e-8).sqrt()
    left, strength, right = torch.linalg.svd(root.T @ linear, full_matrices=False)
    rank = min(groups * size, len(strength))
    into = (vectors / values.clamp_min(1e-8).sqrt()) @ left[:, :rank]
    value, output = torch.zeros_like(attention.v_proj.weight[:, :hidden]), torch.zeros_like(attention.o_proj.weight)
    value[:rank] = into.T.to(value)
    outward = (strength[:rank, None] * right[:rank]).T.to(value)
    sharing = config.heads // groups
    for head in range(config.heads):
        group = head // sharing
        group_output = outward[:, group * size : (group + 1) * size]
        output[:, head * size : head * size + group_output.shape[1]] = group_output / sharing
    attention.v_proj.weight[:, :hidden] = value
    attention.o_proj.weight.copy_(output)
    generator = torch.Generator().manual_seed(0)
    for group in range(groups):
        match = torch.linalg.qr(torch.randn(hidden, min(size, hidden), generator=generator)).Q.T.to(value) * _SELF
        attention.k_proj.weight[group * size : group * size + len(match), :hidden] = match
        for head in range(group * sharing, (group + 1) * sharing):
            attention.q_proj.weight[head * size : head * size + len(match), :hidden] = match
