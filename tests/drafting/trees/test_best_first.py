"""The best-first tree: the most probable paths of one distribution per depth, in order, whatever the budget."""

import itertools
import math
from types import SimpleNamespace

import pytest
import torch

from specviz.drafting.runtimes.null import NullDrafter
from specviz.drafting.trees.best_first import SPARE, WIDTH, BestFirst, Depth, best_paths, ranked
from specviz.engine.sampling import Warp
from tests.support.rounds import context

VOCAB, DEEPEST = 5, 4


def logits(seed, depths=DEEPEST, vocab=VOCAB):
    return 2 * torch.randn(depths, vocab, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


class OneBlock(NullDrafter):
    """Predicts the same block in every round."""

    def __init__(self, block, support=None):
        self.block, self.support = block, support

    def marginals(self, context):
        self._calls += 1
        return self.block


def drafted(drafter, size, **given):
    builder = BestFirst(drafter, size)
    builder.begin(context(), None)
    return builder.draft(context(**given))


def texts(draft):
    """The tokens from the root down to each node below it."""
    paths = [()]
    for parent, token in zip(draft.tree.shape.parents[1:], draft.tree.host_tokens[1:], strict=True):
        paths.append((*paths[parent], token))
    return paths[1:]


@pytest.mark.parametrize("seed", range(2))
def test_every_budget_takes_the_most_probable_of_all_prefixes(seed):
    log_q = logits(seed).log_softmax(-1)
    prefixes = [path for deep in range(1, DEEPEST + 1) for path in itertools.product(range(VOCAB), repeat=deep)]
    worth = {path: float(log_q[range(len(path)), list(path)].sum()) for path in prefixes}
    best = sorted(prefixes, key=worth.__getitem__, reverse=True)
    for budget in (1, 2, 3, 5, 17, 100, 500, len(prefixes), len(prefixes) + 2):
        found = best_paths(ranked(logits(seed), None, VOCAB), budget)
        assert len(found) == min(budget, len(prefixes))
        assert [path.value for path in found] == pytest.approx([worth[path] for path in best[:budget]])
    whole = texts(drafted(OneBlock(logits(seed)), 200, warp=Warp(1.0)))
    assert whole == best[:200]
    for budget in (1, 7, 60):
        assert texts(drafted(OneBlock(logits(seed)), budget, warp=Warp(1.0))) == whole[:budget], "a smaller tree is its beginning"


def test_equal_paths_come_in_the_order_of_their_ranks_and_impossible_tokens_never():
    even = [Depth([7, 8], [math.log(0.5)] * 2), Depth([9, 4], [0.0, -math.inf])]
    assert [(path.parent, path.depth, path.rank) for path in best_paths(even, 10)] == [(0, 1, 0), (1, 2, 0), (0, 1, 1), (3, 2, 0)]


def test_more_tokens_are_ranked_where_the_tree_takes_the_last():
    flat = torch.zeros(1, 3 * WIDTH, dtype=torch.float64)
    draft = drafted(OneBlock(flat), 2 * WIDTH)
    assert len(set(draft.tree.host_tokens[1:])) == 2 * WIDTH and len(draft.pruned) == SPARE


def test_tokens_are_those_of_the_drafters_vocabulary_and_paths_end_where_the_room_does():
    support = torch.tensor([11, 22, 33, 44, 55])
    draft = drafted(OneBlock(logits(0), support), 40, room=3)
    assert set(draft.tree.host_tokens[1:]) <= set(support.tolist()) and max(draft.tree.shape.depths) == 2
    assert draft.calls == 1
    for drafter, room in ((OneBlock(None), 3), (OneBlock(logits(0)), 1)):
        assert len(drafted(drafter, 40, room=room).tree.host_tokens) == 1


def test_a_warmer_run_makes_a_wider_tree():
    cold, warm = (max(drafted(OneBlock(logits(1)), 12, warp=Warp(t)).tree.shape.depths) for t in (0.0, 3.0))
    assert warm < cold


def test_the_policy_hears_what_the_runs_earlier_rounds_taught():
    heard = []

    def pays(probabilities, forwards):
        heard.append(probabilities)
        assert forwards == 1
        return 9

    builder = BestFirst(OneBlock(logits(2)), pays)
    builder.begin(context(), None)
    for path in ([], [1]) * 20:  # a token at depth 1 in every other round, none below
        draft = builder.draft(context(warp=Warp(1.0)))
        assert len(draft.tree.host_tokens) == 10 and heard[-1] == pytest.approx(sorted(heard[-1], reverse=True), abs=1)
        builder.observe(SimpleNamespace(verdict=SimpleNamespace(path=path)))
    depths = draft.tree.shape.depths[1:]
    first = [sum(p for p, d in zip(told, depths, strict=False) if d == 1) for told in (heard[0], heard[-1])]
    deeper = [sum(p for p, d in zip(told, depths, strict=False) if d == 2) for told in (heard[0], heard[-1])]
    assert abs(first[1] - 0.5) < 0.1 < abs(first[0] - 0.5), "half of the rounds accept a token at depth 1"
    assert deeper[1] < 0.35 * deeper[0]
    builder.begin(context(), None)
    builder.draft(context(warp=Warp(1.0)))
    assert heard[-1] == heard[0], "another run begins anew"


def test_the_note_lists_values_in_order_with_the_next_nodes_of_a_larger_tree():
    draft = drafted(OneBlock(logits(0)), 5, warp=Warp(1.0))
    note = draft.notes[0].data
    assert note["kept"] == 6 and note["considered"] == 5 + SPARE and len(note["value"]) == 6 + SPARE and note["value"][0] == 0
    assert note["value"] == sorted(note["value"], reverse=True)
    assert len(note["places"]) == len(note["reach"]) == DEEPEST and len(draft.pruned) == SPARE
    assert all(parent <= 5 + at for at, (parent, _, _) in enumerate(draft.pruned))
    assert drafted(OneBlock(logits(0)), 5, story=False).pruned == []
