"""Trees grown together equal those found one by one, and their rewards what the target says of each path."""

from __future__ import annotations

import math

import pytest
import torch

from specviz.drafters.feature_drafter import FeatureDrafter
from specviz.drafters.networks.feature_net import FeatureNet
from specviz.engine.interfaces import Context, TargetPass
from specviz.engine.sampling import Noise, Warp
from specviz.training.families.gto import Size, Tree, grown, worth
from specviz.training.families.unrolling import unroll
from specviz.training.features import DialogueFeatures
from specviz.trees.dynamic import Dynamic
from tests.support.training.tiny_forest import drafter, store, target

SIZE = Size(depth=4, width=3, nodes=12)
SOME_IDS = tuple(range(0, 40, 2))


def features(seen: DialogueFeatures) -> torch.Tensor:
    return seen.features[:, :3].flatten(1)


def shares(net: FeatureNet, seen: DialogueFeatures, start: int, path: tuple[int, ...]) -> torch.Tensor:
    """The drafter's log distribution of the next token after ``path``, drafted from ``start``: by going along that one path."""
    text = torch.cat((seen.tokens[: start + 2], torch.tensor(path, dtype=torch.long)))
    padded = torch.cat((text, torch.zeros(2, dtype=torch.long)))
    whole = torch.cat((features(seen)[: start + 1], torch.zeros(len(padded) - start - 1, 3 * 32)))
    output = unroll(net, padded, whole, [torch.tensor([start])] * (len(path) + 1))[-1]
    distribution = torch.full((40,), -math.inf)
    ids = torch.arange(40) if net.draft_ids is None else net.draft_ids
    distribution[ids] = torch.log_softmax(net.logits(output)[0], -1)
    return distribution


def one_by_one(net: FeatureNet, seen: DialogueFeatures, start: int, size: Size) -> dict[tuple[int, ...], float]:
    """Expand and rerank as the paper tells it, with a forward for every single node: kept paths and their values."""
    beam, considered = {(): 0.0}, {}
    for _ in range(size.depth):
        below = {}
        for path, value in beam.items():
            best = shares(net, seen, start, path).topk(size.width)
            for share, token in zip(best.values.tolist(), best.indices.tolist(), strict=True):
                below[(*path, token)] = value + share
        considered |= below
        beam = dict(sorted(below.items(), key=lambda item: -item[1])[: size.width])
    return dict(sorted(considered.items(), key=lambda item: -item[1])[: size.nodes])


@pytest.mark.spread(1)
@pytest.mark.parametrize("ids", [None, SOME_IDS], ids=["whole vocabulary", "draft vocabulary"])
@torch.no_grad()
def test_trees_grown_together_are_those_grown_one_by_one(ids: tuple[int, ...] | None) -> None:
    net, seen = drafter(noise=0.4, ids=ids), store().get([3])[0]
    starts = torch.tensor([6, 7, 11, 30])
    trees = grown(net, seen.tokens, features(seen), starts, SIZE)
    for start, tree in zip(starts.tolist(), trees, strict=True):
        alone = one_by_one(net, seen, start, SIZE)
        assert tree.paths == {(), *alone}
        assert len(tree.tokens) == SIZE.nodes + 1
        assert max(map(len, tree.paths)) > 1


def test_what_follows_the_text_is_counted() -> None:
    tree = Tree((-1, 5, 6, 7, 8), (-1, 0, 0, 1, 3))
    assert [tree.along(text) for text in ([5, 7, 8, 9], [5, 8], [6, 7], [9], [])] == [3, 1, 1, 0, 0]
    assert tree.paths == {(), (5,), (6,), (5, 7), (5, 7, 8)}


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
    forests = [grown(drafter(noise=noise), seen.tokens, features(seen), starts, SIZE) for noise in (0.0, 0.5)]
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
    trees = grown(net, seen.tokens, features(seen), torch.tensor(starts), SIZE)
    for start, tree in zip(starts, trees, strict=True):
        ids = seen.tokens[: start + 2].tolist()
        told = TargetPass(torch.empty(0), {1: seen.features[: start + 1, 0], 0: seen.features[: start + 1, 2]})
        context = Context(ids, 8, 0, Warp(), Noise(0), torch.device("cpu"), 100)
        drafting = FeatureDrafter(net)
        drafting.begin(context, told)
        draft = Dynamic(SIZE.depth, SIZE.width, SIZE.nodes).build(drafting, context)
        assert tree.paths == Tree(draft.tree.host_tokens, draft.tree.shape.parents).paths
