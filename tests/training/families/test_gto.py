"""The tree's reward in training: advantages, clipping, the change of low rank, and what a branch is worth."""

from __future__ import annotations

import pytest
import torch

from specviz.drafting.networks.lora import TALL, WIDE, merge_lora
from specviz.training.driver import Schedule
from specviz.training.families import gto
from specviz.training.families.feature import unroll
from specviz.training.families.gto import Arena, GtoTraining, Size, grown
from specviz.training.optimizer import LowRank
from tests.support.training.tiny_forest import arena, drafter, store, target

SIZE = Size(depth=3, width=3, nodes=8)
SETTINGS = Schedule(batch=3, peak=0.02, every=10**9)


class Unasked:
    """A target that must not be asked."""

    def open(self, *asked: object) -> object:
        raise AssertionError("the target was asked about trees that are equal")


def test_advantages_compare_within_a_group() -> None:
    found = gto.advantages(torch.tensor([[1.0, 3.0], [0.0, 0.0], [5.0, 5.0]], dtype=torch.float64))
    assert found[0].tolist() == pytest.approx([-1.0, 1.0], abs=1e-5), "mean 2, spread 1"
    assert found[1:].tolist() == [[0.0, 0.0], [0.0, 0.0]], "all did equally well: nobody is pushed"


def test_the_surrogate_stops_pulling_where_it_is_clipped() -> None:
    ratio = torch.tensor([1.0, 1.5, 0.5, 1.5, 0.5, 1.1], requires_grad=True)
    advantage = torch.tensor([2.0, 2.0, 2.0, -2.0, -2.0, -2.0])
    value = gto.surrogate(ratio, advantage)
    assert value.tolist() == pytest.approx([-2.0, -2.4, -1.0, 3.0, 1.6, 2.2])
    (pull,) = torch.autograd.grad(value.sum(), [ratio])
    assert pull.tolist() == pytest.approx([-2.0, 0.0, -2.0, 2.0, 0.0, 2.0])


def test_a_low_rank_change_starts_as_none_and_has_the_gradient_of_its_factors() -> None:
    net, plain = drafter(), drafter()
    change = LowRank(net, rank=3)
    change.put()
    assert all(torch.equal(one, other) for one, other in zip(net.parameters(), plain.parameters(), strict=True))
    name = "layer.mlp.up_proj.weight"
    for value in change.factors.values():
        value += 0.1
    change.put()
    (net.layer.mlp.up_proj.weight.square().sum() + sum(0 * leaf.sum() for leaf in change.matrices.values())).backward()
    found = change.gradients({name: leaf.grad for name, leaf in change.matrices.items()})
    tall, wide = (change.factors[name + end].clone().requires_grad_() for end in (TALL, WIDE))
    (plain.layer.mlp.up_proj.weight + tall @ wide).square().sum().backward()
    torch.testing.assert_close(found[name + TALL], tall.grad)
    torch.testing.assert_close(found[name + WIDE], wide.grad)
    merge_lora(plain, change.factors, "change")
    assert all(torch.allclose(one, other, atol=1e-6) for one, other in zip(net.parameters(), plain.parameters(), strict=True))


def test_equal_drafters_gain_nothing_and_the_target_is_not_asked() -> None:
    net = drafter(0.3)
    both = arena(net, net)._replace(target=Unasked())
    seen = store().get([1])[0]
    found = gto.judged(both, seen, torch.arange(6, 14).view(2, 4), SIZE)
    assert not found.gain.any() and not found.advantage.any()
    assert gto.tree_loss(both, seen, found, 1.0) is None


@pytest.fixture(name="other")
def other_drafter() -> tuple[Arena, gto.Judged, int]:
    """A drafter that differs from the reference, and what its trees on one dialogue are worth."""
    both = arena(drafter(0.4), drafter(0.3))
    return both, gto.judged(both, store().get([1])[0], torch.arange(6, 38).view(8, 4), SIZE), 1


def test_branches_are_what_was_written_or_else_what_was_expected(other: tuple[Arena, gto.Judged, int]) -> None:
    both, found, number = other
    seen = store().get([number])[0]
    text = seen.tokens.tolist()
    trees = grown(both.net, seen.tokens, seen.features[:, :3].flatten(1), found.starts, SIZE)
    kinds = set()
    for start, tree, branch, gain in zip(found.starts.tolist(), trees, found.branches, found.gain.tolist(), strict=True):
        written = tuple(text[start + 2 : start + 2 + SIZE.depth])
        reached = max(length for length in range(SIZE.depth + 1) if written[:length] in tree.paths)
        kinds.add((reached > 0, bool(branch)))
        assert branch in tree.paths
        if reached and branch:
            assert branch == written[:reached]
        assert branch or not gain, "a tree that gained something has a branch to pull"
    assert {(True, True), (False, True)} <= kinds
    assert found.gain.any() and not found.gain.all(), "some trees differ, some do not"
    assert found.advantage.view(8, 4).mean(1).abs().max() < 1e-6


def test_a_branch_is_as_likely_as_its_tokens_one_after_the_other(other: tuple[Arena, gto.Judged, int]) -> None:
    """Along the text the steps are those of the cross-entropy's unrolling."""
    both, found, number = other
    seen = store().get([number])[0]
    text, starts = seen.tokens.tolist(), found.starts[:5]
    branches = [
        tuple(text[start + 2 : start + 2 + length]) for start, length in zip(starts.tolist(), (1, 2, 3, 1, 2), strict=False)
    ]
    logs = gto.branch_log(both.net, both.place, seen, starts, branches)
    outputs = unroll(both.net, seen.tokens, seen.features[:, :3].flatten(1), [starts] * 3)
    for row, branch in enumerate(branches):
        distributions = [torch.log_softmax(both.net.logits(output[row]), -1) for output in outputs]
        torch.testing.assert_close(
            logs[row], sum(distribution[token] for distribution, token in zip(distributions, branch, strict=False))
        )


def state_of() -> GtoTraining:
    return GtoTraining(arena(drafter(0.5), drafter(0.5)), store(), list(range(16)), SETTINGS)


def test_tau_counts_hops_along_the_greedy_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gto, "SIZE", SIZE)
    made = state_of()
    answer, trees = store().dialogues.answer(20).tolist(), made.trees(20)
    assert len(trees) == len(answer)
    place, steps = 0, 0
    while place + SIZE.depth + 1 <= len(answer):
        reached = max(length for length in range(SIZE.depth + 1) if tuple(answer[place : place + length]) in trees[place].paths)
        place, steps = place + reached + 1, steps + 1
    assert made.accepted([20])["tau"] == pytest.approx(place / steps)
    assert target().vocab_size == 40
