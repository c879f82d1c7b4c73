"""The gated delta rule over a tree: every node equals its own path walked token by token, written from the recurrence itself."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor

from specviz.engine.state_space import Activations, Carried, stack_layers
from specviz.engine.tree import TreeShape, shape_of
from specviz.targets.mixers import DeltaRule, tree_delta
from tests.support.tiny.hybrid import random_parents

KEY_HEADS, HEADS, KEY, SIZE, TAPS = 2, 4, 5, 3, 4
CHANNELS = 2 * KEY_HEADS * KEY + HEADS * SIZE


@dataclass
class Made:
    """A random layer with what it carries, and a pass over a random tree of tokens."""

    layer: DeltaRule
    carried: Carried
    inputs: Tensor
    log_decay: Tensor
    rate: Tensor
    shape: TreeShape

    def passed(self) -> tuple[Tensor, Activations]:
        window, state = self.carried.window[0], self.carried.state[0]
        y, written = tree_delta(self.layer, self.inputs, self.log_decay, self.rate, window, state, self.shape)
        return y, Activations(self.inputs, self.log_decay, written)

    def walked(self, path: list[int]) -> tuple[Tensor, Tensor, Tensor]:
        """The last token's output, window and state, one token after another, by the paper's recurrence (equation 10)."""
        window, state = self.carried.window[0].clone(), self.carried.state[0].clone()
        y = torch.empty(0)
        for node in path:
            rows = torch.cat((self.inputs[node][None], window.flip(0)))
            window = torch.cat((window[1:], self.inputs[node][None]))
            mixed = torch.nn.functional.silu((rows * self.layer.kernel).sum(0) + self.layer.bias)
            q, k, v = mixed.split([KEY_HEADS * KEY, KEY_HEADS * KEY, HEADS * SIZE])
            y = torch.empty(HEADS, SIZE, dtype=torch.float64)
            for head in range(HEADS):
                group = slice(KEY * (head // (HEADS // KEY_HEADS)), KEY * (head // (HEADS // KEY_HEADS)) + KEY)
                query, key = (part[group] / (part[group].square().sum() + 1e-6).sqrt() for part in (q, k))
                value, b, a = v.view(HEADS, SIZE)[head], self.rate[node, head], self.log_decay[node, head].exp()
                faded = a * state[head]
                state[head] = faded - b * torch.outer(key, key @ faded) + b * torch.outer(key, value)
                y[head] = query @ state[head] / KEY**0.5
        return y, window, state


def made(nodes: int, seed: int, slowest: float = 0.02) -> Made:
    generator, numbers = torch.Generator().manual_seed(seed), np.random.default_rng(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    layer = DeltaRule(0.5 * normal(TAPS, CHANNELS), 0.1 * normal(CHANNELS), KEY_HEADS, HEADS, KEY, SIZE)
    carried = Carried(normal(1, TAPS - 1, CHANNELS), normal(1, HEADS, KEY, SIZE))
    shape = shape_of(random_parents(nodes, numbers, 0.6))
    log_decay = -slowest * normal(nodes, HEADS).abs() * torch.tensor([1.0, 10.0, 100.0, 1000.0])
    return Made(layer, carried, normal(nodes, CHANNELS), log_decay, normal(nodes, HEADS).sigmoid(), shape)


@pytest.mark.spread(4)
@pytest.mark.parametrize("slowest", [0.0, 0.02, 3.0])
@pytest.mark.parametrize("nodes", [1, 2, 7, 24])
def test_every_node_of_a_tree_equals_its_path_walked(nodes: int, slowest: float) -> None:
    one = made(nodes, nodes, slowest)
    y, activations = one.passed()
    together = one.layer.stacked([one.layer])
    for node in range(nodes):
        path = list(one.shape.path(node))
        wanted, window, state = one.walked(path)
        assert torch.allclose(y[node], wanted, atol=1e-10), node
        carried = together.replayed(stack_layers([activations]).of(torch.tensor(path)), one.carried)
        assert torch.allclose(carried.state[0], state, atol=1e-10) and torch.allclose(carried.window[0], window)
