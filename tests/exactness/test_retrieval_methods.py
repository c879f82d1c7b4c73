"""Drafts that are looked up, beyond the ladder: ends inside a path, records, merged siblings, memories that stay apart."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.support.tiny.text import decode, tiny_target
from tests.support.worlds.text import GREEDY, PROMPT, WARM, baseline, compose


@pytest.mark.spread(1)
@pytest.mark.parametrize("level", ["off", "path"])
@pytest.mark.parametrize("name", ["suffix_decoding", "reader"])
def test_recording_changes_neither_text_nor_trees(name: str, level: str) -> None:
    target = tiny_target()
    run = decode(target, compose(name, {}, target, WARM, {}), PROMPT, 60, WARM, 7, level)
    told = decode(target, compose(name, {}, target, WARM, {}), PROMPT, 60, WARM, 7)
    assert run.ids == baseline("eager", torch.float64, WARM)[:60]
    assert [step.verified for step in run.steps] == [step.verified for step in told.steps]


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.parametrize("budget", range(1, 8))
@pytest.mark.parametrize("name", ["suffix_decoding", "reader"])
def test_the_budget_may_end_inside_a_path(name: str, budget: int) -> None:
    target, memory = tiny_target(), {}
    for _ in range(2):
        run = decode(target, compose(name, {}, target, GREEDY, memory), PROMPT, budget + 20, GREEDY, 7)
        assert run.ids == baseline("eager", torch.float64, GREEDY)[: budget + 20]
        assert run.outcome.reason == "budget"
    assert max(len(step.path) for step in run.steps) > 4


@pytest.mark.slow
@pytest.mark.parametrize("name", ["suffix_decoding", "reader"])
def test_end_of_sequence_inside_a_path_ends_the_run_there(name: str) -> None:
    greedy = baseline("eager", torch.float64, GREEDY)
    ending = next(token for place, token in enumerate(greedy) if place > 30 and token not in greedy[:place])
    memory: dict[Any, Any] = {}
    endless = tiny_target()
    decode(endless, compose(name, {}, endless, GREEDY, memory), PROMPT, 80, GREEDY)
    target = tiny_target(eos=[ending])
    run = decode(target, compose(name, {}, target, GREEDY, memory), PROMPT, 80, GREEDY)
    assert run.ids == greedy[: greedy.index(ending) + 1]
    assert run.outcome.reason == "eos"
    assert run.steps[-1].path, "it stood inside an accepted path"
