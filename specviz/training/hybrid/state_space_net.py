"""The two networks of the state-space recipes, and their forward for training: the scan in chunks, so that it is products.

Mamba-2's structured duality (Dao and Gu, arXiv 2405.21060, section 6): inside a chunk the recurrence is a masked matrix
product, between chunks one state is handed on. Axis names: ``batch``, ``chunk``, ``token`` (of a chunk), ``head``,
``size`` (of a head), ``state``.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import BambaConfig, BambaForCausalLM, Mamba2Config, Mamba2ForCausalLM
from transformers.models.bamba.modeling_bamba import apply_rotary_pos_emb

from specviz.targets.state_layers import Anatomy, Block, anatomy

CHUNK = 64
SLOWEST, FASTEST = 0.002, 0.2


def target_config(vocab_size: int) -> BambaConfig:
    """Five Mamba-2 layers and one of attention, 2.8 million weights."""
    return BambaConfig(
        vocab_size=vocab_size, hidden_size=192, intermediate_size=320, num_hidden_layers=6, attn_layer_indices=[3],
        num_attention_heads=6, num_key_value_heads=2, mamba_n_heads=6, mamba_d_head=64, mamba_d_state=64,
        mamba_n_groups=1, mamba_chunk_size=CHUNK, tie_word_embeddings=True, max_position_embeddings=2048,
        bos_token_id=0, eos_token_id=1, pad_token_id=None,
    )  # fmt: skip


def draft_config(vocab_size: int) -> Mamba2Config:
    """Two Mamba-2 layers, half a million weights."""
    return Mamba2Config(
        vocab_size=vocab_size, hidden_size=128, num_hidden_layers=2, expand=2, num_heads=4, head_dim=64, state_size=32,
        n_groups=1, conv_kernel=4, chunk_size=CHUNK, tie_word_embeddings=True, residual_in_fp32=True,
        bos_token_id=0, eos_token_id=1, pad_token_id=0,
    )  # fmt: skip


def fresh(config: Any, seed: int) -> Any:
    """A network that is silent behind every layer, with time steps from slow to fast: it starts as its own embedding."""
    torch.manual_seed(seed)
    model = BambaForCausalLM(config) if isinstance(config, BambaConfig) else Mamba2ForCausalLM(config)
    model.get_input_embeddings().weight.data.normal_(std=0.02)
    for block in anatomy(model).blocks:
        for part in (block.mixer, block.attention, block.feed):
            for name, layer in part.named_modules() if part is not None else ():
                if isinstance(layer, nn.Linear):
                    layer.weight.data.normal_(std=layer.in_features**-0.5)
                    if name in {"out_proj", "o_proj", "down_proj"}:
                        layer.weight.data.zero_()
        if block.mixer is not None:
            _spread(block.mixer)
    return model


def _spread(mixer: nn.Module) -> None:
    """Time steps spread evenly in their logarithm, decays from 1 to 16, as Mamba-2 starts."""
    heads = mixer.num_heads
    step = torch.exp(torch.linspace(math.log(SLOWEST), math.log(FASTEST), heads))
    mixer.dt_bias.data.copy_(step + torch.log(-torch.expm1(-step)))
    mixer.A_log.data.copy_(torch.log(torch.linspace(1, 8, heads)))
    mixer.D.data.fill_(1.0)


def hidden_states(model: Any, ids: Tensor) -> Tensor:
    """ids [batch, token] to what the head reads, [batch, token, hidden]; the number of tokens is whole chunks."""
    body = anatomy(model)
    x = body.embed(ids).float()
    places = torch.arange(ids.shape[1], device=ids.device)[None]
    turns = None if body.rotary is None else body.rotary(x, places)
    for block in body.blocks:
        x = _layer(body, block, x, turns)
    return _norm(x, body.norm)


def _layer(body: Anatomy, block: Block, x: Tensor, turns: Any) -> Tensor:
    inner = _norm(x, block.norm)
    x = x + (_mix(block.mixer, inner) if block.mixer is not None else _attend(block.attention, inner, turns))
    if block.feed is None:
        return x
    return x + block.feed(_norm(x, block.feed_norm))


def _norm(x: Tensor, norm: Any) -> Tensor:
    return F.rms_norm(x.float(), (x.shape[-1],), norm.weight, norm.variance_epsilon)


def _attend(layer: Any, x: Tensor, turns: tuple[Tensor, Tensor]) -> Tensor:
    shape = (*x.shape[:-1], -1, layer.head_dim)
    query, key, value = (part(x).view(shape).transpose(1, 2) for part in (layer.q_proj, layer.k_proj, layer.v_proj))
    query, key = (part.to(value.dtype) for part in apply_rotary_pos_emb(query, key, *turns))
    attention = F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
    return layer.o_proj(attention.transpose(1, 2).reshape(*x.shape[:-1], -1))


def _mix(mixer: Any, inner: Tensor) -> Tensor:
    """One Mamba-2 mixer over whole rows."""
    batch, token, _ = inner.shape
    gate, u, raw = mixer.in_proj(inner).split([mixer.intermediate_size, mixer.conv_dim, mixer.num_heads], -1)
    before = mixer.conv1d.kernel_size[0] - 1
    convolved = F.conv1d(F.pad(u.transpose(1, 2), (before, 0)), mixer.conv1d.weight, mixer.conv1d.bias, groups=u.shape[-1])
    side = mixer.n_groups * mixer.ssm_state_size
    x, b, c = F.silu(convolved.transpose(1, 2)).split([mixer.intermediate_size, side, side], -1)
    x = x.reshape(batch, token, mixer.num_heads, mixer.head_dim)
    b, c = (part.reshape(batch, token, mixer.n_groups, mixer.ssm_state_size) for part in (b, c))
    step = F.softplus(raw.float() + mixer.dt_bias).clamp(*mixer.time_step_limit)
    y = scan(x, step, -torch.exp(mixer.A_log.float()), b, c) + mixer.D[:, None].to(x.dtype) * x
    gated = y.reshape(batch, token, -1) * F.silu(gate)
    return mixer.out_proj(_group_norm(gated, mixer.norm, mixer.n_groups))


def _group_norm(x: Tensor, norm: Any, groups: int) -> Tensor:
    if groups == 1:
        return _norm(x, norm)
    parted = x.float().unflatten(-1, (groups, -1))
    return F.rms_norm(parted, (parted.shape[-1],), None, norm.variance_epsilon).flatten(-2) * norm.weight


def scan(x: Tensor, step: Tensor, rate: Tensor, b: Tensor, c: Tensor, chunk: int = CHUNK) -> Tensor:
    """x [batch, n, head, size], step [batch, n, head], rate [head] (negative), b and c [batch, n, group, state] to y like x.

    ``n`` is a multiple of ``chunk``; states start at zero. Decays are float32, products in the dtype of ``x``.
    """
    batch, n, heads, size = x.shape
    shape, heads_per_group = (batch, n // chunk, chunk), heads // b.shape[2]
    fade = (step * rate).view(*shape, heads).transpose(2, 3).cumsum(-1)
    below = torch.ones(chunk, chunk, dtype=torch.bool, device=x.device).tril()
    decay = (fade[..., :, None] - fade[..., None, :]).masked_fill(~below, -math.inf).exp()
    b, c = (part.view(*shape, *part.shape[2:]).transpose(2, 3).repeat_interleave(heads_per_group, 2) for part in (b, c))
    inputs = (x * step[..., None].to(x.dtype)).view(*shape, heads, size).transpose(2, 3)
    inside = (decay.to(x.dtype) * (c @ b.transpose(-1, -2))) @ inputs
    late = (fade[..., -1:] - fade).exp()[..., None].to(x.dtype)
    before = _handed_on((inputs * late).transpose(-1, -2) @ b, fade[..., -1].exp()[..., None, None])
    across = fade.exp()[..., None].to(x.dtype) * (c @ before.transpose(-1, -2).to(c.dtype))
    return (inside + across).transpose(2, 3).reshape(batch, n, heads, size)


def _handed_on(additions: Tensor, decays: Tensor) -> Tensor:
    """The state before each chunk, [batch, chunk, head, size, state], from what each chunk adds and how much it keeps."""
    state, before = torch.zeros_like(additions[:, 0], dtype=torch.float32), []
    for place in range(additions.shape[1]):
        before.append(state)
        state = decays[:, place] * state + additions[:, place]
    return torch.stack(before, 1)
