"""Drafts looked up in one memory, and ladders: what becomes of a guess and of a chain's runners-up."""

from functools import partial
from types import SimpleNamespace

import torch

from specviz.drafting.memory.output_store import OutputStore
from specviz.drafting.memory.retrieval import Retrieval
from specviz.drafting.memory.suffix_guess import LengthRule
from specviz.drafting.trees.retrieved import Retrieved
from specviz.engine.interfaces import Proposal
from specviz.methods.reader.merged_tree import Ladder
from tests.support import rounds

context = partial(rounds.context, room=1000)


class Chain:
    """A drafter of chains: after ``text`` the distribution says token len(text), then 7, then 8."""

    def __init__(self, best):
        self.best, self.asked = best, []

    def rows(self, context, tokens, parents, nodes):
        assert list(nodes) == [len(tokens) - 1]
        self.asked.append(list(tokens))
        distribution = torch.full((10,), 1e-3, dtype=torch.float64)
        distribution[len(tokens)], distribution[7], distribution[8] = self.best, 0.2, 0.1
        return [Proposal(distribution)]

    def calls(self):
        return len(self.asked)


def test_a_ladder_goes_on_with_the_best_and_keeps_the_runners_up_as_leaves():
    drafter = Chain(0.6)
    draft = Ladder(3, 2, floor=0.1).build(drafter, context([9, 0]))
    assert drafter.asked == [[0], [0, 1], [0, 1, 2]]
    assert draft.tree.host_tokens == (0, 1, 7, 2, 7, 3, 7)
    assert draft.tree.shape.parents == (-1, 0, 0, 1, 1, 3, 3)
    assert draft.confidence == [None, 0.6, 0.2, 0.6, 0.2, 0.6, 0.2]
    assert len(Ladder(8, 2, floor=0.3).build(Chain(0.6), context([9, 0])).tree) == 1 + 2 * 3, "0.6 ** 3 is below the floor"
    assert len(Ladder(8, 2).build(Chain(0.6), context([9, 0], room=2)).tree) == 1 + 2


def retrieval(text, rule=LengthRule(), store=None):
    drafter = Retrieval(store, rule)
    drafter.begin(context(text), None)
    return drafter


def test_a_look_up_is_cut_to_the_room_there_is_and_its_story_with_it():
    text = [1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3, 4]
    whole = Retrieved().build(retrieval(text), context(text))
    assert whole.tree.host_tokens == (4, 5, 6, 7, 8)
    assert whole.confidence == [None, 0.5, 1.0, 1.0, 1.0]
    note = whole.notes[0].data
    assert (note["suffix_start"], note["suffix_length"], note["occurrences"], note["source"]) == (8, 4, 2, "context")
    assert note["rows"] == [{"node": 0, "count": 2, "tokens": [5], "counts": [1], "others": 0}]
    short = Retrieved().build(retrieval(text), context(text, room=3))
    assert short.tree.host_tokens == (4, 5, 6)


def test_the_better_memory_drafts_and_of_equals_the_text_itself():
    store = OutputStore()
    store.add([3, 4, 50, 51, 52, 53])
    text = [3, 4, 9, 8, 7, 3, 4]
    assert Retrieved().build(retrieval(text, store=store), context(text)).notes[0].data["source"] == "outputs"
    equal = OutputStore()
    equal.add([3, 4, 50])
    equal.add([3, 4, 51])
    known = [3, 4, 9, 8, 7, 3, 4]
    scores = Retrieved().build(retrieval(known, LengthRule(most=1), equal), context(known)).notes[0].data
    assert scores["scores"] == {"context": 0.5, "outputs": 0.5}
    assert scores["source"] == "context"


def test_a_score_below_the_threshold_drafts_nothing_and_says_so():
    text = [1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3, 4]
    drafter = Retrieval(None, LengthRule(), threshold=2.5)
    drafter.begin(context(text), None)
    draft = Retrieved().build(drafter, context(text))
    assert len(draft.tree) == 1
    note = draft.notes[0].data
    assert (note["score"], note["used"], note["rows"]) == (2.0, False, [])


def test_a_finished_run_leaves_its_output_once_and_not_its_prompt():
    store = OutputStore()
    drafter = retrieval([1, 2, 3], store=store)
    drafter.observe(SimpleNamespace(emitted=[4, 5]))
    drafter.close()
    drafter.close()
    assert (store.outputs, store.tokens) == (1, 2)
    assert store.ask(lambda tree: tree.find([3])) is None
