"""Pictures of scenes: shapes and colours are what is said, and unknown pictures are drawn from their seeds."""

import numpy as np
import pytest
import torch

from specviz.training.families import scenes_unknown
from specviz.training.families.scenes import SHAPE, SHAPES, blank, stacked
from specviz.training.families.scenes_render import KNOWN, distances
from specviz.training.families.scenes_vlm import Lessons
from specviz.training.families.scenes_words import Writer, train_tokenizer
from tests.support.training.tiny_scenes import noisy_renderer


@pytest.mark.parametrize("shape", SHAPES)
def test_a_shapes_distance_is_positive_inside_and_shrinks_by_what_it_is_rounded(shape):
    for outline in KNOWN[shape]:
        inside, rounded = distances(outline), outline["rounded"]
        assert inside.max() > 0.1 > 0 > inside[0, 0]
        assert torch.allclose(inside - distances({**outline, "rounded": 0}), torch.full_like(inside, rounded), atol=1e-6)


def test_a_flat_red_square_is_red_on_its_ground_whatever_the_camera_does():
    made = blank()
    made["layer"][0], made["xy"][0], made["pixels"][0], made["rgb"][0] = SHAPE, (64, 64), 60, (220, 30, 30)
    made["place"][0], made["ground"][:] = SHAPES.index("square"), 250
    drawn = noisy_renderer().draw(stacked([made] * 24)).float()
    assert drawn.shape == (24, 128, 128, 3)
    red, green = drawn[:, 62:66, 38:90, 0].mean((1, 2)), drawn[:, 62:66, 38:90, 1].mean((1, 2))
    filled = red - green > 60  # one in ten is hollow
    assert int(filled.sum()) >= 17 and (drawn[:, 8:24, 8:24].mean((1, 2, 3)) > 150).all()


def test_updates_come_in_parts_with_all_their_fields():
    writer = Writer(train_tokenizer(60, 600))
    update = next(iter(Lessons(writer, 8, 4, 2, 2, 0.5, 0)))
    assert [len(part["paint"]["mode"]) for part in update] == [2, 2]
    assert update[0]["short"].shape[:2] == (2, 2) and update[0]["patches"]["kind"].shape == (2, 64)
    pictures = noisy_renderer().draw(update[0]["paint"])
    assert pictures.dtype == torch.uint8 and pictures.shape == (2, 128, 128, 3)


@pytest.mark.parametrize("seed", range(0, 60, 5))
def test_an_unknown_picture_is_drawn_from_its_seed(seed):
    one, again = (scenes_unknown.picture(seed) for _ in range(2))
    assert one.shape == (128, 128, 3) and np.array_equal(one, again)
