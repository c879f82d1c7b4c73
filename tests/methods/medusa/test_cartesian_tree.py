"""Trees of fixed rank paths: every node of a depth offers from one list, whatever stands above it."""

from functools import partial

import pytest
import torch

from specviz.methods.medusa.drafter import Product, paths_of
from specviz.methods.registry import published_tree
from tests.support import rounds


class Lists:
    """Three tokens in an order of its own at each depth, with probabilities 0.5, 0.3 and 0.2."""

    support = torch.tensor([10, 11, 12])

    def __init__(self, *rows):
        self._rows = rows

    def marginals(self, context):
        if not self._rows:
            return None
        logits = torch.zeros(len(self._rows), 3, dtype=torch.float64)
        for depth, row in enumerate(self._rows):
            logits[depth, torch.tensor(row) - 10] = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64).log()
        return logits

    def calls(self):
        return 1


LISTS = Lists([10, 11, 12], [11, 12, 10], [12, 10, 11])


context = partial(rounds.context, [8, 9])


def test_the_published_tree_has_63_paths_at_the_published_depths():
    paths = paths_of(published_tree("medusa"))
    assert [sum(len(path) == depth for path in paths) for depth in range(1, 6)] == [10, 28, 23, 2, 0]
    assert {(9,), (0, 9), (6, 0), (0, 0, 9), (2, 0, 0), (0, 0, 0, 1)} <= set(paths)
    assert len(set(paths)) == 63


def test_every_node_of_a_depth_has_the_same_children():
    draft = Product([(0,), (1,), (0, 0), (0, 1), (1, 0), (1, 1), (1, 1, 2)]).build(LISTS, context())
    assert draft.tree.host_tokens == (9, 10, 11, 11, 12, 11, 12, 11)
    assert draft.tree.shape.parents == (-1, 0, 0, 1, 1, 2, 2, 6)
    assert draft.confidence[0] is None and list(draft.confidence[1:]) == pytest.approx([0.5, 0.3, 0.5, 0.3, 0.5, 0.3, 0.2])
    assert not draft.proposals and draft.calls == 1
    assert [head["tokens"] for head in draft.notes[0].data["heads"]] == [[10, 11, 12], [11, 12, 10], [12, 10, 11]]


@pytest.mark.parametrize(
    ("paths", "tokens", "parents"),
    [
        ([(0,), (2,), (2, 1)], (9, 10, 12, 12), (-1, 0, 0, 2)),
        ([(0,), (0, 0), (0, 0, 0), (0, 0, 0, 0), (0, 3), (3,), (3, 0)], (9, 10, 11, 12), (-1, 0, 1, 2)),
    ],
    ids=["a rank left out", "past the heads and their lists"],
)
def test_a_node_has_the_children_whose_ranks_are_listed_and_known(paths, tokens, parents):
    tree = Product(paths).build(LISTS, context()).tree
    assert (tree.host_tokens, tree.shape.parents) == (tokens, parents)


@pytest.mark.parametrize(("room", "depth"), [(0, 0), (1, 0), (2, 1), (3, 2), (50, 3)])
def test_a_tree_leaves_the_contexts_last_place_to_the_bonus_token(room, depth):
    draft = Product([(0,), (0, 0), (0, 0, 0)]).build(LISTS, context(room=room))
    assert max(draft.tree.shape.depths) == depth
