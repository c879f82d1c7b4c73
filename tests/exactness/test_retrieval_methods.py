"""Drafts that are looked up, beyond the ladder: ends inside a path, records, merged siblings, memories that stay apart."""

from __future__ import annotations

import pytest

from tests.support.tiny.text import decode, tiny_target
from tests.support.worlds.text import PROMPT, WARM, compose


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
