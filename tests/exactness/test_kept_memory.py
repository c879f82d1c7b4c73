"""Runs with one seed and a memory that is kept: each of them has the target's distribution, whatever the drafter learned.

A drafter that has learned from a run knows something of the random numbers of that run. Were the next run with the same seed
judged with them again, its draft would depend on its own coins, and rejection sampling would not be exact.
"""

from __future__ import annotations

import itertools
import math
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from specviz.acceptance.rejection import Rejection
from specviz.drafters.silent import Silent
from specviz.engine.cost import CostCurve
from specviz.engine.interfaces import Composition, Context, Proposal, TargetPass
from specviz.engine.sampling import Warp
from specviz.engine.tree import DraftTree, chain
from specviz.growth.chosen import Arm, Chosen
from specviz.growth.choosers import ExponentialWeights, NormalHedge, UpperConfidence
from specviz.growth.sampled import Sampled
from specviz.methods.not_a_bandit import recalled
from specviz.methods.parameters import build
from specviz.methods.parts import Parts
from specviz.methods.registry import Method, get
from specviz.preparing.prepared import Prepared
from specviz.request import Memory, Request
from tests.tiny import Letters

WARM = Warp(1.0)
PROMPT = [0]
RUNS = 4


@dataclass
class Places:
    """A target whose next token depends on its place and on the last token: ``logits`` [place, token, vocab]."""

    logits: Tensor
    name = "places"
    eos_ids: frozenset[int] = frozenset()
    context_length = 1 << 20
    device = torch.device("cpu")
    dtype = torch.float64
    tier = "eager"
    length = 0

    def open(self, capacity: int, taps: Sequence[int] = ()) -> Places:
        return replace(self)

    def score(self, tree: DraftTree) -> TargetPass:
        last = len(self.logits) - 1
        places = [min(last, self.length + depth) for depth in tree.shape.depths]
        return TargetPass(self.logits[places, tree.tokens])

    def keep(self, path: Sequence[int]) -> None:
        self.length += len(path)

    def padded(self, nodes: int) -> int:
        return nodes

    def close(self) -> None:
        """There is no cache."""


@dataclass
class Table(Silent):
    """A drafter by a table, which says what it would have drafted as well."""

    laws: Tensor

    def rows(
        self, context: Context, tokens: Sequence[int], parents: Sequence[int], nodes: Sequence[int]
    ) -> list[Proposal | None]:
        return [Proposal(self.laws[tokens[node]]) for node in nodes]

    def calls(self) -> int:
        return 1

    def judged(self, context: Context, emitted: Sequence[int], laws: Tensor | None) -> Any:
        text = [*context.ids, *emitted]

        def shared(start: int, place: int) -> tuple[float, float]:
            assert laws is not None
            overlap = float(torch.minimum(self.laws[text[place - 1]], laws[place - len(context.ids)]).sum())
            return overlap, overlap

        return shared

    def looked(self) -> int:
        return 0


TARGET = Places(2.0 * torch.randn((3, 3, 3), generator=torch.Generator().manual_seed(0), dtype=torch.float64))


def bandit(chooser: type) -> Method:
    def compose(parameters: Any, parts: Parts) -> Composition:
        near, far = ([[0.9, 0.05, 0.05]] * 3, [[0.05, 0.05, 0.9]] * 3)
        arms = [
            Arm(name, Table(torch.tensor(laws, dtype=torch.float64)), Sampled(chain(2)))
            for name, laws in (("near", near), ("far", far))
        ]
        return Composition(Chosen(arms, recalled(parts, "toy", "", True, lambda: chooser(2)), 2), Rejection())

    return replace(get("not_a_bandit"), compose=compose)


def ready(method: Method, seed: int, budget: int, memory: Memory, **values: Any) -> Prepared:
    parts = Parts(TARGET, WARM, "prompt", memory.recall, lambda: CostCurve((1, 9), (1.0, 2.0)), lambda: None)
    request = Request(method.name, "prompt", max_new_tokens=budget, temperature=1.0, seed=seed)
    loaded = SimpleNamespace(name="places", warnings=())
    parameters = build(method.parameters, values, method.name)
    return Prepared(request, method, parameters, loaded, TARGET, Letters(), PROMPT, parts, memory=memory)


def written(one: Prepared, salted: bool = True) -> tuple[int, ...]:
    composition = one.compose()
    if not salted:
        composition = replace(composition, generation=0)
    run = one.decoding(composition, one.request.seed, "off", threading.Event())
    for _ in run.steps():
        pass
    assert run.outcome.reason == "budget", run.outcome.message
    return tuple(run.outcome.output_ids)


def z(found: Counter[tuple[int, ...]], budget: int) -> float:
    p = WARM.probabilities(TARGET.logits)
    chi, count = 0.0, sum(found.values())
    for text in itertools.product(range(3), repeat=budget):
        chance = math.prod(float(p[place, a, b]) for place, (a, b) in enumerate(zip((PROMPT[-1], *text), text)))
        chi += (found[text] - count * chance) ** 2 / (count * chance)
    free = 3**budget - 1
    return ((chi / free) ** (1 / 3) - 1 + 2 / (9 * free)) / math.sqrt(2 / (9 * free))
