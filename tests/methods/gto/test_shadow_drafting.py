"""A second draft for comparison: it is scored behind the same text, and never touches what is written."""

from __future__ import annotations

import pytest

from specviz.acceptance.match import Match
from specviz.drafting.memory.prompt_copy import PromptCopy
from specviz.drafting.trees.copied import Copied
from specviz.engine.controller import SingleDrafter
from specviz.engine.interfaces import Composition
from specviz.engine.sampling import Warp
from specviz.methods.gto.expected_length import Rewarded
from specviz.methods.gto.shadow_drafting import ShadowDrafting
from tests.support.tiny.text import Decoded, decode, tiny_target

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9]


def copying() -> SingleDrafter:
    return SingleDrafter(PromptCopy(3, 1, 5, latest=True, partial=True), Copied())


def compared(other: SingleDrafter, warp: Warp, level: str = "tree", tier: str = "eager") -> tuple[Decoded, list[int]]:
    """A run with ``other`` alongside, and how many sessions were open at once at most and are open now."""
    target, open_now = tiny_target(tier), [0, 0]
    opened = target.open

    def counting(*asked: object) -> object:
        session = opened(*asked)
        open_now[:] = [max(open_now[0], open_now[1] + 1), open_now[1] + 1]
        close = session.close

        def closed() -> None:
            open_now[1] -= 1
            close()

        session.close = closed
        return session

    target.open = counting  # type: ignore[method-assign]
    both = ShadowDrafting(copying(), other, target)
    run = decode(target, Composition(both, Rewarded(Match(), lambda: both.latest)), PROMPT, 60, warp, level=level)
    return run, open_now


@pytest.mark.spread(1)
@pytest.mark.parametrize("tier", ["eager", "graph"])
@pytest.mark.parametrize("warp", [Warp(), Warp(0.8)])
def test_an_equal_drafter_gets_an_equal_reward_at_every_step(warp: Warp, tier: str) -> None:
    run, _ = compared(copying(), warp, tier=tier)
    notes = [step.notes[-1].data for step in run.steps]
    assert any(note["reward"] > 0.01 for note in notes), "some tree must be worth something"
    for note, step in zip(notes, run.steps, strict=True):
        assert note["before"] == pytest.approx(note["reward"], abs=1e-9)
        assert note["reference"]["tokens"] == [node.token for node in step.nodes]
