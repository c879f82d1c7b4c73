"""Every rule and family on a device: the graph tier writes what the eager tier writes there, and what this CPU writes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest

from specviz.methods.registry import all_methods
from tests.support.devices import CPU, DEVICES, EMULATED, device_named
from tests.support.ladder import BEAM, TREE, Row, Way, baseline
from tests.support.worlds.hybrid import TREES
from tests.support.worlds.image import World

BUDGET = 48
MATCH: dict[str, Any] = {**TREE, "rule": "match"}


@dataclass(frozen=True)
class Case:
    """A row of the ladder with what its text is drawn from.

    ``quick`` cases, one a family, are in the fast lane on the emulated device. ``own`` says that the text is the target's own,
    token for token; else it has its distribution, and the same tokens come of the same draws.
    """

    row: Row
    warped: str = "warm"
    quick: bool = False
    own: bool = False

    def __str__(self) -> str:
        return f"{self.row}-{self.warped}"

    def ids(self, tier: str, device: str = CPU, dtype: str = "float64") -> list[int]:
        """What a run on the device writes. A method with a memory runs as often as its row says."""
        way, memory, written = Way(tier, dtype, self.warped), dict[Any, Any](), list[int]()
        expected = self.baseline(dtype)
        for _ in range(self.row.runs):
            written = self.row.decode(self.row.open(way, device=device), way, expected, memory).ids
        return written

    def baseline(self, dtype: str = "float64") -> list[int]:
        """The target's own run on this CPU."""
        return baseline(self.row.world, Way("eager", dtype, self.warped), BUDGET)[0]


def own(method: str, values: dict[str, Any] | None = None, warped: str = "warm", quick: bool = False, **more: Any) -> Case:
    return Case(Row(method, values or {}, **more), warped, quick, own=True)


def drawn(method: str, values: dict[str, Any] | None = None, quick: bool = False, **more: Any) -> Case:
    return Case(Row(method, values or {}, **more), "warm", quick)


CASES = [
    own("autoregressive", warped="nucleus", quick=True),
    # Greedy match, and sample and match.
    own("eagle3", MATCH, "greedy"),
    own("eagle3", MATCH, "nucleus", quick=True),
    own("eagle2", MATCH),
    own("ddd", {**TREE, "threshold": "own", "log_mass": -1.2}),
    own("gto", TREE, quick=True),
    # Rejection along a chain, on a tree drawn without replacement, on a dynamic tree, by traversal.
    drawn("speculative_sampling", {"gamma": 4}),
    drawn("eagle", {"tree": "published"}, quick=True),
    drawn("eagle2", TREE),
    drawn("eagle3", TREE),
    drawn("traversal", {"shape": "sparse"}, quick=True, world="whole"),
    drawn("traversal", {"shape": "binary", "depth": 3}, world="whole"),
    drawn("traversal", {"shape": "chain", "depth": 4}, world="whole"),
    drawn("traversal", {"shape": "chain", "depth": 4, "drafter": "draft_model"}, world="whole"),
    # Heads and blocks.
    drawn("medusa", {"tree": "published", "rule": "typical"}, quick=True),
    own("medusa", {"tree": "published", "rule": "match"}),
    own("falcon", {"tree": "fitted", "nodes": 20}, told=4, quick=True),
    drawn("falcon", {"tree": "drawn"}, told=4),
    drawn("deer", {"block": 6}, quick=True, told=5),
    own("diffuspec", {"longest": 9, "shortest": 3}, told=5),
    own("owl", TREE),
    own("howl", TREE, runs=2),
    # Second models, layers side by side, cascades, choices.
    drawn("easyspec", {"group": 1}),
    drawn("easyspec", {"group": 2}, quick=True),
    drawn("easyspec", {"drafter": "draft", "group": 3}),
    drawn("polybasic", {"middle": "plain_copy", "gathered": 6, "nodes": 5}),
    drawn("polybasic", {"middle": "draft", "gathered": 4, "drafter": "eagle3", "depth": 3, "nodes": 4}, quick=True),
    drawn("polybasic", {"middle": "draft", "gathered": 5, "drafter": "copy"}),
    drawn("polybasic", {"middle": "small_draft", "gathered": 3, "depth": 2}),
    drawn("not_a_bandit", {"gamma": 4}),
    drawn("bandit_ucb", {"gamma": 4}),
    drawn("bandit_exp3", {"gamma": 4}),
    # Memory.
    own("prompt_lookup"),
    own("token_recycling", {"tree": "published"}),
    own("suffix_decoding", runs=2),
    own("stand", {"rule": "match", "nodes": 40}),
    drawn("stand", {"nodes": 40}),
    own("reader", {"drafter": "recycling"}, runs=2),
    own("reader", {"drafter": "eagle3", "nodes": 30}, runs=2, quick=True),
    # Pictures in.
    own("hivis", BEAM, world="vision", quick=True),
    own("dream", {**BEAM, "keep": 0.5}, world="vision", quick=True),
    own("eagle2", {**BEAM, "rule": "match"}, world="vision"),
    own("language_only", {"gamma": 3}, world="vision"),
    own("token_recycling", {"tree": "published"}, world="vision"),
    # State-space layers, whose states are in no graph.
    *(
        own("stree", values, world=kind, quick=(kind, name) == ("hybrid", "beam"))
        for kind in ("hybrid", "pure")
        for name, values in TREES.items()
    ),
]  # fmt: skip
IMAGE: list[tuple[str, dict[str, Any], bool]] = [
    ("autoregressive", {}, False),
    ("eagle", {"tree": "published"}, False),
    ("eagle2", {"nodes": 12, "rule": "match"}, False),
    ("lantern", {"delta": 0.3, "nodes": 20}, True),
    ("lantern_pp", {"factor": 3.0, "tree": "57"}, False),
    ("speculative_jacobi", {"window": 8}, True),
    ("mulo_sd", {"tau": 0.3, "pool": 4}, True),
]
SINGLE = [case.row for case in CASES if case.quick and case.row.method in ("eagle3", "hivis")]
"""Those compared in single precision too, in the fast lane."""


@cache
def on_this_cpu(number: int) -> list[int]:
    return CASES[number].ids("eager")


Drawn = tuple[list[int], list[list[tuple[int, str]]]]


def picture(method: str, device: str, tier: str, guidance: float) -> Drawn:
    """Codes of a whole tiny picture, of two guided rows or, with guidance 1, of one; and by step the drafted codes with their
    statuses."""
    values = next(values for name, values, _ in IMAGE if name == method)
    run = World(guidance, device=device, tier=tier).draw(method, values)
    return run.ids, [[(node.token, node.status) for node in step.nodes] for step in run.steps]


@cache
def picture_on_this_cpu(method: str, guidance: float) -> Drawn:
    return picture(method, CPU, "eager", guidance)


def where(name: str, quick: bool) -> pytest.MarkDecorator | tuple[()]:
    """The ladder runs the graph tier on this CPU already, so the fast lane has the emulated device alone."""
    return () if name == EMULATED and quick else pytest.mark.slow


def crossed(cases: list[tuple[Any, bool, str]]) -> list[Any]:
    """Each case on every device; what is on the real one is in the lane ``gpu`` alone."""
    names = [one if isinstance(one, str) else one.values[0] for one in DEVICES]
    return [
        pytest.param(case, name, id=f"{label}-{name}", marks=pytest.mark.gpu if name == names[-1] else where(name, quick))
        for case, quick, label in cases
        for name in names
    ]


def test_every_method_has_a_case() -> None:
    assert {case.row.method for case in CASES} | {name for name, _, _ in IMAGE} == set(all_methods())


@pytest.mark.spread(3)
@pytest.mark.parametrize(("number", "name"), crossed([(number, case.quick, str(case)) for number, case in enumerate(CASES)]))
def test_the_graph_tier_writes_the_eager_tiers_text_and_this_cpus(number: int, name: str) -> None:
    case = CASES[number]
    expected = on_this_cpu(number)
    with device_named(name) as device:
        eager = case.ids("eager", device)
        captured = eager if case.row.world in ("hybrid", "pure") else case.ids("graph", device)
    assert eager == expected
    assert captured == expected
    assert not case.own or expected == case.baseline()


@pytest.mark.spread(1)
@pytest.mark.parametrize(("case", "name"), crossed([(case, case.row in SINGLE, str(case)) for case in CASES if case.own]))
def test_in_single_precision_the_greedy_text_is_this_cpus(case: Case, name: str) -> None:
    greedy = Case(case.row, "greedy", own=True)
    with device_named(name) as device:
        tier = "eager" if case.row.world in ("hybrid", "pure") else "graph"
        assert greedy.ids(tier, device, "float32") == greedy.baseline("float32")


@pytest.mark.spread(1)
@pytest.mark.parametrize("guidance", [2.0, 1.0])
@pytest.mark.parametrize(("method", "name"), crossed([(method, quick, method) for method, _, quick in IMAGE]))
def test_a_picture_depends_neither_on_the_tier_nor_on_the_device(method: str, name: str, guidance: float) -> None:
    with device_named(name) as device:
        assert World(guidance, device=device).target.tier == ("eager" if device == CPU else "graph"), "what auto takes"
        for tier in ("eager", "graph"):
            assert picture(method, device, tier, guidance) == picture_on_this_cpu(method, guidance)
