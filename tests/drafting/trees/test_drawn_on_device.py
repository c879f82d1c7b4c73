"""Trees of drawn tokens that are decided on the drafter's device: the same trees as the host's, node by node."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as some
from torch import Tensor

from specviz.drafting.trees.drawn import Drawn
from specviz.drafting.trees.drawn_on_device import DrawnOnDevice
from specviz.drafting.trees.dynamic import SpeedupMaximising
from specviz.engine.cost import CostCurve
from specviz.engine.interfaces import Context
from specviz.engine.sampling import Noise, Warp
from tests.support.worlds.fancy import Fancy


class Levels:
    """Levels of a drafter with a distribution of its own after every path; every row is asked, whatever it stands for."""

    def __init__(self, drafter: Fancy, deepest: int = 99) -> None:
        self.deepest = deepest
        self._drafter = drafter
        self._rows: list[tuple[int, ...]] = [()]

    def step(self, key: Hashable, work: Callable[[], object]) -> object:
        return work()

    def given(self, name: Hashable, values: Tensor) -> Tensor:
        return values

    def first(self) -> Tensor:
        return self._drafter.distribution(())[None]

    def below(self, tokens: Tensor, parents: Tensor) -> Tensor:
        self._rows = [(*self._rows[row], token) for token, row in zip(tokens.tolist(), parents.tolist(), strict=True)]
        return torch.stack([self._drafter.distribution(row) for row in self._rows])


class Asked(Fancy):
    """The same drafter for the host, asked for logits that the tree's own warp makes distributions of."""

    def __init__(self, *facts: object, deepest: int = 99) -> None:
        super().__init__(*facts)
        self._deepest = deepest

    def levels(self, context: Context) -> HostAsked:
        return HostAsked(self, self._deepest)


class HostAsked(Levels):
    def ask(self, tokens: Tensor | None = None, parents: Tensor | None = None) -> Tensor:
        return self.first() if tokens is None or parents is None else self.below(tokens, parents)


Sizes = tuple[int, int, int, SpeedupMaximising | None]


def pays(node: float, forward: float) -> SpeedupMaximising:
    return SpeedupMaximising.on(CostCurve((1, 101), (1.0, 1.0 + 100 * node)), forward=forward)


def compare(seed: int, temperature: float, support: list[int] | None, deepest: int, sizes: Sizes, where: Context) -> None:
    """The host's tree and the device's, from the same drafter and noise."""
    depth, width, nodes, policy = sizes
    host = Drawn(depth, width, nodes, policy).build(Asked(seed, temperature, support, deepest=deepest), where)
    device = DrawnOnDevice(depth, width, nodes or 64)
    drafter = Fancy(seed, temperature, support)
    growing, beams, reach = device.grow(Levels(drafter, deepest), drafter.support, where, policy)
    assert growing.tokens == list(host.tree.host_tokens) and growing.parents == list(host.tree.shape.parents)
    assert growing.confidence == list(host.confidence)
    assert {node: one.probability.tolist() for node, one in growing.proposals.items()} == {
        node: one.probability.tolist() for node, one in host.proposals.items()
    }
    growth = host.notes[0].data
    assert growth["beams"] == beams
    assert [math.log(value) for value in reach] == pytest.approx(growth["value"], abs=1e-9)


@given(
    seed=some.integers(0, 9999),
    temperature=some.floats(0.1, 8.0),
    small=some.booleans(),
    deepest=some.integers(1, 6),
    depth=some.integers(1, 5),
    width=some.integers(1, 5),
    nodes=some.integers(1, 40),
    warp=some.sampled_from([Warp(1.0), Warp(0.6), Warp(1.4, top_p=0.9), Warp(1.0, top_k=2)]),
    number=some.integers(0, 3),
)
def test_the_devices_tree_is_the_hosts(
    seed: int, temperature: float, small: bool, deepest: int, depth: int, width: int, nodes: int, warp: Warp, number: int
) -> None:
    where = Context([5, 1], 2, number, warp, Noise(seed), torch.device("cpu"), 100, True)
    compare(seed, temperature, [2, 6, 1] if small else None, deepest, (depth, width, nodes, None), where)


@given(
    seed=some.integers(0, 9999),
    temperature=some.floats(0.1, 8.0),
    depth=some.integers(1, 6),
    node=some.sampled_from([0.001, 0.01, 0.05, 0.2]),
    forward=some.sampled_from([0.001, 0.03, 0.4]),
)
def test_so_it_is_where_what_pays_decides(seed: int, temperature: float, depth: int, node: float, forward: float) -> None:
    where = Context([5, 1], 2, 0, Warp(1.0), Noise(seed), torch.device("cpu"), 100, True)
    compare(seed, temperature, None, 99, (depth, 4, 0, pays(node, forward)), where)
