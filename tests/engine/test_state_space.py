"""The tree scan equals the recurrence walked token by token along every path, and each classic mistake does not."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from specviz.engine.state_space import (
    Activations,
    Carried,
    Recurrence,
    decays,
    tree_scan,
)
from specviz.engine.tree import TreeShape
from tests.support.tiny.hybrid import random_parents

# nodes, heads, head size, state, groups, taps: the oracle's own list.
SHAPES = [
    (1, 4, 8, 16, 1, 4),
    (13, 4, 8, 16, 1, 4),
    (40, 8, 16, 32, 2, 4),
    (64, 8, 16, 64, 1, 4),
    (40, 8, 16, 32, 8, 3),
]
LIMITS = {torch.float64: 2e-14, torch.float32: 2e-5}


@dataclass(frozen=True)
class Case:
    """A layer, a tree, and inputs [node, channel], steps [node, head], window [tap - 1, channel], state."""

    layer: Recurrence
    shape: TreeShape
    inputs: Tensor
    steps: Tensor
    window: Tensor
    state: Tensor

    def to(self, dtype):
        layer = replace(self.layer, **{n: getattr(self.layer, n).to(dtype) for n in ("kernel", "bias", "rate", "skip")})
        return Case(layer, self.shape, *(getattr(self, n).to(dtype) for n in ("inputs", "steps", "window", "state")))

    def scan(self):
        return tree_scan(self.layer, self.inputs, self.steps, self.window, self.state, self.shape)


def case(nodes, heads, size, state, groups, taps, seed=0, branch=0.5):
    generator = torch.Generator().manual_seed(seed)
    channels = heads * size + 2 * groups * state

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    rate = -torch.exp(torch.rand(heads, generator=generator, dtype=torch.float64) * np.log(16))
    layer = Recurrence(0.5 * normal(taps, channels), 0.1 * normal(channels), rate, normal(heads), groups, state)
    shape = TreeShape(random_parents(nodes, np.random.default_rng(seed), branch))
    steps = F.softplus(normal(nodes, heads) - 1)
    return Case(layer, shape, normal(nodes, channels), steps, normal(taps - 1, channels), normal(heads, size, state))


def walked(one, path):
    """One path token by token: the last y, the state, the window."""
    layer, window, h = one.layer, list(one.window), one.state.clone()
    each, y = layer.heads // layer.groups, torch.empty(0)
    for node in path:
        window.append(one.inputs[node])
        v = F.silu(layer.bias + sum(layer.kernel[tap] * window[-1 - tap] for tap in range(layer.taps)))
        x, b, c = (part[0] for part in layer.split(v[None]))
        b, c = b.repeat_interleave(each, 0), c.repeat_interleave(each, 0)
        h = torch.exp(one.steps[node] * layer.rate)[:, None, None] * h
        h = h + one.steps[node][:, None, None] * x[:, :, None] * b[:, None, :]
        y = (h * c[:, None, :]).sum(-1) + layer.skip[:, None] * x
    return y, h, torch.stack(window[-(layer.taps - 1) :])


def off(found, wanted):
    return float((found.double() - wanted).abs().max() / wanted.abs().max())


@pytest.mark.spread(2)
@pytest.mark.parametrize("dtype", list(LIMITS), ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_node_equals_its_path_walked_alone(shape, dtype):
    for seed in range(3):
        exact = case(*shape, seed=seed)
        used = exact.to(dtype)
        y = used.scan()
        passed = Activations(used.inputs[None], used.steps[None])
        carried = Carried(used.window[None], used.state[None])
        for node in range(len(exact.shape)):
            path = exact.shape.path(node)
            wanted, state, window = walked(exact, path)
            assert off(y[node], wanted) < LIMITS[dtype]
            after = used.layer.stacked([used.layer]).replayed(passed.of(torch.tensor(path)), carried)
            assert off(after.state[0], state) < LIMITS[dtype]
            assert torch.equal(after.window[0].double(), window.to(dtype).double())


def test_a_replay_in_two_parts_is_the_replay_in_one():
    one = case(12, 4, 8, 16, 1, 4, branch=0.0)
    layer, passed = one.layer.stacked([one.layer]), Activations(one.inputs[None], one.steps[None])
    start = Carried(one.window[None], one.state[None])
    whole = layer.replayed(passed, start)
    for cut in (1, 2, 5, 11):
        halves = layer.replayed(passed.part(cut, 12), layer.replayed(passed.part(0, cut), start))
        assert torch.allclose(halves.state, whole.state, rtol=1e-12)
        assert torch.equal(halves.window, whole.window)


def test_the_mask_comes_before_the_exponential():
    fade = torch.tensor([[0.0], [-60.0], [-1.0], [-95.0]])
    seen = TreeShape((-1, 0, 0, 2)).ancestors
    right = decays(fade, seen)
    assert right.isfinite().all() and bool((right[0][~seen] == 0).all())
