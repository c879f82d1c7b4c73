"""The ladder for blocks that a masked language model fills at once: searched paths, drawn blocks, and their distributions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from specviz.acceptance.match import Match
from specviz.acceptance.rejection import Rejection
from specviz.engine.interfaces import Composition, Context, Draft
from specviz.engine.sampling import Warp
from specviz.engine.tree import DraftTree, chain
from specviz.methods.diffuspec.drafter import MaskedBlock
from specviz.methods.parameters import build
from specviz.methods.registry import get
from specviz.targets.text import TextTarget
from tests.exactness.test_text_methods import EVERY_WAY, GREEDY, PROMPT, WARM, WARPS, _Audit, one_by_one, until_full
from tests.support.tiny.masked import masked_lm, ngrams
from tests.support.tiny.text import decode, parts_for, tiny_target
from tests.support.worlds.three_tokens import World, drawn, exact_distribution

CASES = {
    "deer": ("deer", {"block": 6}),
    "diffuspec": ("diffuspec", {"longest": 9, "shortest": 3}),
    "fixed": ("diffuspec", {"longest": 6, "adaptive": False, "weight": 1.0}),
}


class Foretold(MaskedBlock):
    """Drafts like a random network, but is told the text to come, all of it or with every ``gap``-th token missing."""

    text: tuple[int, ...] = ()
    gap: int = 0

    def block(self, context: Context, places: int) -> Tensor:
        found, start = super().block(context, places).clone(), len(context.ids) - context.prompt_length
        for level, logits in enumerate(found):
            place = start + level
            if place < len(self.text) and (not self.gap or place % self.gap):
                logits[self.support == self.text[place]] = 30.0
        return found


def compose(case: str, target: TextTarget, warp: Warp, text: Sequence[int] = (), gap: int = 0) -> Composition:
    """The method with a random network, or with one that is told ``text``."""
    name, values = CASES[case]
    network, method = masked_lm(target, target.vocab_size if text else 40), get(name)
    heads = {"masked_lm": network, "deer": network, "ngrams": ngrams(target.vocab_size)}
    parts = parts_for(target, warp).using(drafter_weights=heads.__getitem__)
    made = method.compose(build(method.parameters, values, name), parts)
    if text:
        told = Foretold(network, made.controller.drafter.places)
        told.text, told.gap = tuple(text), gap
        made.controller.drafter = told
    return made


@pytest.mark.parametrize("case", ["diffuspec", "fixed"])
@pytest.mark.parametrize(("tier", "dtype", "warped"), EVERY_WAY)
def test_searched_paths_write_the_same_tokens_as_one_by_one(case: str, tier: str, dtype: torch.dtype, warped: str) -> None:
    target, warp = tiny_target(tier, dtype), WARPS[warped]
    text = one_by_one(tier, dtype, warp)
    run = decode(target, compose(case, target, warp, text, gap=5), PROMPT, len(text), warp, 7)
    assert run.ids == text
    lengths = {len(step.path) for step in run.steps}
    assert len(lengths) > 1 and max(lengths) > 1


@pytest.mark.parametrize(("tier", "dtype"), [("eager", torch.float64), ("eager", torch.float32), ("graph", torch.float64)])
def test_blocks_at_temperature_zero_write_the_same_tokens(tier: str, dtype: torch.dtype) -> None:
    target = tiny_target(tier, dtype)
    text = one_by_one(tier, dtype, GREEDY)
    run = decode(target, compose("deer", target, GREEDY, text, gap=5), PROMPT, len(text), GREEDY)
    assert run.ids == text
    assert {step.rule for step in run.steps} <= {"greedy"} and max(len(step.path) for step in run.steps) == 4


@pytest.mark.parametrize("case", ["deer", "diffuspec"])
def test_an_untaught_network_still_leaves_the_targets_text(case: str) -> None:
    target = tiny_target()
    run = decode(target, compose(case, target, GREEDY), PROMPT, 120, GREEDY)
    assert run.ids == one_by_one("eager", torch.float64, GREEDY)[:120]
    assert sum(not step.path for step in run.steps) > 20


def test_drawn_blocks_are_judged_by_the_ratio_of_their_distributions() -> None:
    target = tiny_target()
    run = decode(target, compose("deer", target, WARM), PROMPT, 150, WARM, 7)
    assert {step.rule for step in run.steps} == {"ratio"} and any(step.path for step in run.steps)
    for step in run.steps:
        judged = [node for node in step.nodes[1:] if node.threshold is not None]
        rejected = [node for node in judged if node.status == "rejected"]
        assert len(rejected) <= 1, "the first rejection ends the block"
        for node in judged:
            assert node.threshold == pytest.approx(min(1.0, node.p / node.q), rel=1e-4)
    assert all(step.draft_calls == 1 for step in run.steps)


@pytest.mark.parametrize(("case", "whole"), [("deer", 6), ("fixed", 6)])
def test_a_perfect_block_is_accepted_whole(case: str, whole: int) -> None:
    target, text = tiny_target(), one_by_one("eager", torch.float64, GREEDY)
    run = decode(target, compose(case, target, GREEDY, text), PROMPT, 10 * (whole + 1), GREEDY)
    assert [len(step.path) for step in run.steps] == [whole] * 10
    assert run.ids == text[: 10 * (whole + 1)]


@pytest.mark.parametrize("case", ["deer", "fixed"])
@pytest.mark.parametrize("budget", [1, 2, 6, 7, 8, 11])
def test_the_budget_may_end_inside_a_path(case: str, budget: int) -> None:
    target, text = tiny_target(), one_by_one("eager", torch.float64, GREEDY)
    run = decode(target, compose(case, target, GREEDY, text), PROMPT, budget, GREEDY)
    assert run.ids == text[:budget]
    assert (run.outcome.reason, run.steps[-1].cut) == ("budget", None if budget % 7 == 0 else "budget")


@pytest.mark.parametrize("case", ["deer", "fixed", "diffuspec"])
def test_end_of_sequence_inside_a_path_ends_the_run_there(case: str) -> None:
    greedy = one_by_one("eager", torch.float64, GREEDY)[:60]
    ending = next(greedy[place] for place in range(9, 60) if place % 7 < 5 and greedy[place] not in greedy[:place])
    target = tiny_target(eos=[ending])
    run = decode(target, compose(case, target, GREEDY, greedy), PROMPT, 60, GREEDY)
    assert run.ids == greedy[: greedy.index(ending) + 1]
    assert run.outcome.reason == "eos"
    if case == "fixed":
        (note,) = [note for note in run.steps[-1].notes if note.type == "lattice"]
        assert note.data["fence"] == len(run.steps[-1].path), "the lattice was fenced where the text ends"


@pytest.mark.parametrize("tier", ["eager", "graph"])
@pytest.mark.parametrize("case", ["deer", "diffuspec"])
def test_a_full_context_ends_the_run_with_the_same_text(case: str, tier: str) -> None:
    target = tiny_target(tier, context=64)
    run = decode(target, compose(case, target, GREEDY), PROMPT, 500, GREEDY)
    alone = until_full(tier)
    assert run.outcome.reason == alone.outcome.reason == "context"
    assert run.ids == alone.ids


@pytest.mark.parametrize("prompt", [[5], [5, 6], [5, 6, 7]])
@pytest.mark.parametrize("case", ["deer", "diffuspec"])
def test_shortest_prompts(case: str, prompt: list[int]) -> None:
    target = tiny_target()
    run = decode(target, compose(case, target, GREEDY), prompt, 30, GREEDY)
    alone = get("autoregressive").compose(get("autoregressive").parameters(), parts_for(target, GREEDY))
    assert run.ids == decode(target, alone, prompt, 30, GREEDY).ids


@pytest.mark.parametrize(("case", "tier"), [("deer", "eager"), ("diffuspec", "eager"), ("deer", "graph")])
def test_the_cache_equals_a_fresh_prefill_after_every_step(case: str, tier: str, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tiny_target(tier)
    audit = _Audit(target)
    monkeypatch.setattr(target, "open", audit.open)
    run = decode(target, compose(case, target, WARM), PROMPT, 60, WARM)
    assert audit.checked == len(run.steps)
    assert audit.worst < 1e-9


def test_the_gauge_lengthens_blocks_that_are_kept_and_shortens_the_others() -> None:
    target, text = tiny_target(), one_by_one("eager", torch.float64, GREEDY)
    kept = decode(target, compose("diffuspec", target, GREEDY, text), PROMPT, 120, GREEDY)
    lost = decode(target, compose("diffuspec", target, GREEDY), PROMPT, 120, GREEDY)
    longest = [step.verified for step in kept.steps][3:-1]
    shortest = [step.verified for step in lost.steps][3:-1]
    assert max(shortest) < min(longest) and max(longest) == 9


class Marginal(World):
    """Every place has one distribution, whatever was drawn before it: what a denoising step gives."""

    def __post_init__(self) -> None:
        super().__post_init__()
        first, second, third = self.drafter
        self.drafter = (first, second.mean(0, keepdim=True).expand_as(second).contiguous(), third)


@pytest.mark.parametrize("vocab", [3, 5])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_drawing_every_place_from_its_marginal_keeps_the_distribution(
    vocab: int, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = Marginal(vocab=vocab, seed=seed)
    distribution = exact_distribution(world, drawn(world, chain(2)), Rejection(), monkeypatch)
    torch.testing.assert_close(distribution, world.distribution(), rtol=0, atol=1e-12)


def test_a_searched_path_judged_as_a_draw_does_not_keep_the_distribution(monkeypatch: pytest.MonkeyPatch) -> None:
    """Why a searched path is matched: with min(1, p / q) of its marginals the output would have another distribution."""
    world = Marginal(vocab=4, seed=0)
    distributions = {0: world.proposal(()), 1: world.proposal((0,))}
    best = [int(distributions[node].probability.argmax()) for node in (0, 1)]
    chosen = Draft(DraftTree.of([0, *best], [-1, 0, 1]), distributions)
    assert (
        float((exact_distribution(world, iter([(1.0, chosen)]), Rejection(), monkeypatch) - world.distribution()).abs().max())
        > 0.02
    )
    point = replace(chosen, proposals={})
    distribution = exact_distribution(world, iter([(1.0, point)]), Rejection(), monkeypatch)
    torch.testing.assert_close(distribution, world.distribution(), rtol=0, atol=1e-12)


def test_searched_paths_are_composed_with_sample_and_match() -> None:
    target = tiny_target()
    assert isinstance(compose("diffuspec", target, WARM).acceptance, Match)
    assert isinstance(compose("deer", target, WARM).acceptance, Rejection)
