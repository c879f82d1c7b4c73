"""The first rung of the ladder: every exact text method equals the autoregressive run, token for token, on tiny models."""

from __future__ import annotations

import pytest
import torch
from tests.tiny import VOCAB, Decoded, decode, parts_for, perturbed, tiny_llama, tiny_target

from specviz.engine.interfaces import Composition
from specviz.engine.sampling import Warp
from specviz.methods.parameters import build
from specviz.methods.registry import all_methods
from specviz.targets.text import TextTarget

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
# Drafts that are drawn and judged by ratio keep the law but not the very tokens, except where nothing is drawn.
SAMPLED = {("speculative_sampling", 0.8), ("stand", 0.8)}


def compose(name: str, values: dict[str, object], target: TextTarget, warp: Warp, noise: float = 0.02) -> Composition:
    method = all_methods()[name]
    draft = TextTarget(perturbed(target.model, noise), "tiny draft", (), target.tier)
    return method.compose(build(method.parameters, values, name), parts_for(target, warp, draft))


def plain(target: TextTarget, warp: Warp, budget: int = 220, seed: int = 7) -> Decoded:
    return decode(target, compose("autoregressive", {}, target, warp), PROMPT, budget, warp, seed)


@pytest.mark.parametrize("tier", ["eager", "graph"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("warp", [GREEDY, WARM, NUCLEUS], ids=["greedy", "warm", "nucleus"])
@pytest.mark.parametrize(("name", "values"), CASES[:5])
def test_same_tokens_as_one_by_one(name: str, values: dict[str, object], warp: Warp, dtype: torch.dtype, tier: str) -> None:
    target = tiny_target(tier, dtype)
    run = decode(target, compose(name, values, target, warp), PROMPT, 220, warp, 7)
    assert run.ids == plain(target, warp).ids
    assert len(run.ids) == 220
    assert any(step.path for step in run.steps), "nothing was ever accepted, so nothing was tested"


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize(("name", "values"), CASES[5:])
def test_sampled_drafts_equal_greedy_at_temperature_zero(name: str, values: dict[str, object], dtype: torch.dtype) -> None:
    target = tiny_target(dtype=dtype)
    run = decode(target, compose(name, values, target, GREEDY), PROMPT, 220, GREEDY)
    assert run.ids == plain(target, GREEDY).ids
    assert any(step.path for step in run.steps)


def test_the_autoregressive_run_is_the_models_own_greedy_text() -> None:
    model = tiny_llama()
    expected = model.generate(torch.tensor([PROMPT]), max_new_tokens=60, do_sample=False, pad_token_id=0)[0, len(PROMPT) :]
    assert plain(TextTarget(model, "tiny", ()), GREEDY, 60).ids == expected.tolist()


def test_a_perfect_draft_is_accepted_whole() -> None:
    target = tiny_target()
    run = decode(target, compose("speculative_sampling", {"gamma": 4}, target, GREEDY, noise=0.0), PROMPT, 100, GREEDY)
    assert [len(step.path) for step in run.steps] == [4] * 20
    assert run.ids == plain(target, GREEDY, 100).ids


def test_a_perfect_sampled_draft_is_accepted_whole() -> None:
    target = tiny_target()
    run = decode(target, compose("speculative_sampling", {"gamma": 4}, target, WARM, noise=0.0), PROMPT, 100, WARM)
    assert [len(step.path) for step in run.steps] == [4] * 20


def test_a_hopeless_draft_still_writes_the_targets_text() -> None:
    target = tiny_target()
    run = decode(target, compose("speculative_sampling", {"gamma": 4}, target, GREEDY, noise=3.0), PROMPT, 60, GREEDY)
    assert run.ids == plain(target, GREEDY, 60).ids
    assert sum(len(step.path) for step in run.steps) < 30


@pytest.mark.parametrize("budget", range(1, 12))
def test_the_budget_may_end_inside_a_path(budget: int) -> None:
    target = tiny_target()
    run = decode(target, compose("speculative_sampling", {"gamma": 5}, target, GREEDY, noise=0.0), PROMPT, budget, GREEDY)
    assert run.ids == plain(target, GREEDY, budget).ids
    assert len(run.ids) == budget
    assert run.outcome.reason == "budget"
    assert (run.steps[-1].cut == "budget") == (budget % 6 != 0)


def test_end_of_sequence_inside_a_path_ends_the_run_there() -> None:
    greedy = plain(tiny_target(), GREEDY, 40).ids
    ending = next(token for place, token in enumerate(greedy) if place >= 8 and token not in greedy[:place] and place % 6 < 5)
    target = tiny_target(eos=[ending])
    run = decode(target, compose("speculative_sampling", {"gamma": 5}, target, GREEDY, noise=0.0), PROMPT, 40, GREEDY)
    assert run.ids == greedy[: greedy.index(ending) + 1]
    assert run.outcome.reason == "eos"
    assert run.steps[-1].cut == "eos"
    assert run.steps[-1].bonus is None


@pytest.mark.parametrize("name", ["prompt_lookup", "token_recycling", "stand", "speculative_sampling"])
def test_a_full_context_ends_the_run_with_the_same_text(name: str) -> None:
    target = tiny_target(context=64)
    run = decode(target, compose(name, {}, target, GREEDY), PROMPT, 500, GREEDY)
    alone = plain(target, GREEDY, 500)
    assert run.outcome.reason == alone.outcome.reason == "context"
    assert run.ids == alone.ids
    assert len(PROMPT) + len(run.ids) == 64


@pytest.mark.parametrize("prompt", [[5], [5, 6]])
@pytest.mark.parametrize("name", ["autoregressive", "prompt_lookup", "token_recycling", "stand", "speculative_sampling"])
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
@pytest.mark.parametrize("tier", ["eager", "graph"])
@pytest.mark.parametrize("warp", [GREEDY, WARM], ids=["greedy", "warm"])
def test_the_cache_equals_a_fresh_prefill_after_every_step(
    name: str, values: dict[str, object], tier: str, warp: Warp, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tiny_target(tier)
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

    def open(self, capacity: int, taps: tuple[int, ...] = ()) -> object:
        session = self._open(capacity, taps)
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
            self.worst = max(self.worst, float((keys - fresh_keys).abs().max()), float((values - fresh_values).abs().max()))
        self.checked += 1


def test_the_vocabulary_is_really_used() -> None:
    assert len(set(plain(tiny_target(), WARM).ids)) > VOCAB // 3
