"""An image target's passes against the standard class without cache: guidance, trees, the kept path, rewritten entries."""

from __future__ import annotations

import pytest
import torch

from specviz.engine.tree import DraftTree
from specviz.errors import ModelUnavailable
from specviz.pipeline.image import image_target
from tests.support.worlds.image import World, plain_rows

TIERS = ("eager", "graph")
PARENTS = [-1, 0, 0, 1, 1, 2, 3]


@pytest.mark.spread(2)
@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("guidance", [1.0, 2.0, 5.0])
def test_a_tree_gives_what_each_of_its_paths_would_alone(guidance: float, tier: str) -> None:
    world = World(guidance, tier=tier)
    assert world.target.rows == (1 if guidance == 1 else 2)
    session = world.target.open(40)
    session.prefill(world.prompt[:-1])
    tree = DraftTree.of([world.prompt[-1], 3, 5, 7, 3, 9, 11], PARENTS)
    rows = session.score(tree).logits
    for node in range(len(tree)):
        codes = [tree.host_tokens[one] for one in tree.shape.path(node)[1:]]
        expected = plain_rows(world.loaded, world.target, world.prompt, codes)[-1]
        assert torch.allclose(rows[node], expected, atol=1e-9)


@pytest.mark.parametrize("tier", TIERS)
def test_after_a_path_is_kept_the_cache_is_that_of_a_fresh_run(tier: str) -> None:
    world = World(tier=tier)
    session = world.target.open(40)
    session.prefill(world.prompt[:-1])
    session.score(DraftTree.of([world.prompt[-1], 3, 5, 7, 3, 9, 11], PARENTS))
    session.keep([0, 1, 4])
    rows = session.score(DraftTree.of([8, 2, 4], [-1, 0, 1])).logits
    assert torch.allclose(rows[-1], plain_rows(world.loaded, world.target, world.prompt, [3, 3, 8, 2, 4])[-1])
    fresh = world.target.open(40)
    fresh.prefill([*world.prompt, 3, 3])
    session.rewind(len(world.prompt) + 2)
    for ours, theirs in zip(session.tensors(), fresh.tensors(), strict=True):
        assert torch.allclose(ours[0], theirs[0]) and torch.allclose(ours[1], theirs[1])


@pytest.mark.spread(1)
@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("nodes", [[2, 3, 4, 5], [0, 1, 2, 3, 4, 5]])
def test_entries_from_the_first_change_on_written_again_are_those_of_a_fresh_pass(nodes: list[int], tier: str) -> None:
    world = World(tier=tier)
    session = world.target.open(40)
    session.prefill(world.prompt[:-1])
    before, after = [world.prompt[-1], 3, 5, 7, 3, 9], [world.prompt[-1], 3, 6, 7, 1, 9]
    session.score(DraftTree.of(before, range(-1, 5)))
    rows = session.rewrite(torch.tensor(after), nodes).logits
    expected = plain_rows(world.loaded, world.target, world.prompt, after[1:])
    assert torch.allclose(rows, expected[nodes], atol=1e-9)
    session.keep([0, 1, 2, 3, 4])
    again = session.score(DraftTree.of([9, 2], [-1, 0])).logits
    assert torch.allclose(again[-1], plain_rows(world.loaded, world.target, world.prompt, [*after[1:], 2])[-1])


@pytest.mark.parametrize("tier", TIERS)
def test_only_some_entries_written_again_leave_the_others_as_they_were(tier: str) -> None:
    world = World(tier=tier)
    session = world.target.open(40)
    session.prefill(world.prompt[:-1])
    before, after = [world.prompt[-1], 3, 5, 7, 3, 9], [world.prompt[-1], 3, 6, 7, 1, 9]
    session.score(DraftTree.of(before, range(-1, 5)))
    rows = session.rewrite(torch.tensor(after), [2, 4]).logits
    expected = plain_rows(world.loaded, world.target, world.prompt, after[1:])
    assert torch.allclose(rows[0], expected[2], atol=1e-9)  # nothing in front of it is stale
    assert not torch.allclose(rows[1], expected[4], atol=1e-3)  # it saw the stale entry of place 3
    session.keep([0, 1, 2, 3, 4])
    late = session.score(DraftTree.of([9], [-1])).logits[0]
    assert not torch.allclose(late, expected[5], atol=1e-6)


def test_a_picture_that_does_not_fit_the_model_is_refused() -> None:
    world = World()
    world.loaded.model.config.text_config.max_position_embeddings = 20
    with pytest.raises(ModelUnavailable, match="20 tokens"):
        image_target(world.loaded, "red", 2.0, "auto")
