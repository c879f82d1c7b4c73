"""The ladder for trees that follow confidence: whatever the drafter foresees, the text is the target's own."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from specviz.acceptance.match import Match
from specviz.acceptance.rejection import Rejection
from specviz.engine.controller import SingleDrafter
from specviz.engine.cost import CostCurve
from specviz.engine.interfaces import Acceptance, Composition, Draft, TreeBuilder
from specviz.engine.sampling import Noise, Warp
from specviz.engine.tree import shape_from_counts
from specviz.methods.ddd.depth import BeamMass
from specviz.targets.text import TextTarget
from specviz.trees.dynamic import Dynamic, SpeedupMaximising
from tests.exactness.test_text_methods import (
    EVERY_WAY,
    GREEDY,
    PROMPT,
    WARM,
    WARPS,
    _Audit,
    one_by_one,
    tokens,
    until_full,
)
from tests.support.tiny.text import decode, tiny_target
from tests.support.worlds.foreseeing import Foreseer
from tests.support.worlds.three_tokens import World, context, drawn, exact_distribution, rebuilt, share

CURVE = CostCurve((1, 8, 16, 32), (10.0, 11.0, 13.0, 20.0))
GROWTHS: dict[str, Callable[[], TreeBuilder]] = {
    "twelve nodes": lambda: Dynamic(3, 3, 12),
    "as many as pay": lambda: Dynamic(3, 3, pays=SpeedupMaximising.on(CURVE)),
    "as deep as sure": lambda: Dynamic(6, 3, 12, BeamMass(-0.7, ())),
}
# How many nodes stay, and how deep they lie, does not hang on tier and dtype: one size is tried every way.
WAYS = [("twelve nodes", *way) for way in EVERY_WAY]
WAYS += [(builder, "eager", torch.float64, warp) for builder in list(GROWTHS)[1:] for warp in ("greedy", "warm")]


def composed(target: TextTarget, builder: TreeBuilder, noise: float = 0.02, rule: Acceptance | None = None) -> Composition:
    return Composition(SingleDrafter(Foreseer(target, noise), builder), rule or Match())


@pytest.mark.parametrize(("growth", "tier", "dtype", "warped"), WAYS)
def test_same_tokens_as_one_by_one(builder: str, tier: str, dtype: torch.dtype, warped: str) -> None:
    target, warp = tiny_target(tier, dtype), WARPS[warped]
    run = decode(target, composed(target, GROWTHS[builder]()), PROMPT, tokens(tier, dtype), warp, 7)
    assert run.ids == one_by_one(tier, dtype, warp)
    assert any(len(step.path) > 1 for step in run.steps), "nothing deep was ever accepted, so nothing was tested"


def test_rejecting_point_masses_writes_the_targets_greedy_text() -> None:
    target = tiny_target()
    run = decode(target, composed(target, Dynamic(3, 3, 12), rule=Rejection()), PROMPT, 220, GREEDY)
    assert run.ids == one_by_one("eager", torch.float64, GREEDY)


def test_a_perfect_drafter_is_accepted_to_the_last_level() -> None:
    target = tiny_target()
    run = decode(target, composed(target, Dynamic(5, 1, 5), noise=0.0), PROMPT, 120, GREEDY)
    assert [len(step.path) for step in run.steps] == [5] * 20
    assert run.ids == one_by_one("eager", torch.float64, GREEDY)[:120]


def test_a_hopeless_drafter_still_leaves_the_targets_text() -> None:
    target = tiny_target()
    run = decode(target, composed(target, Dynamic(4, 2, 8), noise=3.0), PROMPT, 60, WARM, 7)
    assert run.ids == one_by_one("eager", torch.float64, WARM)[:60]
    assert sum(not step.path for step in run.steps) > 20


@pytest.mark.parametrize("budget", range(1, 14))
def test_the_budget_may_end_inside_a_path(budget: int) -> None:
    target = tiny_target()
    run = decode(target, composed(target, Dynamic(5, 1, 5), noise=0.0), PROMPT, budget, GREEDY)
    assert run.ids == one_by_one("eager", torch.float64, GREEDY)[:budget]
    assert (run.outcome.reason, len(run.ids)) == ("budget", budget)


def test_end_of_sequence_inside_a_path_ends_the_run_there() -> None:
    greedy = one_by_one("eager", torch.float64, GREEDY)[:40]
    inside = [place for place in range(8, 40) if place % 6 < 5]  # a round of a perfect drafter emits 6 tokens
    ending = next(greedy[place] for place in inside if greedy[place] not in greedy[:place])
    target = tiny_target(eos=[ending])
    run = decode(target, composed(target, Dynamic(5, 1, 5), noise=0.0), PROMPT, 40, GREEDY)
    assert run.ids == greedy[: greedy.index(ending) + 1]
    assert (run.outcome.reason, run.steps[-1].cut, run.steps[-1].bonus) == ("eos", "eos", None)


@pytest.mark.parametrize(("growth", "tier"), [*((builder, "eager") for builder in GROWTHS), ("twelve nodes", "graph")])
def test_a_full_context_ends_the_run_with_the_same_text(builder: str, tier: str) -> None:
    target = tiny_target(tier, context=64)
    run = decode(target, composed(target, GROWTHS[builder]()), PROMPT, 500, GREEDY)
    alone = until_full(tier)
    assert run.outcome.reason == alone.outcome.reason == "context"
    assert run.ids == alone.ids


@pytest.mark.parametrize("prompt", [[5], [5, 6]])
@pytest.mark.parametrize("growth", list(GROWTHS))
def test_shortest_prompts(builder: str, prompt: list[int]) -> None:
    target = tiny_target()
    run = decode(target, composed(target, GROWTHS[builder]()), prompt, 30, WARM)
    assert run.ids == decode(target, composed(target, Dynamic(1, 1, 1), 3.0), prompt, 30, WARM).ids


@pytest.mark.parametrize(("tier", "warped"), [("eager", "greedy"), ("eager", "nucleus"), ("graph", "warm")])
def test_the_cache_equals_a_fresh_prefill_after_every_step(tier: str, warped: str, monkeypatch: pytest.MonkeyPatch) -> None:
    target, warp = tiny_target(tier), WARPS[warped]
    audit = _Audit(target)
    monkeypatch.setattr(target, "open", audit.open)
    run = decode(target, composed(target, Dynamic(3, 3, 12)), PROMPT, 60, warp)
    assert audit.checked == len(run.steps)
    assert audit.worst < 1e-9


def test_a_stop_saves_drafter_forwards_where_it_counts() -> None:
    target = tiny_target()
    fixed = decode(target, composed(target, Dynamic(6, 3, 12), 0.1), PROMPT, 60, GREEDY)
    saving = decode(target, composed(target, Dynamic(6, 3, 12, BeamMass(-1.0, ())), 0.1), PROMPT, 60, GREEDY)
    assert saving.ids == fixed.ids
    assert sum(step.draft_calls for step in saving.steps) < sum(step.draft_calls for step in fixed.steps)


# The distribution, by enumeration: a tree of this kind is certain, and only as such may it be judged.


class Best:
    """The three-token world as a drafter that can be asked about several nodes."""

    support = None

    def __init__(self, world: World) -> None:
        self._world = world

    def logits(self, about: object, tokens: list[int], parents: list[int], nodes: list[int]) -> Tensor:
        def path(node: int) -> tuple[int, ...]:
            return (*path(parents[node]), tokens[node]) if node else ()

        return torch.stack([self._world.drafter[len(path(node))][path(node)] for node in nodes])

    def calls(self) -> int:
        return 1

    def story(self, picks: object) -> tuple[()]:
        return ()


def ranked(world: World, nodes: int) -> Draft:
    return Dynamic(2, 3, nodes).build(Best(world), context(Noise(0), world.warp))  # type: ignore[arg-type]


def strays(world: World, drafts: list[tuple[float, Draft]], monkeypatch: pytest.MonkeyPatch) -> float:
    """Total variation between the distribution of three tokens under rejection and the target's own."""
    return float((exact_distribution(world, iter(drafts), Rejection(), monkeypatch) - world.distribution()).abs().sum()) / 2


@pytest.mark.parametrize("nodes", [1, 3, 6, 9])
@pytest.mark.parametrize("warp", [Warp(1.0), Warp(0.7), Warp(1.3, 3, 0.9)])
def test_rejecting_its_nodes_as_point_masses_keeps_the_distribution(
    nodes: int, warp: Warp, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(4, 2, warp)
    assert strays(world, [(1.0, ranked(world, nodes))], monkeypatch) < 1e-12


def test_noticed_its_nodes_judged_by_the_drafters_softmax(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(3, 1)
    draft = ranked(world, 6)
    prefixes = {0: ()} | {node: (draft.tree.host_tokens[node],) for node in draft.tree.shape.children[0]}
    distributions = {node: world.proposal(prefix) for node, prefix in prefixes.items() if draft.tree.shape.children[node]}
    posing = Draft(draft.tree, distributions)
    assert strays(world, [(1.0, posing)], monkeypatch) > 0.05


def test_noticed_drawn_nodes_reranked_by_value(monkeypatch: pytest.MonkeyPatch) -> None:
    """Expand by drawing, then keep the best by value: the reranking looks at what was drawn, so the draws are no draws."""
    world, shape = World(3, 1), shape_from_counts([[2], [2, 2]])

    def reranked(draft: Draft) -> Draft:
        value = [1.0]
        for node, parent in enumerate(draft.tree.shape.parents[1:], start=1):
            value.append(value[parent] * share(draft, parent, node))
        kept = set(sorted(range(1, len(value)), key=lambda node: (-value[node], node))[:3])
        return rebuilt(draft, lambda old, node: [child for child in old.tree.shape.children[node] if child in kept])

    drafts = [(probability, reranked(draft)) for probability, draft in drawn(world, shape)]
    assert strays(world, drafts, monkeypatch) > 0.03
    assert strays(world, list(drawn(world, shape)), monkeypatch) < 1e-12
