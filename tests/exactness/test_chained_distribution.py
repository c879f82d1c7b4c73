"""The distribution of what a chain of three models writes, counted: the buffer's, and that of whole runs."""

from collections import Counter
from typing import Any

import pytest
import torch

from specviz.acceptance.exact import Match, Rejection
from specviz.drafting.trees.sampled import Sampled
from specviz.engine.interfaces import Composition, Draft, Proposal, TargetPass
from specviz.engine.tree import DraftTree, chain
from specviz.methods.polybasic.cascade import Cascade
from tests.support.rounds import context
from tests.support.tiny.text import tiny_target
from tests.support.worlds.text import intermediate_of
from tests.support.worlds.three_tokens import World, keeps_distribution


class Table:
    """A world's drafter as an intermediate model, by prefix; it keeps no state but the text."""

    name, context_length, boundary = "table", 1 << 20, 0

    def __init__(self, world, prompt):
        self.world, self.prompt = world, prompt
        self.text: list[int] = []
        self.tree: DraftTree | None = None

    @property
    def length(self):
        return len(self.text)

    def open(self, capacity, taps=()):
        self.text = []
        return self

    def prefill(self, ids):
        self.text += ids

    def score(self, tree):
        self.tree = tree
        rows = []
        for node in range(len(tree)):
            prefix = [*self.text, *(tree.host_tokens[one] for one in tree.shape.path(node))][self.prompt :]
            table = self.world.drafter[min(len(prefix), 2)]
            rows.append(table[tuple(prefix[:2])])
        return TargetPass(torch.stack(rows))

    def keep(self, path):
        assert self.tree is not None
        self.text += [self.tree.host_tokens[node] for node in path]

    def rewind(self, length):
        del self.text[length:]

    def close(self):
        pass


class Guess:
    """A drafter with one distribution everywhere, unlike any other's."""

    def __init__(self, vocab):
        self.distribution = torch.softmax(torch.arange(vocab, dtype=torch.float64), -1)

    def begin(self, context, prefill): ...

    def observe(self, finished): ...

    def bookmark(self): ...

    def back(self, bookmark): ...

    def close(self): ...

    def rows(self, context, tokens, parents, nodes):
        return [Proposal(self.distribution) for _ in nodes]

    def calls(self):
        return 1

    def draft_notes(self, picks):
        return ()


def gathered(world: World, judge: Any, rounds: int) -> list[Draft]:
    """What the middle of the chain hands to the target, in many rounds with noise of their own."""
    found = []
    controller = Cascade(Table(world, 1), Guess(world.vocab), Sampled(chain(1)), judge, 2)
    for number in range(rounds):
        here = context([0], warp=world.warp, seed=number, room=20, story=False)
        controller.begin(here, None)
        found.append(controller.draft(here))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("judge", [Match(), Rejection()], ids=["match", "ratio"])
def test_what_gathers_has_the_middle_models_distribution_and_carries_it(judge):
    world, rounds = World(vocab=3, seed=2), 1500
    drafts = gathered(world, judge, rounds)
    counts = Counter(tuple(draft.tree.host_tokens[1:3]) for draft in drafts)
    first = world.proposal(()).probability
    statistic = 0.0
    for one in range(3):
        second = world.proposal((one,)).probability
        for two in range(3):
            expected = rounds * float(first[one] * second[two])
            statistic += (counts[one, two] - expected) ** 2 / expected
    assert statistic < 42.0, "8 degrees of freedom, one in a million"
    for draft in drafts[:50]:
        tokens = draft.tree.host_tokens
        assert torch.allclose(draft.proposals[0].probability, first)
        assert torch.allclose(draft.proposals[1].probability, world.proposal((tokens[1],)).probability)


@pytest.mark.slow
def test_whole_runs_keep_the_distribution():
    target = tiny_target(vocab=3)
    intermediate = intermediate_of("draft", target)
    made = lambda: Composition(Cascade(intermediate, Guess(3), Sampled(chain(1)), Match(), 2), Rejection())  # noqa: E731
    assert keeps_distribution(target, made, 200)
