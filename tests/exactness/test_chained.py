"""A chain of three models writes what the target alone would: token for token where it is greedy, else by its distribution."""

from typing import Any

import pytest
import torch

from specviz.engine.interfaces import Composition
from specviz.engine.sampling import Warp
from specviz.targets.text import TextTarget
from tests.support.tiny.text import LENGTH, decode, tiny_target
from tests.support.worlds.text import GREEDY, PROMPT, WARPS, baseline, compose

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "a plain copy": ("plain_copy", {"gathered": 6, "nodes": 5}),
    "in 8 bits": ("int8", {"gathered": 8, "depth": 3, "nodes": 6}),
    "another model": ("draft", {"gathered": 4, "drafter": "eagle3", "depth": 3, "nodes": 4}),
    "copied text below": ("draft", {"gathered": 5, "drafter": "copy"}),
    "the small model": ("small_draft", {"gathered": 3, "depth": 2}),
}


def composed(case: str, target: TextTarget, warp: Warp) -> Composition:
    kind, values = CASES[case]
    return compose("polybasic", {"middle": kind, **values}, target, warp)


@pytest.mark.spread(1)
@pytest.mark.parametrize("case", ["a plain copy", "copied text below"])
def test_the_drafter_below_is_right_now_and_then(case):
    """Or how its tokens are filtered would not be tested by the ladder."""
    target = tiny_target()
    run = decode(target, composed(case, target, GREEDY), PROMPT, LENGTH, GREEDY)
    assert any(one["kept"] for step in run.steps for note in step.notes for one in note.data["passes"])


@pytest.mark.slow
def test_passes_of_the_intermediate_model_count_as_drafting_beside_the_drafters_forwards():
    target = tiny_target()
    run = decode(target, composed("in 8 bits", target, GREEDY), PROMPT, 60, GREEDY)
    for step in run.steps:
        passes = step.notes[0].data["passes"]
        assert step.draft_calls == len(passes) + sum(one["calls"] for one in passes)
    assert sum(step.draft_calls for step in run.steps) > 10


@pytest.mark.slow
def test_a_copy_of_the_target_is_kept_whole():
    target = tiny_target()
    for warp in (GREEDY, WARPS["warm"]):
        run = decode(target, composed("a plain copy", target, warp), PROMPT, 120, warp, 3)
        assert all(len(step.path) == len(step.nodes) - 1 for step in run.steps[:-1])
        assert all(len(step.path) >= 6 for step in run.steps[:-1]), "the buffer fills before the target looks"


def test_end_of_sequence_inside_a_buffer_ends_the_run_and_the_gathering():
    greedy = baseline("eager", torch.float64, GREEDY)[:40]
    ending = next(token for place, token in enumerate(greedy) if place > 9 and token not in greedy[:place])
    target = tiny_target(eos=[ending])
    run = decode(target, composed("a plain copy", target, GREEDY), PROMPT, 40, GREEDY)
    assert run.ids == greedy[: greedy.index(ending) + 1]
    assert run.outcome.reason == "eos"
    assert ending in [node.token for node in run.steps[-1].nodes[-3:]], "nothing is gathered behind the end"


@pytest.mark.spread(1)
@pytest.mark.parametrize(("case", "warped"), [(case, "warm") for case in CASES] + [("in 8 bits", "greedy")])
def test_all_caches_equal_fresh_ones_after_every_step(case, warped):
    """The target's by the ladder; the intermediate model's by what it says at the start of each round."""
    target, warp = tiny_target(), WARPS[warped]
    composition = composed(case, target, warp)
    worst = _audited(composition.controller)
    run = decode(target, composition, PROMPT, 40, warp)
    assert len(worst) >= len(run.steps) - 1 and max(worst) < 1e-5


def _audited(controller: Any) -> list[float]:
    """Compare the intermediate model's rows with those of a session that reads the whole text at once."""
    worst, score = [], controller._score

    def checked(inner, tree):
        found, lead = score(inner, tree)
        fresh = controller.intermediate.open(len(inner.ids) + 64, ())
        if len(inner.ids) > 1:
            fresh.prefill(inner.ids[:-1])
        wanted = fresh.score(tree).logits
        seen = torch.isfinite(wanted)
        worst.append(float((found.logits[seen] - wanted[seen]).abs().max()))
        return found, lead

    controller._score = checked
    return worst
