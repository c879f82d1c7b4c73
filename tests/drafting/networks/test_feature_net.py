"""The network against a reading of its definition that shares no code with it: loops, complex rotations, one row at a time."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from specviz.drafting.networks.feature_net import FeatureNet
from specviz.training.families.feature import unroll
from tests.support.tiny.text import tiny_llama
from tests.support.worlds.feature import tiny_net

TOKENS = torch.tensor([7, 3, 11, 3, 0, 40, 21, 8, 30])


def plain_forward(net: FeatureNet, tokens: list[int], features: list[Tensor], positions: list[int]) -> list[Tensor]:
    """Outputs of one text in which every input sees all before it, and the features given are already fused."""
    config, weights = net.config, dict(net.named_parameters())
    keys: list[Tensor] = []
    values: list[Tensor] = []
    outputs = []
    for token, feature, position in zip(tokens, features, positions, strict=True):
        embedded = net.embedding[token]
        if config.wide:
            x = torch.cat(
                (
                    unit(embedded, config.eps) * weights["layer.input_layernorm.weight"],
                    unit(feature, config.eps) * weights["layer.hidden_norm.weight"],
                )
            )
            residual = feature
        else:
            x = weights["fc.weight"] @ (torch.cat((embedded, feature)) * net.fc.scale) + weights["fc.bias"]
            residual = x
        query = rotated(weights["layer.self_attn.q_proj.weight"] @ x, config.heads, position, config.theta)
        keys.append(rotated(weights["layer.self_attn.k_proj.weight"] @ x, config.kv_heads, position, config.theta))
        values.append((weights["layer.self_attn.v_proj.weight"] @ x).view(config.kv_heads, -1))
        seen = []
        for head in range(config.heads):
            group = head * config.kv_heads // config.heads
            score = torch.stack([(query[head] * key[group].conj()).real.sum() for key in keys])
            distribution = (score / config.head_size**0.5).softmax(0)
            seen.append(sum(weight * value[group] for weight, value in zip(distribution, values, strict=True)))
        x = residual + weights["layer.self_attn.o_proj.weight"] @ torch.cat(seen)
        normed = unit(x, config.eps) * weights["layer.post_attention_layernorm.weight"]
        gate = F.silu(weights["layer.mlp.gate_proj.weight"] @ normed)
        x = x + weights["layer.mlp.down_proj.weight"] @ (gate * (weights["layer.mlp.up_proj.weight"] @ normed))
        outputs.append(x)
    return outputs


def unit(x: Tensor, eps: float) -> Tensor:
    return x / (x.square().mean() + eps).sqrt()


def rotated(x: Tensor, heads: int, position: int, theta: float) -> Tensor:
    """Pairs (i, i + half) of each head as complex numbers, turned by position times theta^(-i/half)."""
    first, second = x.view(heads, -1).chunk(2, dim=-1)
    half = first.shape[-1]
    angle = position * theta ** -(torch.arange(half, dtype=x.dtype) / half)
    return torch.complex(first, second) * torch.polar(torch.ones_like(angle), angle)


@pytest.mark.parametrize("wide", [False, True])
def test_self_fed_steps_see_the_true_text_up_to_their_start_and_then_themselves(wide: bool) -> None:
    net = tiny_net(tiny_llama(), wide, support=20)
    features = torch.randn(len(TOKENS), len(net.config.taps) * net.config.hidden, dtype=torch.float64)
    rows = [torch.tensor([0, 2, 3, 5]), torch.tensor([0, 3, 5]), torch.tensor([0, 3])]
    outputs = unroll(net, TOKENS, features, rows)
    fused = list(features @ (net.fc.weight * net.fc.scale).T) if wide else list(features)
    for step, chosen in enumerate(rows):
        for row, start in enumerate(chosen.tolist()):
            given = fused[: start + 1]
            for _ in range(step):  # what an earlier step gave is what the next one reads
                places = list(range(len(given)))
                given.append(plain_forward(net, [int(TOKENS[place + 1]) for place in places], given, places)[-1])
            places = list(range(len(given)))
            wanted = plain_forward(net, [int(TOKENS[place + 1]) for place in places], given, places)[-1]
            assert torch.allclose(outputs[step][row], wanted, atol=1e-10)
            read = unit(wanted, net.config.eps) * net.norm.weight if wide else wanted
            assert torch.allclose(net.logits(outputs[step])[row], net.head @ read, atol=1e-10)
    assert torch.equal(net.head, tiny_llama().lm_head.weight[net.draft_ids])


def test_positions_beyond_the_first_table_are_rotated_right() -> None:
    net = tiny_net(tiny_llama(), True)
    x = torch.randn(2, 4, 8, dtype=torch.float64)
    net.reach(5000)
    turned = net.turn(x, torch.tensor([3, 4999]))
    for row, position in enumerate((3, 4999)):
        wanted = rotated(x[row].flatten(), 4, position, net.config.theta)
        assert torch.allclose(turned[row], torch.cat((wanted.real, wanted.imag), -1), atol=1e-9)
