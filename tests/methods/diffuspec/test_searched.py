"""The searching controller: where its lattice was cut, where its path ended, and which of the two its gauge goes by."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from specviz.methods.diffuspec.lattice import Gauge, Searched
from tests.support.rounds import context

END = 2
NONE = [0.90, 0.06, 0.04]
LIKELY = [0.40, 0.15, 0.45]
"""The end is the place's likeliest token, and the search may still go past it."""


class Masks:
    """A drafter with the same distribution at every place but those named."""

    support = torch.arange(3)

    def __init__(self, distributions):
        self.distributions = torch.tensor(distributions, dtype=torch.float64).log()

    def block(self, context, places):
        return self.distributions[:places]

    def calls(self):
        return 1

    def begin(self, context, prefill): ...

    def close(self): ...


class Words:
    """An n-gram model that likes or dislikes the end of the text."""

    def __init__(self, end):
        self.distribution = np.log([1 - end, 0.5, end])

    def log_probability(self, before, tokens):
        return np.tile(self.distribution[tokens], (len(before), 1))


def drafted(distributions, end):
    """The controller after its first draft, which asked for four places, the draft and what it tells of itself."""
    made = Searched(Masks(distributions), Words(end), Gauge(2, 4, 2), frozenset({END}), mass=0.5)
    here = context([0, 1, 0])
    made.begin(here, None)
    draft = made.draft(here)
    (note,) = draft.notes
    return made, draft, note.data


def kept(made, accepted):
    """Means of the gauge, doubled, after a round in which so many tokens were accepted."""
    verdict = SimpleNamespace(path=tuple(range(1, accepted + 1)))
    made.observe(SimpleNamespace(verdict=verdict, emitted=[0] * (accepted + 1)))
    return 2 * made.gauge.drafted, 2 * made.gauge.accepted


def test_a_lattice_may_be_cut_where_the_path_goes_on():
    made, draft, told = drafted([NONE, LIKELY, NONE, NONE], end=0.01)
    assert draft.tree.host_tokens == (0, 0, 0), "no end in the path"
    assert told["fence"] == 2 and told["ended"] is False and len(told["columns"]) == 2
    assert kept(made, 2) == (1, 2) and made.gauge.length == 2, "all that lay before the fence was kept, and one more"


def test_a_path_may_take_the_end_where_no_column_was_cut():
    made, draft, told = drafted([NONE, [0.46, 0.1, 0.44], NONE, NONE], end=0.98)
    assert draft.tree.host_tokens[-1] == END and told["ended"] is True and told["fence"] is None
    assert kept(made, 1) == (len(draft.tree) - 2, 1)


@pytest.mark.parametrize("accepted", [0, 2, 4])
def test_without_an_end_all_that_was_asked_counts(accepted):
    made, draft, told = drafted([NONE] * 4, end=0.01)
    assert len(draft.tree) == 5 and (told["fence"], told["ended"]) == (None, False)
    assert kept(made, accepted) == (4, accepted)
