"""Compositions: what the sprite model learns of them and what is held out, and whether real pictures are recognised."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image

from specviz.drafting.networks.weights import read_weights
from specviz.models.image.load import weights_of
from specviz.models.image.prompts import WordPrompts
from specviz.training.families import compositions, emoji
from specviz.training.families.compositions import COLOURED, SHEET, WIDE, Compositions, Scene
from specviz.training.phrases import phrases

LABELS = ["bear", "fish", "a concept whose name fills a prompt of so many words that nothing else can follow it"]


@pytest.fixture
def composed(monkeypatch):
    """Compositions of three concepts as 8 x 8 pixels."""
    concepts = tuple(emoji.Concept(f"{at:x}", label, (), 0, {"twemoji": at}) for at, label in enumerate(LABELS))
    pictures = np.random.default_rng(0).integers(0, 256, (len(LABELS), emoji.SIDE, emoji.SIDE, 4), dtype=np.uint8)
    monkeypatch.setattr(emoji, "load", lambda: emoji.Emoji(concepts, pictures))
    return Compositions(LABELS, "twemoji", 8, 1, pixels)


def pixels(pictures):
    return pictures.flatten(2).transpose(1, 2)


def test_things_lie_where_the_layout_says(composed):
    ground = torch.tensor(emoji.GROUNDS["pink"]) / 127.5 - 1
    alone = composed.of(Scene("middle", "pink", ("bear",))).view(8, 8, 3)
    both = composed.of(Scene("beside", "pink", ("bear", "red square"))).view(8, 8, 3)
    assert torch.equal(alone[2:6, 2:6], both[2:6, :4]) and not torch.equal(both[2:6, :4], both[2:6, 4:])
    assert torch.allclose(alone[:2], ground.expand(2, 8, 3)) and torch.allclose(both[6:], ground.expand(2, 8, 3))
    whole = composed.of(Scene("whole", "pink", ("red square",))).view(8, 8, 3)
    red = torch.tensor(COLOURED["red square"][0]) / 127.5 - 1
    assert torch.allclose(whole[4, 4], red) and torch.allclose(both[4, 6], red)


def test_training_never_draws_what_is_held_out_and_says_all_that_it_draws(composed):
    prompts = WordPrompts(read_weights(weights_of("image_sprites"))[1]["prompts"])
    generator, unseen = np.random.default_rng(0), {thing for thing in COLOURED if held_out_everywhere(thing)}
    drawn = dict(composed.draw(generator, prompts) for _ in range(300))
    assert len(drawn) > 250 and not set(drawn) & set(compositions.held_out())
    assert len(unseen) > 5 and not [text for text in drawn for thing in unseen if thing in text]
    assert not [text for text in drawn if prompts.rows(text).unread]


def held_out_everywhere(thing):
    return all(Scene(layout, "white", (thing,)).held_out for layout in compositions.LAYOUTS)


def test_the_measured_compositions_are_held_out_and_in_words_that_were_learned():
    scenes = compositions.held_out()
    assert len(set(scenes.values())) == len(scenes) == 64 and all(scene.held_out for scene in scenes.values())
    for text, scene in scenes.items():
        assert all(thing in text for thing in scene.things) and (scene.ground == "white" or scene.ground in text)


def test_real_pictures_are_recognised_at_another_size_and_place():
    """Nine tenths as large, moved by two pixels, and with noise."""
    real, generator = compositions.references(), torch.Generator().manual_seed(0)
    for at, recognised in (((1, 2), 60), ((0, 3), 48)):
        found = []
        for picture in real:
            small = F.interpolate(picture.permute(2, 0, 1)[None], size=(29, 29), mode="area")
            moved = F.pad(small, (at[0], 3 - at[0], at[1], 3 - at[1]), mode="replicate")[0].permute(1, 2, 0)
            noisy = moved + 20 * torch.randn(moved.shape, generator=generator)
            found.append(compositions.nearest(noisy.clamp(0, 255).byte().numpy()))
        assert sum(number == own for own, number in enumerate(found)) >= recognised


def write_sheet():
    """Draw the real pictures of the measured compositions from the emoji art."""
    real = Compositions(phrases("emoji")["sprites"], "twemoji", WIDE, 1, pixels)
    rows = torch.cat([real.of(scene) for scene in compositions.held_out().values()]).unflatten(0, (-1, WIDE))
    Image.fromarray(((rows + 1) * 127.5).round().to(torch.uint8).numpy()).save(SHEET, lossless=True)


if __name__ == "__main__":
    write_sheet()
