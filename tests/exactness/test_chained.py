"""A chain of three models writes what the target alone would: token for token where it is greedy, else by its distribution."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch

from specviz.drafters.feature_stepper import FeatureStepper
from specviz.drafters.intermediate import FittedSession, Middle, SmallSession
from specviz.drafters.networks.fused_session import LeanSession
from specviz.drafters.networks.small_lm import SmallConfig, SmallLM
from specviz.engine.cost import CostCurve
from specviz.engine.interfaces import Composition, Context, TargetPass
from specviz.engine.sampling import Warp
from specviz.engine.tree import DraftTree
from specviz.methods.parameters import build
from specviz.methods.registry import get
from specviz.models.drafters.quantisation import eight_bits
from specviz.models.drafters.quantised_copy import lean_copy
from specviz.targets.text import TextTarget
from tests.exactness.test_text_methods import GREEDY, PROMPT, WARPS, _Audit
from tests.support.tiny.text import Decoded, decode, parts_for, perturbed, tiny_target
from tests.support.worlds.feature import tiny_net

CURVE = CostCurve((1, 40), (2.0, 3.0))
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "a plain copy": ("plain_copy", {"gathered": 6, "nodes": 5}),
    "in 8 bits": ("int8", {"gathered": 8, "depth": 3, "nodes": 6}),
    "another model": ("draft", {"gathered": 4, "drafter": "eagle3", "depth": 3, "nodes": 4}),
    "copied text below": ("draft", {"gathered": 5, "drafter": "copy"}),
    "the small model": ("small_draft", {"gathered": 3, "depth": 2}),
}


def small(target: TextTarget, support: int = 30) -> SmallLM:
    """A tiny random small draft model on this target's embedding."""
    torch.manual_seed(5)
    embedding = target.model.get_input_embeddings().weight.detach()
    config = SmallConfig(*embedding.shape, draft_vocab=support, width=16, layers=4, heads=2, inner=32, window=64)
    made = SmallLM(config, embedding, torch.arange(support)).to(embedding.dtype)
    for weight in made.parameters():
        weight.data.normal_(std=0.3)
    return made.eval().requires_grad_(False)


def middle_of(kind: str, target: TextTarget) -> Middle:
    """A model for the middle of a tiny chain."""
    if kind == "draft":
        other = TextTarget(perturbed(target.model, 0.02), "other", (), target.tier)
        start: Any = lambda capacity, taps: FittedSession(other.open(capacity), other.vocab_size, target.vocab_size)  # noqa: E731
    elif kind == "small_draft":
        model = small(target)
        start = lambda capacity, taps: SmallSession(model, capacity)  # noqa: E731
    else:
        layouts = (eight_bits, eight_bits) if kind == "int8" else None
        decoder = lean_copy(target, layouts) if layouts else lean_copy(target)
        start = lambda capacity, taps: LeanSession(decoder, capacity, taps)  # noqa: E731
    states = kind in ("plain_copy", "int8")
    made = Middle(kind, kind, target.context_length, target.device, start, lambda: CURVE, states, kind != "small_draft")
    return made


def compose(case: str, target: TextTarget, warp: Warp) -> Composition:
    kind, values = CASES[case]
    network = FeatureStepper(tiny_net(target.model, True, 40))
    parts = parts_for(target, warp).using(drafter_weights=lambda name: network, middle=lambda name: middle_of(name, target))
    method = get("polybasic")
    return method.compose(build(method.parameters, {"middle": kind, **values}, "polybasic"), parts)


@cache
def one_by_one(tier: str, budget: int = 220, context: int = 1024) -> Decoded:
    target = tiny_target(tier, context=context)
    plain = get("autoregressive")
    return decode(target, plain.compose(plain.parameters(), parts_for(target, GREEDY)), PROMPT, budget, GREEDY)


@pytest.mark.parametrize(("case", "tier"), [(case, "eager") for case in CASES] + [("a plain copy", "graph")])
def test_greedy_runs_equal_one_by_one(case: str, tier: str) -> None:
    target = tiny_target(tier)
    run = decode(target, compose(case, target, GREEDY), PROMPT, 220, GREEDY)
    assert run.ids == one_by_one(tier).ids
    if case != "the small model":
        assert sum(len(step.path) for step in run.steps) > 110, "the middle model is nearly the target"
    passes = [one for step in run.steps for note in step.notes for one in note.data["passes"]]
    if CASES[case][1].get("drafter") == "copy" or case == "a plain copy":
        assert any(one["kept"] for one in passes), "the drafter below was never right, so its filtering was not tested"


def test_passes_of_the_middle_model_count_as_drafting_beside_the_drafters_forwards() -> None:
    target = tiny_target()
    run = decode(target, compose("in 8 bits", target, GREEDY), PROMPT, 60, GREEDY)
    for step in run.steps:
        passes = step.notes[0].data["passes"]
        assert step.draft_calls == len(passes) + sum(one["calls"] for one in passes)
    assert sum(step.draft_calls for step in run.steps) > 10


def test_a_copy_of_the_target_is_kept_whole() -> None:
    target = tiny_target()
    for warp in (GREEDY, WARPS["warm"]):
        run = decode(target, compose("a plain copy", target, warp), PROMPT, 120, warp, 3)
        assert all(len(step.path) == len(step.nodes) - 1 for step in run.steps[:-1])
        assert all(len(step.path) >= 6 for step in run.steps[:-1]), "the buffer fills before the target looks"


@pytest.mark.parametrize("budget", [1, 7, 13])
def test_the_budget_may_end_inside_a_buffer(budget: int) -> None:
    target = tiny_target()
    run = decode(target, compose("a plain copy", target, GREEDY), PROMPT, budget, GREEDY)
    assert (run.ids, run.outcome.reason) == (one_by_one("eager").ids[:budget], "budget")


def test_end_of_sequence_inside_a_buffer_ends_the_run_and_the_gathering() -> None:
    greedy = one_by_one("eager").ids[:40]
    ending = next(token for place, token in enumerate(greedy) if place > 9 and token not in greedy[:place])
    target = tiny_target(eos=[ending])
    run = decode(target, compose("a plain copy", target, GREEDY), PROMPT, 40, GREEDY)
    assert run.ids == greedy[: greedy.index(ending) + 1]
    assert run.outcome.reason == "eos"
    assert ending in [node.token for node in run.steps[-1].nodes[-3:]], "nothing is gathered behind the end"


@pytest.mark.parametrize("case", CASES)
def test_a_full_context_ends_the_run_with_the_same_text(case: str) -> None:
    target = tiny_target(context=64)
    run = decode(target, compose(case, target, GREEDY), PROMPT, 500, GREEDY)
    assert run.outcome.reason == "context"
    assert run.ids == one_by_one("eager", 500, 64).ids


@pytest.mark.parametrize("prompt", [[5], [5, 6]])
@pytest.mark.parametrize("case", CASES)
def test_shortest_prompts(case: str, prompt: list[int]) -> None:
    target, plain = tiny_target(), get("autoregressive")
    alone = decode(target, plain.compose(plain.parameters(), parts_for(target, GREEDY)), prompt, 30, GREEDY)
    assert decode(target, compose(case, target, GREEDY), prompt, 30, GREEDY).ids == alone.ids


@pytest.mark.parametrize(("case", "warped"), [(case, "warm") for case in CASES] + [("in 8 bits", "greedy")])
def test_all_caches_equal_fresh_ones_after_every_step(case: str, warped: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The target's by the usual audit; the middle model's by what it says at the start of each round."""
    target, warp = tiny_target(), WARPS[warped]
    composition = compose(case, target, warp)
    audit = _Audit(target)
    monkeypatch.setattr(target, "open", audit.open)
    worst = _audited(composition.controller)
    run = decode(target, composition, PROMPT, 60, warp)
    assert audit.checked == len(run.steps) and audit.worst < 1e-9
    assert len(worst) >= len(run.steps) - 1 and max(worst) < 1e-5


def _audited(controller: Any) -> list[float]:
    """Compare the middle model's rows with those of a session that reads the whole text at once."""
    worst, score = [], controller._score

    def checked(inner: Context, tree: DraftTree) -> tuple[TargetPass, int]:
        found, lead = score(inner, tree)
        fresh = controller.middle.open(len(inner.ids) + 64, ())
        if len(inner.ids) > 1:
            fresh.prefill(inner.ids[:-1])
        wanted = fresh.score(tree).logits
        seen = torch.isfinite(wanted)
        worst.append(float((found.logits[seen] - wanted[seen]).abs().max()))
        return found, lead

    controller._score = checked
    return worst
