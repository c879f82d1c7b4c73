"""The network against a reading of its definition that shares no code with it."""

import pytest
import torch

from specviz.training.families.feature import unroll
from tests.support.referee.decoder_layer import below, decoder_layer, norm
from tests.support.tiny.text import tiny_llama
from tests.support.worlds.feature import tiny_net

TOKENS = torch.tensor([7, 3, 11, 3, 0, 40, 21, 8, 30])


def plain_forward(net, features):
    """The last output [hidden] of a text in which every input sees all before it; ``features`` [input, hidden] are fused."""
    config, part, embedded = net.config, dict(net.named_parameters()), net.embedding[TOKENS[1 : len(features) + 1]]
    layer, x, inputs = below(part, "layer."), features, None
    if config.wide:
        entering = ((embedded, "input_layernorm"), (features, "hidden_norm"))
        inputs = torch.cat([norm(rows, layer[f"{name}.weight"], config.eps) for rows, name in entering], dim=-1)
    else:
        x = (torch.cat((embedded, features), dim=-1) * net.fc.scale) @ part["fc.weight"].T + part["fc.bias"]
    return decoder_layer(layer, x, torch.arange(len(x)), config.heads, config.theta, config.eps, inputs)[-1]


@pytest.mark.parametrize("wide", [False, True])
def test_self_fed_steps_see_the_true_text_up_to_their_start_and_then_themselves(wide):
    net = tiny_net(tiny_llama(), wide, support=20)
    features = torch.randn(len(TOKENS), len(net.config.taps) * net.config.hidden, dtype=torch.float64)
    rows = [torch.tensor([0, 2, 3, 5]), torch.tensor([0, 3, 5]), torch.tensor([0, 3])]
    outputs = unroll(net, TOKENS, features, rows)
    fused = features @ (net.fc.weight * net.fc.scale).T if wide else features
    for step, chosen in enumerate(rows):
        for row, start in enumerate(chosen.tolist()):
            given = fused[: start + 1]
            for _ in range(step):  # what an earlier step gave is what the next one reads
                given = torch.cat((given, plain_forward(net, given)[None]))
            wanted = plain_forward(net, given)
            assert torch.allclose(outputs[step][row], wanted, atol=1e-10)
            read = norm(wanted, net.norm.weight, net.config.eps) if wide else wanted
            assert torch.allclose(net.logits(outputs[step])[row], net.head @ read, atol=1e-10)
    assert torch.equal(net.head, tiny_llama().lm_head.weight[net.draft_ids])


def test_positions_beyond_the_first_table_are_rotated_right():
    net, places = tiny_net(tiny_llama(), True), torch.tensor([3, 4999])
    x = torch.randn(2, 4, 8, dtype=torch.float64)
    net.reach(5000)
    angle = places[:, None].double() * net.config.theta ** -(torch.arange(4).double() / 4)
    pairs = torch.complex(x[..., :4], x[..., 4:]) * torch.polar(torch.ones_like(angle), angle)[:, None]
    assert torch.allclose(net.turn(x, places), torch.cat((pairs.real, pairs.imag), -1), atol=1e-9)
