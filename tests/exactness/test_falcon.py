"""The ladder for trees drafted in blocks: whatever a network of two levels a forward drafts, the text is the target's own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from specviz.acceptance.rejection import Rejection
from specviz.drafters.block_drafter import BlockDrafter
from specviz.engine.interfaces import Composition, Context, Draft, Proposal
from specviz.engine.sampling import Warp
from specviz.engine.tree import shape_from_counts, shape_of
from specviz.methods.parameters import build
from specviz.methods.registry import get
from specviz.targets.text import TextTarget
from tests.exactness.test_text_methods import EVERY_WAY, GREEDY, PROMPT, WARM, WARPS, _Audit, one_by_one, until_full
from tests.support.tiny.blocks import block_net
from tests.support.tiny.text import decode, parts_for, tiny_target
from tests.support.worlds.three_tokens import World, drawn, exact_distribution

CASES = {
    "fitted": {"tree": "fitted", "nodes": 20},
    "four forwards": {"tree": "fitted", "nodes": 60, "width": 12, "forwards": 4},
    "published": {"tree": "published"},
    "as many as pay": {"tree": "fitted"},
    "drawn": {"tree": "drawn"},
}
WAYS = [("fitted", *way) for way in EVERY_WAY]
WAYS += [(case, "eager", torch.float64, warp) for case in ("four forwards", "published") for warp in ("greedy", "warm")]


class Foretold(BlockDrafter):
    """Drafts like a random network, but is told the text to come, all of it or with every ``gap``-th token missing."""

    text: tuple[int, ...] = ()
    gap: int = 0

    def blocks(self, context: Context, tokens: Sequence[int], parents: Sequence[int], seeds: Sequence[int]) -> Tensor | None:
        found = super().blocks(context, tokens, parents, seeds)
        if found is None:
            return None
        found, start = found.clone(), len(context.ids) - context.prompt_length
        for row, seed in zip(found, seeds, strict=True):
            depth = shape_of(tuple(parents)).depths[seed]
            for level, logits in enumerate(row):
                place = start + depth + level
                if place < len(self.text) and (not self.gap or place % self.gap):
                    logits[self.support == self.text[place]] = 30.0
        return found


def compose(case: str, target: TextTarget, warp: Warp, text: Sequence[int] = (), gap: int = 0, block: int = 2) -> Composition:
    """The method with a random network, or with one that is told ``text``."""
    method, network = get("falcon"), block_net(target, block, draft=target.vocab_size if text else 40)
    parts = parts_for(target, warp).using(drafter_weights=lambda name: network)
    composition = method.compose(build(method.parameters, CASES[case], "falcon"), parts)
    if text:
        told = Foretold(network)
        told.text, told.gap = tuple(text), gap
        composition.controller.drafter = told
    return composition


@pytest.mark.parametrize(("case", "tier", "dtype", "warped"), WAYS)
def test_same_tokens_as_one_by_one(case: str, tier: str, dtype: torch.dtype, warped: str) -> None:
    target, warp = tiny_target(tier, dtype), WARPS[warped]
    text = one_by_one(tier, dtype, warp)
    run = decode(target, compose(case, target, warp, text, gap=4), PROMPT, len(text), warp, 7)
    assert run.ids == text
    lengths = {len(step.path) for step in run.steps}
    assert len(lengths) > 1 and max(lengths) > 1


@pytest.mark.parametrize("block", [1, 3])
def test_other_block_lengths_write_the_same_text(block: int) -> None:
    target = tiny_target()
    text = one_by_one("eager", torch.float64, WARM)
    run = decode(target, compose("fitted", target, WARM, text, 4, block), PROMPT, 120, WARM, 7)
    assert run.ids == text[:120]
    lengths = {len(step.path) for step in run.steps}
    assert len(lengths) > 1 and max(lengths) > 1


def test_an_untaught_network_still_leaves_the_targets_text() -> None:
    target = tiny_target()
    run = decode(target, compose("fitted", target, WARM), PROMPT, 100, WARM, 7)
    assert run.ids == one_by_one("eager", torch.float64, WARM)[:100]
    assert any(step.path for step in run.steps) and sum(not step.path for step in run.steps) > 20


@pytest.mark.parametrize(("case", "warped"), [("as many as pay", "warm"), ("drawn", "greedy")])
def test_small_trees_write_the_same_text(case: str, warped: str) -> None:
    target = tiny_target()
    text = one_by_one("eager", torch.float64, WARPS[warped])
    run = decode(target, compose(case, target, WARPS[warped], text, gap=4), PROMPT, 120, WARPS[warped], 7)
    assert run.ids == text[:120]
    assert any(len(step.path) > 1 for step in run.steps)


def test_drawn_trees_are_judged_by_the_distributions_they_were_drawn_from() -> None:
    target = tiny_target()
    run = decode(target, compose("drawn", target, WARM), PROMPT, 120, WARM, 7)
    assert {step.rule for step in run.steps} == {"without_replacement"}
    assert any(step.path for step in run.steps)
    assert run.ids != one_by_one("eager", torch.float64, WARM)[:120], "another draw from the same distribution"


def test_two_levels_a_forward_and_the_drafter_starts_as_soon_as_a_block_is_there() -> None:
    target = tiny_target()
    run = decode(target, compose("published", target, GREEDY), PROMPT, 40, GREEDY)
    assert all(step.draft_calls == 4 and step.verified == 165 and max(step.depths) == 8 for step in run.steps)
    short = decode(target, compose("published", target, GREEDY), [5, 6], 30, GREEDY)
    assert [step.draft_calls for step in short.steps[:2]] == [0, 4]
    assert short.ids == decode(target, compose_plain(target), [5, 6], 30, GREEDY).ids


def compose_plain(target: TextTarget) -> Composition:
    return get("autoregressive").compose(get("autoregressive").parameters(), parts_for(target, GREEDY))


@pytest.mark.parametrize("prompt", [[5], [5, 6], [5, 6, 7]])
def test_shortest_prompts(prompt: list[int]) -> None:
    target = tiny_target()
    run = decode(target, compose("fitted", target, GREEDY), prompt, 30, GREEDY)
    assert run.ids == decode(target, compose_plain(target), prompt, 30, GREEDY).ids


@pytest.mark.parametrize("tier", ["eager", "graph"])
def test_a_full_context_ends_the_run_with_the_same_text(tier: str) -> None:
    target = tiny_target(tier, context=64)
    run = decode(target, compose("four forwards", target, GREEDY), PROMPT, 500, GREEDY)
    alone = until_full(tier)
    assert run.outcome.reason == alone.outcome.reason == "context"
    assert run.ids == alone.ids


def foretold(target: TextTarget) -> Composition:
    return compose("four forwards", target, GREEDY, one_by_one("eager", torch.float64, GREEDY))


def test_a_perfect_draft_is_accepted_whole() -> None:
    target = tiny_target()
    run = decode(target, foretold(target), PROMPT, 90, GREEDY)
    assert [len(step.path) for step in run.steps] == [8] * 10
    assert run.ids == one_by_one("eager", torch.float64, GREEDY)[:90]


@pytest.mark.parametrize("budget", [1, 2, 8, 9, 10, 13])
def test_the_budget_may_end_inside_a_path(budget: int) -> None:
    target = tiny_target()
    run = decode(target, foretold(target), PROMPT, budget, GREEDY)
    assert run.ids == one_by_one("eager", torch.float64, GREEDY)[:budget]
    assert (run.outcome.reason, run.steps[-1].cut) == ("budget", None if budget % 9 == 0 else "budget")


def test_end_of_sequence_inside_a_path_ends_the_run_there() -> None:
    greedy = one_by_one("eager", torch.float64, GREEDY)[:40]
    ending = next(greedy[place] for place in range(9, 40) if place % 9 < 8 and greedy[place] not in greedy[:place])
    target = tiny_target(eos=[ending])
    run = decode(target, foretold(target), PROMPT, 40, GREEDY)
    assert run.ids == greedy[: greedy.index(ending) + 1]
    assert (run.outcome.reason, run.steps[-1].cut, run.steps[-1].bonus) == ("eos", "eos", None)


@pytest.mark.parametrize(("case", "tier", "warped"), [("fitted", "eager", "warm"), ("drawn", "graph", "warm")])
def test_the_cache_equals_a_fresh_prefill_after_every_step(
    case: str, tier: str, warped: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, warp = tiny_target(tier), WARPS[warped]
    audit = _Audit(target)
    monkeypatch.setattr(target, "open", audit.open)
    run = decode(target, compose(case, target, warp), PROMPT, 60, warp)
    assert audit.checked == len(run.steps)
    assert audit.worst < 1e-9


def blind(world: World) -> World:
    """The second level is drawn from one distribution whatever the first token was, as inside a block."""
    first, second, third = world.drafter
    world.drafter = (first, second.mean(0, keepdim=True).expand_as(second).contiguous(), third)
    return world


@pytest.mark.parametrize("counts", [[[1], [1]], [[2], [2, 1]], [[3], [1, 2]]])
@pytest.mark.parametrize("seed", [0, 1])
def test_drawing_the_second_level_from_its_marginal_keeps_the_distribution(
    counts: list[list[int]], seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = blind(World(vocab=3, seed=seed))
    distribution = exact_distribution(world, drawn(world, shape_from_counts(counts)), Rejection(), monkeypatch)
    torch.testing.assert_close(distribution, world.distribution(), rtol=0, atol=1e-12)


def test_judging_the_second_level_by_any_other_distribution_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    seeing = World(vocab=3, seed=0)
    world = blind(World(vocab=3, seed=0))

    def conditional(draft: Draft) -> Draft:
        """The distributions that a drafter which had seen the first token would have drawn from."""
        distributions = dict(draft.proposals)
        for node in distributions:
            if node:
                token = draft.tree.host_tokens[node]
                distributions[node] = Proposal(seeing.warp.probabilities(seeing.drafter[1][token]))
        return replace(draft, proposals=distributions)

    drafts = [(probability, conditional(draft)) for probability, draft in drawn(world, shape_from_counts([[2], [1, 1]]))]
    distribution = exact_distribution(world, iter(drafts), Rejection(), monkeypatch)
    assert float((distribution - world.distribution()).abs().max()) > 0.01
