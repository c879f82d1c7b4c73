"""Trees grown together equal those that drafting grows, and their rewards are what the target says."""

import math

import pytest
import torch

from specviz.drafting.runtimes.feature_drafter import FeatureDrafter
from specviz.drafting.trees.dynamic import Dynamic
from specviz.engine.interfaces import TargetPass
from specviz.training.families.gto import Size, Tree, grow_trees, score_trees
from tests.support.rounds import context
from tests.support.training.tiny_forest import drafter, store, target

DEEP = Size(depth=4, width=3, nodes=12)
SOME_IDS = tuple(range(0, 40, 2))


def features(seen):
    return seen.features[:, :3].flatten(1)


def by_hand(text, root, tree):
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
def test_rewards_are_what_the_target_says_of_each_path():
    seen, text = store().get([3])[0], store().get([3])[0].tokens.tolist()
    starts = torch.tensor([7, 8, 10, 24, 25, 30])  # two groups of eight, and one that begins in between
    forests = [grow_trees(drafter(noise=noise), seen.tokens, features(seen), starts, DEEP) for noise in (0.0, 0.5)]
    roots = [start + 1 for start in starts.tolist()]
    found = score_trees(target(), text, roots, forests)
    for forest, row in zip(forests, found, strict=True):
        for root, tree, one in zip(roots, forest, row, strict=True):
            reward, longest = by_hand(text, root, tree)
            assert one.reward == pytest.approx(reward, abs=1e-5)
            assert one.longest == longest
    assert found[0] != found[1], "two drafters, two forests"


@torch.no_grad()
def test_training_grows_the_trees_that_drafting_grows():
    net, seen = drafter(noise=0.4, ids=SOME_IDS), store().get([3])[0]
    starts = [6, 7, 19, 40]
    trees = grow_trees(net, seen.tokens, features(seen), torch.tensor(starts), DEEP)
    for start, tree in zip(starts, trees, strict=True):
        ids = seen.tokens[: start + 2].tolist()
        told = TargetPass(torch.empty(0), {1: seen.features[: start + 1, 0], 0: seen.features[: start + 1, 2]})
        here = context(ids, prompt=8)
        drafting = FeatureDrafter(net.runtime())
        drafting.begin(here, told)
        draft = Dynamic(DEEP.depth, DEEP.width, DEEP.nodes).build(drafting, here)
        assert tree.paths == Tree(draft.tree.host_tokens, draft.tree.shape.parents).paths
