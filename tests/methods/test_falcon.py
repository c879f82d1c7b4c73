"""Trees that grow two levels a forward: whose list a node is offered, what the blocks note tells, where a tree must end."""

from functools import partial

import pytest
import torch

from specviz.drafting.trees.dynamic import Dynamic
from specviz.drafting.trees.sampled import Sampled
from specviz.engine.sampling import Warp
from specviz.engine.tree import chain, shape_from_counts
from specviz.methods.falcon import Blocks
from specviz.methods.registry import published_tree
from tests.support import rounds
from tests.support.worlds.host_levels import ByTokens

VOCAB = 30


context = partial(rounds.context, [3, 4], warp=Warp(0.9))


class Pairs(ByTokens):
    """Two levels a forward: logits hang on the seed's whole path and on the level, not on the node inside the block."""

    def __init__(self, support=None):
        self.support, self.forwards, self._told = support, 0, 0

    def distribution(self, path, level):
        size = VOCAB if self.support is None else len(self.support)
        seed = hash((*path, level)) % 2**31
        return 2 * torch.randn(size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)

    def logits(self, context, tokens, parents, nodes):
        paths = []
        for node in nodes:
            path = []
            while node > 0:
                path.append(tokens[node])
                node = parents[node]
            paths.append(tuple(reversed(path)))
        inside = len(paths[0]) % 2
        self.forwards += not inside
        return torch.stack([self.distribution(path[: len(path) - inside], inside) for path in paths])

    def calls(self):
        made, self._told = self.forwards - self._told, self.forwards
        return made

    def draft_notes(self, picks):
        return ()


def test_the_published_tree_has_its_165_nodes_and_seeds_four_forwards():
    shape, drafter = published_tree("falcon"), Pairs()
    assert [len(level) for level in shape.levels] == [1, 20, 15, 19, 23, 21, 23, 21, 23]
    draft = Blocks(Sampled(shape, ranked=True, unwarped=True), 2).build(drafter, context())
    assert draft.tree.shape.parents == shape.parents
    assert draft.calls == 4 and not draft.proposals
    told = draft.notes[-1].data
    assert told["width"] == 2
    assert [block["depths"] for block in told["blocks"]] == [[1, 2], [3, 4], [5, 6], [7, 8]]
    assert [len(block["nodes"]) for block in told["blocks"]] == [35, 42, 44, 44]
    depths = draft.tree.shape.depths
    assert all(block["depths"][0] <= depths[node] <= block["depths"][1] for block in told["blocks"] for node in block["nodes"])


@pytest.mark.parametrize(("unwarped", "heat"), [(True, 1.0), (False, 0.9)])
def test_the_rth_child_carries_the_rth_best_token_of_its_level(unwarped, heat):
    """Its probability is the drafter's own in the published tree, and that of the run's temperature in any other."""
    drafter = Pairs(torch.arange(50, 50 + VOCAB))
    shape = shape_from_counts([[3], [2, 2], [1, 0, 2]])
    draft = Sampled(shape, ranked=True, unwarped=unwarped).build(drafter, context(warp=Warp(0.9)))
    tokens, parents = draft.tree.host_tokens, draft.tree.shape.parents
    first, second = drafter.distribution((), 0), drafter.distribution((), 1)
    assert list(tokens[1:4]) == [50 + token for token in first.topk(3).indices.tolist()]
    assert list(tokens[4:8]) == 2 * [50 + token for token in second.topk(2).indices.tolist()]
    distribution = drafter.distribution((tokens[2], tokens[6]), 0)
    assert [tokens[node] for node in range(8, 11) if parents[node] == 6] == [
        50 + t for t in distribution.topk(2).indices.tolist()
    ]
    assert draft.confidence[0] is None
    assert draft.confidence[1] == pytest.approx(float((first / heat).softmax(-1).max()))
    assert draft.confidence[4] == draft.confidence[6] == pytest.approx(float((second / heat).softmax(-1).max()))


@pytest.mark.parametrize("warp", [Warp(), Warp(1.3, top_k=4)])
def test_the_published_tree_is_the_same_at_every_temperature(warp):
    shape = shape_from_counts([[3], [2, 1], [2, 1, 1]])
    builder = Sampled(shape, ranked=True, unwarped=True)
    one, other = (builder.build(Pairs(), context(warp=each)) for each in (warp, Warp(0.9)))
    assert one.tree.host_tokens == other.tree.host_tokens and one.confidence == other.confidence


@pytest.mark.parametrize(("room", "depth"), [(1, 0), (2, 1), (3, 2), (4, 3), (50, 5)])
def test_a_tree_leaves_the_contexts_last_place_to_the_bonus_token(room, depth):
    for builder in (Sampled(chain(5), ranked=True), Dynamic(5, 2, 40), Sampled(chain(5))):
        draft = Blocks(builder, 2).build(Pairs(), context(room=room))
        assert max(draft.tree.shape.depths) == depth
        assert draft.calls == (depth + 1) // 2


def test_drawn_trees_keep_the_distributions_they_were_drawn_from():
    shape, drafter = published_tree("falcon_drawn"), Pairs()
    draft = Blocks(Sampled(shape), 2).build(drafter, context())
    assert len(draft.tree) == 16 and draft.calls == 2
    assert set(draft.proposals) == {node for node, children in enumerate(shape.children) if children}
    distributions = [draft.proposals[node].probability for node in draft.tree.shape.levels[1]]
    assert all(torch.equal(distribution, distributions[0]) for distribution in distributions), (
        "the second level is offered its marginal distribution everywhere"
    )
