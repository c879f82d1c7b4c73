"""The method as it is composed: whole runs on tiny models, at temperature 0 equal to one token at a time, wherever they
end."""

import pytest

from specviz.engine.interfaces import Composition
from specviz.engine.sampling import Warp
from specviz.engine.tree import shape_from_counts
from specviz.errors import BadInput
from specviz.methods.traversal.verification import Traversal
from specviz.targets.text import TextTarget
from tests.support.tiny.text import decode, tiny_target
from tests.support.worlds.text import NUCLEUS, PROMPT, WARM, compose
from tests.support.worlds.three_tokens import World, judged, total_variation

CHAIN = {"shape": "chain", "depth": 4, "drafter": "draft_model"}


def composed(values: dict[str, object], target: TextTarget, warp: Warp, noise: float = 0.02) -> Composition:
    return compose("traversal", values, target, warp, noise=noise)


@pytest.mark.parametrize("budget", [1, 2, 4, 5, 6, 9, 10, 11])
def test_as_many_tokens_are_drawn_as_there_is_room_for(budget):
    target = tiny_target()
    found = decode(target, composed(CHAIN, target, WARM, noise=0.0), PROMPT, budget, WARM)
    assert (len(found.ids), found.outcome.reason) == (budget, "budget")
    assert (found.steps[-1].cut, len(found.steps)) == (None if budget % 5 == 0 else "budget", -(-budget // 5))


def test_a_perfect_draft_model_is_accepted_whole():
    target = tiny_target()
    found = decode(target, composed(CHAIN, target, NUCLEUS, noise=0.0), PROMPT, 100, NUCLEUS)
    assert [len(step.path) for step in found.steps] == [4] * 20


@pytest.mark.slow
def test_the_same_seed_gives_the_same_text_and_another_one_another():
    target = tiny_target()
    texts = [decode(target, composed({}, target, WARM), PROMPT, 40, WARM, seed).ids for seed in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"drafter": "draft_model"}, "drafts chains, but the shape is sparse"),
        ({"shape": "binary", "depth": 8}, "510 nodes"),
    ],
)
def test_combinations_that_make_no_sense_are_refused(values, words):
    with pytest.raises(BadInput, match=words):
        composed(values, tiny_target(), WARM)


# Growth, rule and noise together, in a world of a few tokens.


@pytest.mark.slow
def test_many_judged_trees_keep_the_distribution_of_three_tokens():
    """A nucleus may leave the drafter tokens that the target rules out."""
    world = World(4, 10, Warp(1.3, 3, 0.9), sparse=True)
    assert total_variation(judged(world, shape_from_counts([[2], [1, 2]]), Traversal(), 500, 8), world.distribution()) < 0.08
