"""First rung of the ladder for drafts that are looked up: same tokens as one by one, whatever the memories hold."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch

from specviz.drafters.feature_stepper import FeatureStepper
from specviz.engine.interfaces import Composition
from specviz.engine.sampling import Warp
from specviz.methods.parameters import build
from specviz.methods.registry import all_methods
from specviz.targets.text import TextTarget
from tests.exactness.test_text_methods import EVERY_WAY, GREEDY, PROMPT, WARM, WARPS, _Audit
from tests.support.tiny.text import decode, parts_for, perturbed, tiny_target
from tests.support.worlds.feature import tiny_net

CASES: list[tuple[str, dict[str, object]]] = [
    ("suffix_decoding", {}),
    ("suffix_decoding", {"shape": "path", "factor": 2.0, "offset": 1.0}),
    ("reader", {"drafter": "none"}),
    ("reader", {"drafter": "recycling"}),
    ("reader", {"drafter": "recycling", "nodes": 12, "deepened": 0}),
    ("reader", {"drafter": "small_draft", "nodes": 40}),
    ("reader", {"drafter": "eagle3", "nodes": 30}),
]
WAYS = [(*case, *way) for case in (CASES[0], CASES[3]) for way in EVERY_WAY]
WAYS += [(*case, tier, torch.float64, "warm") for case in CASES[1:] if case != CASES[3] for tier in ("eager", "graph")]
IDS = [f"{name}-{'-'.join(map(str, values.values()))}" for name, values in CASES]


def compose(name: str, values: dict[str, object], target: TextTarget, warp: Warp, memory: dict[Any, Any]) -> Composition:
    draft = TextTarget(perturbed(target.model, 0.02), "tiny draft", (), target.tier)
    method = all_methods()[name]
    parts = parts_for(target, warp, draft, memory).using(
        drafter_weights=lambda kind: FeatureStepper(tiny_net(target.model, True, 40))
    )
    return method.compose(build(method.parameters, values, name), parts)


@cache
def one_by_one(tier: str, dtype: torch.dtype, warp: Warp, budget: int = 120, context: int = 1024) -> list[int]:
    target = tiny_target(tier, dtype, context=context)
    return decode(target, compose("autoregressive", {}, target, warp, {}), PROMPT, budget, warp, 7).ids


@pytest.mark.parametrize(("name", "values", "tier", "dtype", "warped"), WAYS)
def test_same_tokens_as_one_by_one_with_empty_and_with_full_memories(
    name: str, values: dict[str, object], tier: str, dtype: torch.dtype, warped: str
) -> None:
    target, warp, memory = tiny_target(tier, dtype), WARPS[warped], {}
    expected, passes = one_by_one(tier, dtype, warp), []
    for _ in range(2):
        run = decode(target, compose(name, values, target, warp, memory), PROMPT, 120, warp, 7)
        assert run.ids == expected
        assert any(step.path for step in run.steps), "nothing was ever accepted, so nothing was tested"
        passes.append(len(run.steps))
    assert passes[1] < 0.6 * passes[0], "the second run remembers the first one's output"


@pytest.mark.parametrize(("name", "values"), CASES, ids=IDS)
@pytest.mark.parametrize(("tier", "warped"), [("eager", "greedy"), ("graph", "warm")])
def test_the_cache_equals_a_fresh_prefill_after_every_step(
    name: str, values: dict[str, object], tier: str, warped: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, warp, memory = tiny_target(tier), WARPS[warped], {}
    decode(target, compose(name, values, target, warp, memory), PROMPT, 60, warp, 3)
    audit = _Audit(target)
    monkeypatch.setattr(target, "open", audit.open)
    run = decode(target, compose(name, values, target, warp, memory), PROMPT, 60, warp)
    assert audit.checked == len(run.steps)
    assert audit.worst < 1e-9


@pytest.mark.parametrize("budget", range(1, 8))
@pytest.mark.parametrize("name", ["suffix_decoding", "reader"])
def test_the_budget_may_end_inside_a_path(name: str, budget: int) -> None:
    target, memory = tiny_target(), {}
    for _ in range(2):
        run = decode(target, compose(name, {}, target, GREEDY, memory), PROMPT, budget + 20, GREEDY, 7)
        assert run.ids == one_by_one("eager", torch.float64, GREEDY)[: budget + 20]
        assert run.outcome.reason == "budget"
    assert max(len(step.path) for step in run.steps) > 4


@pytest.mark.parametrize("name", ["suffix_decoding", "reader"])
def test_end_of_sequence_inside_a_path_ends_the_run_there(name: str) -> None:
    greedy = one_by_one("eager", torch.float64, GREEDY)
    ending = next(token for place, token in enumerate(greedy) if place > 30 and token not in greedy[:place])
    memory: dict[Any, Any] = {}
    endless = tiny_target()
    decode(endless, compose(name, {}, endless, GREEDY, memory), PROMPT, 80, GREEDY)
    target = tiny_target(eos=[ending])
    run = decode(target, compose(name, {}, target, GREEDY, memory), PROMPT, 80, GREEDY)
    assert run.ids == greedy[: greedy.index(ending) + 1]
    assert run.outcome.reason == "eos"
    assert run.steps[-1].path, "it stood inside an accepted path"


@pytest.mark.parametrize("tier", ["eager", "graph"])
@pytest.mark.parametrize(("name", "values"), CASES, ids=IDS)
def test_a_full_context_ends_the_run_with_the_same_text(name: str, values: dict[str, object], tier: str) -> None:
    target, memory = tiny_target(tier, context=64), {}
    for _ in range(2):
        run = decode(target, compose(name, values, target, GREEDY, memory), PROMPT, 500, GREEDY)
        assert run.outcome.reason == "context"
        assert run.ids == one_by_one("eager", torch.float64, GREEDY, 500, 64)
        assert len(PROMPT) + len(run.ids) == 64


@pytest.mark.parametrize("prompt", [[5], [5, 6]])
@pytest.mark.parametrize(("name", "values"), CASES, ids=IDS)
def test_shortest_prompts(name: str, values: dict[str, object], prompt: list[int]) -> None:
    target = tiny_target()
    alone = decode(target, compose("autoregressive", {}, target, GREEDY, {}), prompt, 30, GREEDY)
    assert decode(target, compose(name, values, target, GREEDY, {}), prompt, 30, GREEDY).ids == alone.ids


@pytest.mark.parametrize("level", ["off", "path"])
@pytest.mark.parametrize("name", ["suffix_decoding", "reader"])
def test_recording_changes_neither_text_nor_trees(name: str, level: str) -> None:
    target = tiny_target()
    run = decode(target, compose(name, {}, target, WARM, {}), PROMPT, 60, WARM, 7, level)
    told = decode(target, compose(name, {}, target, WARM, {}), PROMPT, 60, WARM, 7)
    assert run.ids == one_by_one("eager", torch.float64, WARM)[:60]
    assert [step.verified for step in run.steps] == [step.verified for step in told.steps]


def test_no_two_siblings_of_a_merged_tree_carry_the_same_token() -> None:
    """A token twice below one parent would be judged twice, and a walk could miss the branch that was right."""
    target, memory = tiny_target(), {}
    for seed in (1, 1, 2):
        run = decode(target, compose("reader", {"nodes": 40}, target, WARM, memory), PROMPT, 80, WARM, seed)
        for step in run.steps:
            pairs = [(node.parent, node.token) for node in step.nodes]
            assert len(set(pairs)) == len(pairs)


def test_memories_of_one_run_do_not_reach_another_user() -> None:
    target = tiny_target()
    first = decode(target, compose("suffix_decoding", {}, target, WARM, {}), PROMPT, 60, WARM, 7)
    second = decode(target, compose("suffix_decoding", {}, target, WARM, {}), PROMPT, 60, WARM, 7)
    assert len(first.steps) == len(second.steps)
    assert not any(step.notes[0].data["remembered"] for step in second.steps)
