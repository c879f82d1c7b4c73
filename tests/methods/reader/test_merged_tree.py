"""A merged tree holds what each source proposes, once, and of all trees of its size the most expected tokens."""

import itertools
from dataclasses import dataclass, field
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specviz.drafting.trees.dynamic import SpeedupPolicy
from specviz.engine.cost import CostCurve
from specviz.engine.interfaces import Draft
from specviz.engine.tree import DraftTree
from specviz.methods.reader.merged_tree import Estimates, Merged
from tests.support import rounds

context = partial(rounds.context, room=1000)


@dataclass
class Fixed:
    """A drafter that always offers the same tree, and notes at what temperature it was asked."""

    tokens: list[int]
    parents: list[int]
    confidence: list[float | None] = field(default_factory=list)
    temperatures: list[float] = field(default_factory=list)

    def begin(self, context, prefill): ...

    def draft(self, context):
        self.temperatures.append(context.warp.temperature)
        confidence = self.confidence or [None] * len(self.tokens)
        return Draft(DraftTree.of([context.ids[-1], *self.tokens[1:]], self.parents), confidence=confidence, calls=2)

    def observe(self, finished): ...

    def close(self): ...


@dataclass
class Held:
    """One memory's answer."""

    tokens: list[int]
    parents: list[int]
    matched: int = 8
    source: str = "context"
    near: bool = True
    sure: float = 1.0

    @property
    def guess(self):
        return self

    def certainty(self, node):
        return self.sure


@dataclass
class Memories:
    """Memories that answer by the tail they are asked about."""

    answers: dict[tuple[int, ...], list[Held]]
    asked: list[tuple[int, ...]] = field(default_factory=list)

    def begin(self, context, prefill): ...

    def guesses(self, tail=()):
        self.asked.append(tuple(tail))
        return self.answers.get(tuple(tail), [])

    def observe(self, finished): ...

    def close(self): ...


def paths(draft):
    """Drafted runs of tokens and their nodes."""
    found = []
    for token, parent in zip(draft.tree.host_tokens, draft.tree.shape.parents, strict=True):
        found.append((*found[parent], token) if parent >= 0 else ())
    return {run: node for node, run in enumerate(found)}


TREES = st.integers(1, 7).flatmap(
    lambda size: st.tuples(
        st.lists(st.integers(0, 3), min_size=size, max_size=size),
        st.tuples(*(st.integers(0, node) for node in range(size))),
    )
)


def distinct(tokens, parents):
    """The tree without siblings of the same token, as every drafter gives it; its root first."""
    kept, ups, place = [0], [-1], {0: 0}
    for node, (token, parent) in enumerate(zip(tokens, parents, strict=True), start=1):
        up = place.get(parent)
        if up is not None and (up, token) not in zip(ups, kept, strict=True):
            place[node] = len(kept)
            kept.append(token)
            ups.append(up)
    return kept, ups


@given(TREES, TREES, TREES)
def test_the_whole_merged_tree_is_the_union_of_its_sources(one, two, three):
    drafted = Fixed(*distinct(*one))
    held = [distinct(*two), distinct(*three)]
    answers = [
        Held(tokens[1:], parents[1:], 4, name) for (tokens, parents), name in zip(held, ("context", "outputs"), strict=False)
    ]
    merged = Merged(drafted, Memories({(): answers}), Estimates(), size=200, deepened=0)
    found = merged.draft(context([9, 0]))
    parts = [DraftTree.of(tokens, parents) for tokens, parents in ((drafted.tokens, drafted.parents), *held)]
    union = set().union(*(set(paths(Draft(part))) for part in parts))
    assert set(paths(found)) == union
    assert len(found.tree) == len(union), "no run of tokens stands twice"
    note = found.notes[0].data
    for run, node in paths(found).items():
        said = {name for name, part in zip(("drafter", "context", "outputs"), parts, strict=False) if run in paths(Draft(part))}
        assert not run or set(note["sources"][node].split("+")) == said


def closed(parents, nodes):
    return all(parents[node] == 0 or parents[node] in nodes for node in nodes)


@given(TREES, TREES, st.integers(1, 5))
def test_of_all_trees_of_its_size_it_has_the_most_expected_tokens(one, two, size):
    tokens, parents = distinct(*two)
    answers = {(): [Held(tokens[1:], parents[1:], 6, sure=0.7)]}

    def grown(nodes):
        return Merged(Fixed(*distinct(*one)), Memories(answers), Estimates(), nodes, 0).draft(context([9, 0]))

    whole, best = grown(200), grown(size)
    values = whole.notes[0].data["value"]
    parents = whole.tree.shape.parents
    subsets = itertools.combinations(range(1, len(parents)), min(size, len(parents) - 1))
    most = max(sum(values[node] for node in nodes) for nodes in subsets if closed(parents, nodes))
    kept = best.notes[0].data
    assert sum(kept["value"][1 : kept["kept"]]) == pytest.approx(most)
    assert kept["expected"] == pytest.approx(1 + most)


def test_probabilities_of_siblings_add_up_to_one_at_most():
    answers = {(): [Held([1, 2, 3], [0, 0, 0], 64), Held([4, 1], [0, 0], 64, "outputs")]}
    draft = Merged(None, Memories(answers), Estimates(), size=10).draft(context([9, 0]))
    assert sum(draft.confidence[1:]) == pytest.approx(1.0)
    assert draft.proposals == {}, "every child is certain, so no distribution goes to the accept rule"


def test_likely_leaves_of_the_drafter_are_looked_up_and_deepened():
    drafted = Fixed([0, 5, 6, 7], [-1, 0, 0, 1], [None, 0.9, 0.05, 0.8])
    memories = Memories({(5, 7): [Held([8, 9], [0, 1], 16)]})
    draft = Merged(drafted, memories, Estimates(), size=10, deepened=1).draft(context([9, 0]))
    assert memories.asked == [(), (5, 7)], "the text itself, then the likeliest leaf"
    assert (5, 7, 8, 9) in paths(draft)
    assert draft.notes[0].data["grafts"] == [{"node": 2, "source": "context", "matched": 16, "count": 2}]
    assert draft.calls == 2


def test_a_branch_stops_where_the_context_ends():
    memories = Memories({(): [Held([1, 2, 3, 4], [0, 1, 2, 3])]})
    draft = Merged(Fixed([0, 5, 6, 7], [-1, 0, 1, 2]), memories, Estimates(), size=20).draft(context([9, 0], room=3))
    assert max(draft.tree.shape.depths) == 2, "the context's last place is the bonus token's"


def test_as_many_nodes_as_pay_and_none_where_none_does():
    sure = Memories({(): [Held(list(range(20)), list(range(20)), 64)]})
    cheap = SpeedupPolicy.on(CostCurve((1, 30), (10.0, 11.0)))
    assert len(Merged(None, sure, Estimates(), size=cheap).draft(context([9, 0])).tree) > 15
    paid = SpeedupPolicy.on(CostCurve((1, 30), (10.0, 40.0)), forward=5.0)
    free = SpeedupPolicy.on(CostCurve((1, 30), (10.0, 40.0)), forward=0.0)
    unsure = Memories({(): [Held(list(range(20)), list(range(20)), 1)]})
    sizes = [len(Merged(None, unsure, Estimates(), size=policy).draft(context([9, 0])).tree) for policy in (paid, free)]
    assert sizes[0] > sizes[1], "a round that starts with a dear look-up has to bring more"
    dear = SpeedupPolicy.on(CostCurve((1, 30), (10.0, 600.0)))
    draft = Merged(None, sure, Estimates(), size=dear).draft(context([9, 0]))
    assert (len(draft.tree), draft.calls) == (1, 0)
