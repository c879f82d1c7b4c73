"""Trees grown together equal those that drafting grows; their rewards, advantages and clipping; the change of low rank."""

from __future__ import annotations

import math

import pytest
import torch

from specviz.drafting.networks.lora import TALL, WIDE, merge_lora
from specviz.drafting.runtimes.feature_drafter import FeatureDrafter
from specviz.drafting.trees.dynamic import Dynamic
from specviz.engine.interfaces import Context, TargetPass
from specviz.engine.sampling import Noise, Warp
from specviz.training.driver import Schedule
from specviz.training.families import gto
from specviz.training.families.feature import unroll
from specviz.training.families.gto import Arena, GtoTraining, Size, Tree, grown, worth
from specviz.training.features import DialogueFeatures
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


DEEP = Size(depth=4, width=3, nodes=12)
SOME_IDS = tuple(range(0, 40, 2))


def features(seen: DialogueFeatures) -> torch.Tensor:
    return seen.features[:, :3].flatten(1)


def by_hand(text: list[int], root: int, tree: Tree) -> tuple[float, tuple[int, ...]]:
    """The reward and the longest branch, each path run through the target by itself."""
    model, lengths = target().model, {}
    leaves = set(range(len(tree.tokens))) - set(tree.parents)
    for leaf in leaves:
        path = tree.down_to(leaf)
        rows = model(torch.tensor([[*text[: root + 1], *path]])).logits[0].log_softmax(-1)
        reached, length = 1.0, 0.0
        for place, token in enumerate(path):
            reached *= float(rows[root + place, token].exp())
            length += reached
        lengths[path] = length
    return math.log(sum(math.exp(length) for length in lengths.values())), max(lengths, key=lengths.__getitem__)


@torch.no_grad()
def test_rewards_are_what_the_target_says_of_each_path() -> None:
    seen, text = store().get([3])[0], store().get([3])[0].tokens.tolist()
    starts = torch.tensor([7, 8, 10, 24, 25, 30])  # two groups of eight, and one that begins in between
    forests = [grown(drafter(noise=noise), seen.tokens, features(seen), starts, DEEP) for noise in (0.0, 0.5)]
    roots = [start + 1 for start in starts.tolist()]
    found = worth(target(), text, roots, forests)
    for forest, row in zip(forests, found, strict=True):
        for root, tree, one in zip(roots, forest, row, strict=True):
            reward, longest = by_hand(text, root, tree)
            assert one.reward == pytest.approx(reward, abs=1e-5)
            assert one.longest == longest
    assert found[0] != found[1], "two drafters, two forests"


def test_equal_trees_get_exactly_the_same_reward() -> None:
    """Groups are compared by differences: noise in the last digit would be blown up where all of a group are equal."""
    tree, turned = Tree((-1, 5, 6, 7), (-1, 0, 0, 1)), Tree((-1, 6, 5, 7), (-1, 0, 0, 2))
    text = store().get([0])[0].tokens.tolist()
    one, other = worth(target(), text, [9], [[tree], [turned]])
    assert abs(one[0].reward - other[0].reward) < 1e-12


@torch.no_grad()
def test_training_grows_the_trees_that_drafting_grows() -> None:
    net, seen = drafter(noise=0.4, ids=SOME_IDS), store().get([3])[0]
    starts = [6, 7, 19, 40]
    trees = grown(net, seen.tokens, features(seen), torch.tensor(starts), DEEP)
    for start, tree in zip(starts, trees, strict=True):
        ids = seen.tokens[: start + 2].tolist()
        told = TargetPass(torch.empty(0), {1: seen.features[: start + 1, 0], 0: seen.features[: start + 1, 2]})
        context = Context(ids, 8, 0, Warp(), Noise(0), torch.device("cpu"), 100)
        drafting = FeatureDrafter(net.runtime())
        drafting.begin(context, told)
        draft = Dynamic(DEEP.depth, DEEP.width, DEEP.nodes).build(drafting, context)
        assert tree.paths == Tree(draft.tree.host_tokens, draft.tree.shape.parents).paths
