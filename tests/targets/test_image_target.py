"""An image target's passes against the standard class without cache: guidance and trees."""

import pytest
import torch

from specviz.engine.tree import DraftTree
from specviz.errors import ModelUnavailable
from specviz.pipeline.image import image_target
from tests.support.worlds.image import World, plain_rows

PARENTS = [-1, 0, 0, 1, 1, 2, 3]


@pytest.mark.spread(2)
@pytest.mark.parametrize("tier", ["eager", "graph"])
@pytest.mark.parametrize("guidance", [1.0, 2.0, 5.0])
def test_a_tree_gives_what_each_of_its_paths_would_alone(guidance, tier):
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


def test_a_picture_that_does_not_fit_the_model_is_refused():
    world = World()
    world.loaded.model.config.text_config.max_position_embeddings = 20
    with pytest.raises(ModelUnavailable, match="20 tokens"):
        image_target(world.loaded, "red", 2.0, "auto")
