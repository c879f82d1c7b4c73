"""Trees of fixed shape: filled rank by rank, cut where nothing is known or no room is left; and copied chains."""

import pytest

from specviz.drafting.trees.retrieved import ChainBuilder
from specviz.engine.tree import shape_from_counts
from specviz.methods.token_recycling.successors import Static
from specviz.trace.schema import Note
from tests.support.rounds import context


class Ranked:
    """Knows three successors of every token below 50: ten times it, and one, and two more."""

    updated = 0

    @property
    def matrix(self):
        return self

    def read(self, token):
        return [10 * token, 10 * token + 1, 10 * token + 2] if token < 50 else []


def test_a_child_of_rank_r_carries_the_rth_guess_after_its_parent():
    draft = Static(shape_from_counts([[2], [2, 1]])).build(Ranked(), context())
    assert draft.tree.host_tokens == (1, 10, 11, 100, 101, 110)
    assert draft.tree.shape.parents == (-1, 0, 0, 1, 1, 2)
    assert not draft.proposals
    told = draft.notes[0].data["rows"]
    assert told[1] == {"node": 1, "token": 10, "tokens": [100, 101, 102], "used": 2}


def test_branches_end_where_nothing_is_known_and_others_go_on():
    deep = Static(shape_from_counts([[1], [1], [3]])).build(Ranked(), context())
    assert deep.tree.host_tokens == (1, 10, 100)
    few = Static(shape_from_counts([[5]])).build(Ranked(), context())
    assert few.tree.host_tokens == (1, 10, 11, 12)


@pytest.mark.parametrize(("room", "nodes"), [(1, 1), (2, 3), (3, 6)])
def test_a_tree_leaves_the_contexts_last_place_to_the_bonus_token(room, nodes):
    assert len(Static(shape_from_counts([[2], [2, 1]])).build(Ranked(), context(room=room)).tree) == nodes


class Quoting:
    """Always names the same continuation."""

    def continuation(self, context):
        return [4, 5, 6], (Note("copy", {}),)


@pytest.mark.parametrize(("room", "tokens"), [(100, (1, 4, 5, 6)), (3, (1, 4, 5)), (1, (1,))])
def test_a_copied_chain_fits_the_room(room, tokens):
    draft = ChainBuilder().build(Quoting(), context(room=room))
    assert draft.tree.host_tokens == tokens
    assert draft.tree.shape.parents == tuple(range(-1, len(tokens) - 1))
    assert draft.calls == (len(tokens) > 1)
