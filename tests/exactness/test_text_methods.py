"""First rung of the ladder: every exact text method equals the autoregressive run, token for token, on tiny models."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch

from specviz.engine.interfaces import Composition
from specviz.engine.sampling import Warp
from specviz.methods.parameters import build
from specviz.methods.registry import all_methods
from specviz.targets.text import TextTarget
from specviz.trace.schema import Step
from tests.support.tiny.text import VOCAB, Decoded, decode, parts_for, perturbed, tiny_llama, tiny_target

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9]
GREEDY = Warp()
WARM = Warp(0.8)
NUCLEUS = Warp(1.1, top_k=20, top_p=0.9)
CASES = [
    ("prompt_lookup", {}),
    ("prompt_lookup", {"occurrence": "latest", "partial": True}),
    ("token_recycling", {"tree": "published"}),
    ("token_recycling", {"tree": "fitted"}),
    ("stand", {"rule": "match", "nodes": 40}),
    ("speculative_sampling", {"gamma": 4}),
    ("stand", {"nodes": 40}),
]
WARPS = {"greedy": GREEDY, "warm": WARM, "nucleus": NUCLEUS}
EVERY_WAY = [("eager", torch.float64, warp) for warp in WARPS]
EVERY_WAY += [("eager", torch.float32, warp) for warp in ("greedy", "warm")]
# What the graph tier does otherwise does not hang on the warp: two ways are enough there.
EVERY_WAY += [("graph", torch.float64, "warm"), ("graph", torch.float32, "greedy")]


def tokens(tier: str, dtype: torch.dtype) -> int:
    """How long runs are compared: over 200 tokens in double precision, half of it in another number format or tier."""
    return 220 if (tier, dtype) == ("eager", torch.float64) else 110


def compose(name: str, values: dict[str, object], target: TextTarget, warp: Warp, noise: float = 0.02) -> Composition:
    method = all_methods()[name]
    draft = TextTarget(perturbed(target.model, noise), "tiny draft", (), target.tier)
    return method.compose(build(method.parameters, values, name), parts_for(target, warp, draft))


def plain(target: TextTarget, warp: Warp, budget: int = 220, seed: int = 7) -> Decoded:
    return decode(target, compose("autoregressive", {}, target, warp), PROMPT, budget, warp, seed)


@cache
def one_by_one(tier: str, dtype: torch.dtype, warp: Warp) -> list[int]:
    """The tiny target's own tokens, decoded once for all the tests that compare with them."""
    return plain(tiny_target(tier, dtype), warp, tokens(tier, dtype)).ids


@cache
def until_full(tier: str) -> Decoded:
    """The tiny target's own greedy run into the end of a short context."""
    return plain(tiny_target(tier, context=64), GREEDY, 500)


@pytest.mark.parametrize(("tier", "dtype", "warped"), EVERY_WAY)
@pytest.mark.parametrize(("name", "values"), CASES[:5])
def test_same_tokens_as_one_by_one(name: str, values: dict[str, object], tier: str, dtype: torch.dtype, warped: str) -> None:
    target, warp = tiny_target(tier, dtype), WARPS[warped]
    run = decode(target, compose(name, values, target, warp), PROMPT, tokens(tier, dtype), warp, 7)
    assert run.ids == one_by_one(tier, dtype, warp)
    assert len(run.ids) == tokens(tier, dtype)
    assert any(step.path for step in run.steps), "nothing was ever accepted, so nothing was tested"


@pytest.mark.parametrize(("tier", "dtype"), [("eager", torch.float64), ("eager", torch.float32)])
@pytest.mark.parametrize("temperature", [1e-300, 1e-40, 1e-37])
@pytest.mark.parametrize(("name", "values"), [("autoregressive", {}), CASES[4], *CASES[5:]])
def test_next_to_no_temperature_writes_the_greedy_text(
    name: str, values: dict[str, object], temperature: float, tier: str, dtype: torch.dtype
) -> None:
    target, warp = tiny_target(tier, dtype), Warp(temperature)
    run = decode(target, compose(name, values, target, warp), PROMPT, 60, warp)
    assert run.ids == one_by_one(tier, dtype, GREEDY)[:60]


@pytest.mark.parametrize(("tier", "dtype"), [("eager", torch.float64), ("eager", torch.float32), ("graph", torch.float64)])
@pytest.mark.parametrize(("name", "values"), CASES[5:])
def test_sampled_drafts_equal_greedy_at_temperature_zero(
    name: str, values: dict[str, object], tier: str, dtype: torch.dtype
) -> None:
    target = tiny_target(tier, dtype)
    run = decode(target, compose(name, values, target, GREEDY), PROMPT, tokens(tier, dtype), GREEDY)
    assert run.ids == one_by_one(tier, dtype, GREEDY)
    assert any(step.path for step in run.steps)


def test_the_longer_a_known_context_the_larger_the_sampled_tree() -> None:
    target, memory = tiny_target(), {}
    method = all_methods()["stand"]

    def steps() -> list[Step]:
        made = method.compose(build(method.parameters, {}, "stand"), parts_for(target, WARM, memory=memory))
        return decode(target, made, PROMPT, 120, WARM, 7).steps

    first, again = steps(), steps()
    stories = [(step, note.data["rows"]) for step in again for note in step.notes if note.type == "ngram_rows"]
    drafted = {rows[0]["order"]: step.verified for step, rows in stories if rows}
    assert drafted[4] > drafted.get(2, 0)
    assert sum(step.verified for step in again) / len(again) > sum(step.verified for step in first) / len(first)


def test_the_autoregressive_run_is_the_models_own_greedy_text() -> None:
    model, prompt = tiny_llama(), torch.tensor([PROMPT])
    expected = model.generate(prompt, max_new_tokens=60, do_sample=False, pad_token_id=0)[0, len(PROMPT) :]
    assert one_by_one("eager", torch.float64, GREEDY)[:60] == expected.tolist()


def test_a_perfect_draft_is_accepted_whole() -> None:
    target = tiny_target()
    run = decode(target, compose("speculative_sampling", {"gamma": 4}, target, GREEDY, noise=0.0), PROMPT, 100, GREEDY)
    assert [len(step.path) for step in run.steps] == [4] * 20
    assert run.ids == one_by_one("eager", torch.float64, GREEDY)[:100]


def test_a_perfect_sampled_draft_is_accepted_whole() -> None:
    target = tiny_target()
    run = decode(target, compose("speculative_sampling", {"gamma": 4}, target, WARM, noise=0.0), PROMPT, 100, WARM)
    assert [len(step.path) for step in run.steps] == [4] * 20


def test_a_hopeless_draft_still_writes_the_targets_text() -> None:
    target = tiny_target()
    run = decode(target, compose("speculative_sampling", {"gamma": 4}, target, GREEDY, noise=3.0), PROMPT, 60, GREEDY)
    assert run.ids == one_by_one("eager", torch.float64, GREEDY)[:60]
    assert sum(len(step.path) for step in run.steps) < 30


@pytest.mark.parametrize("budget", range(1, 12))
def test_the_budget_may_end_inside_a_path(budget: int) -> None:
    target = tiny_target()
    perfect = compose("speculative_sampling", {"gamma": 5}, target, GREEDY, noise=0.0)
    run = decode(target, perfect, PROMPT, budget, GREEDY)
    assert run.ids == one_by_one("eager", torch.float64, GREEDY)[:budget]
    assert len(run.ids) == budget
    assert run.outcome.reason == "budget"
    assert (run.steps[-1].cut == "budget") == (budget % 6 != 0)


def test_end_of_sequence_inside_a_path_ends_the_run_there() -> None:
    greedy = one_by_one("eager", torch.float64, GREEDY)[:40]
    inside = [place for place in range(8, 40) if place % 6 < 5]  # a round of a perfect draft of 5 emits 6 tokens
    ending = next(greedy[place] for place in inside if greedy[place] not in greedy[:place])
    target = tiny_target(eos=[ending])
    run = decode(target, compose("speculative_sampling", {"gamma": 5}, target, GREEDY, noise=0.0), PROMPT, 40, GREEDY)
    assert run.ids == greedy[: greedy.index(ending) + 1]
    assert run.outcome.reason == "eos"
    assert run.steps[-1].cut == "eos"
    assert run.steps[-1].bonus is None


@pytest.mark.parametrize("tier", ["eager", "graph"])
@pytest.mark.parametrize("name", ["prompt_lookup", "token_recycling", "stand", "speculative_sampling"])
def test_a_full_context_ends_the_run_with_the_same_text(name: str, tier: str) -> None:
    target = tiny_target(tier, context=64)
    run = decode(target, compose(name, {}, target, GREEDY), PROMPT, 500, GREEDY)
    alone = until_full(tier)
    assert run.outcome.reason == alone.outcome.reason == "context"
    assert run.ids == alone.ids
    assert len(PROMPT) + len(run.ids) == 64


@pytest.mark.parametrize("prompt", [[5], [5, 6]])
@pytest.mark.parametrize("name", ["prompt_lookup", "token_recycling", "stand", "speculative_sampling"])
def test_shortest_prompts(name: str, prompt: list[int]) -> None:
    target = tiny_target()
    run = decode(target, compose(name, {}, target, GREEDY), prompt, 30, GREEDY)
    assert run.ids == decode(target, compose("autoregressive", {}, target, GREEDY), prompt, 30, GREEDY).ids


@pytest.mark.parametrize("level", ["off", "path", "tree"])
def test_recording_does_not_change_the_text(level: str) -> None:
    target = tiny_target()
    run = decode(target, compose("token_recycling", {}, target, WARM), PROMPT, 60, WARM, level=level)
    assert run.ids == plain(target, WARM, 60, seed=0).ids
    assert sum(len(step.emitted) for step in run.steps) == 60


@pytest.mark.parametrize(("name", "values"), CASES)
@pytest.mark.parametrize(("tier", "warped"), [("eager", "greedy"), ("eager", "warm"), ("graph", "warm")])
def test_the_cache_equals_a_fresh_prefill_after_every_step(
    name: str, values: dict[str, object], tier: str, warped: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, warp = tiny_target(tier), WARPS[warped]
    audit = _Audit(target)
    monkeypatch.setattr(target, "open", audit.open)
    run = decode(target, compose(name, values, target, warp), PROMPT, 60, warp)
    assert audit.checked == len(run.steps)
    assert audit.worst < 1e-9


class _Audit:
    """Opens sessions that compare their cache with a fresh prefill each time a path is kept."""

    def __init__(self, target: TextTarget) -> None:
        self.target, self.checked, self.worst = target, 0, 0.0
        self._open = target.open

    def open(self, capacity: int, taps: tuple[int, ...] = (), opened: Callable[..., Any] | None = None) -> object:
        session = (opened or self._open)(capacity, taps)
        text: list[int] = []
        prefill, score, keep = session.prefill, session.score, session.keep

        def prefilled(ids: list[int]) -> object:
            text.extend(ids)
            return prefill(ids)

        def scored(tree: object) -> object:
            self.tree = tree
            return score(tree)

        def kept(path: tuple[int, ...]) -> None:
            keep(path)
            text.extend(self.tree.host_tokens[node] for node in path)
            self._compare(session, text)

        session.prefill, session.score, session.keep = prefilled, scored, kept
        return session

    def _compare(self, session: object, text: list[int]) -> None:
        fresh = self._open(len(text) + 8)
        fresh.prefill(text)
        assert session.length == fresh.length == len(text)
        for (keys, values), (fresh_keys, fresh_values) in zip(session.tensors(), fresh.tensors(), strict=True):
            apart = max(float((keys - fresh_keys).abs().max()), float((values - fresh_values).abs().max()))
            self.worst = max(self.worst, apart)
        self.checked += 1


def test_the_vocabulary_is_really_used() -> None:
    assert len(set(one_by_one("eager", torch.float64, WARM))) > VOCAB // 3
