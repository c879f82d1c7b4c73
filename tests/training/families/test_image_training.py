"""Making image models: what they draw and learn, in which order, their codes and how these look, and what is never learned."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from specviz.models.image.image import janus_config
from specviz.training.families import emoji, image_codebook
from specviz.training.families.image_ar import draw, guided, hidden_states, loss, new_model

GRID = 4


def model(layers=2, seed=0):
    shape = {"width": 16, "inner": 24, "layers": layers, "heads": 2, "codes": 20, "multiplier": (1, 1), "latent": 32}
    codebook = F.normalize(torch.randn(20, 8, generator=torch.Generator().manual_seed(0)), dim=-1)
    return new_model(janus_config(GRID, prompts=30, **shape), codebook, seed)


def prompts_and_codes():
    generator = torch.Generator().manual_seed(1)
    return torch.randint(0, 30, (3, 5), generator=generator), torch.randint(0, 20, (3, 16), generator=generator)


@torch.no_grad()
def logits(net, prompts, codes):
    return net.model.generation_head(hidden_states(net, prompts, codes))


@torch.no_grad()
def test_drawing_with_guidance_draws_from_the_guided_distribution():
    net, prompts = model(), torch.tensor([[1, 7, 9, 2], [1, 4, 4, 2]])
    net.model.generation_head.vision_head.weight.mul_(1e6)  # the likeliest code is all there is
    found = draw(net, prompts, torch.tensor([[1, 0, 0, 2]] * 2), GRID * GRID, 2.0, seed=0)
    for place in range(GRID * GRID):
        before = found[:, :place]
        one, other = (logits(net, words, before)[:, -1] for words in (prompts, torch.tensor([[1, 0, 0, 2]] * 2)))
        assert torch.equal(found[:, place], guided((one, other), 2.0).argmax(-1))


def test_what_is_learned_is_the_true_code_whatever_was_read():
    net, (prompts, codes) = model(), prompts_and_codes()
    net.model.generation_head.vision_head.weight.data.mul_(2000)  # or every code would be as likely as any other
    read = codes.flip(0)
    before = logits(net, prompts, read)[:, prompts.shape[1] - 1 : -1]
    own = F.cross_entropy(before.flatten(0, 1), codes.flatten())
    assert torch.allclose(loss(net, prompts, codes, read), own, atol=1e-3)
    assert abs(float(own - F.cross_entropy(before.flatten(0, 1), read.flatten()))) > 0.01
    assert torch.equal(loss(net, prompts, codes, codes), loss(net, prompts, codes))


def test_held_out_concepts_are_held_out_in_every_style():
    rows = {style: number for number, style in enumerate(emoji.STYLES)}
    concepts = [emoji.Concept(f"1f{number:03x}", "x", (), 3, rows) for number in range(2000)]
    share = sum(one.held_out for one in concepts) / len(concepts)
    assert 0.03 < share < 0.07
    art = emoji.Emoji(tuple(concepts), np.zeros((3, 2, 2, 4), np.uint8))
    learning, kept_out = art.part(False), art.part(True)
    assert len(learning) + len(kept_out) == 2000 and not {one.code for one in learning} & {one.code for one in kept_out}


def test_a_tarball_that_is_another_one_is_set_aside(tmp_path, monkeypatch):
    monkeypatch.setenv("SPECVIZ_CACHE", str(tmp_path))
    folder = tmp_path / "files" / "emoji"
    folder.mkdir(parents=True)
    (folder / emoji.NAMES.file).write_bytes(b"something else")
    with pytest.raises(emoji.ModelUnavailable, match="sha256"):
        emoji.fetch_package(emoji.NAMES)
    assert (folder / (emoji.NAMES.file + ".corrupt")).exists()


def test_without_npm_one_is_told_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setenv("SPECVIZ_CACHE", str(tmp_path))
    monkeypatch.setattr(emoji.shutil, "which", lambda name: None)
    with pytest.raises(emoji.ModelUnavailable, match="install Node.js"):
        emoji.fetch_package(emoji.NAMES)


def test_a_codebook_has_the_fixed_patches_then_real_ones():
    generator = torch.Generator().manual_seed(0)
    centres = 4 * torch.randn(image_codebook.CODES - 2, 12, generator=generator)
    points = (centres[:, None] + 0.01 * torch.randn(len(centres), 3, 12, generator=generator)).flatten(0, 1)
    fixed = torch.stack((torch.full((12,), 40.0), torch.full((12,), -40.0)))
    found = image_codebook.medoids(points, torch.ones(len(points)), fixed)
    assert found.shape == (image_codebook.CODES, 12) and torch.equal(found[:2], fixed)
    assert all(any(torch.equal(code, point) for point in points) for code in found[2:])
    nearest = torch.cdist(points, found).min(1).values
    assert (nearest < 0.5).float().mean() > 0.7


def test_pixels_become_patches_in_reading_order():
    pixels = torch.arange(48.0).view(1, 3, 4, 4)
    rows = emoji.patch_rows(pixels)
    assert rows.shape == (1, 4, 12)
    assert torch.equal(rows[0, 1].view(2, 2, 3), pixels[0, :, :2, 2:].permute(1, 2, 0))


def test_free_prompts_name_the_concept_in_its_own_words():
    concept = emoji.Concept("1f40d", "snake", ("serpent", "zodiac"), 3, {})
    asked = {emoji.free_prompt(concept, "white", np.random.default_rng(seed)) for seed in range(60)}
    known = {"a", "the", "snake", "serpent", "zodiac"}
    assert len(asked) > 10 and all(set(prompt.replace(",", "").split()) <= known for prompt in asked)
    assert any("snake" not in prompt for prompt in asked)
    assert emoji.free_prompt(concept, "blue", np.random.default_rng(0)).endswith(" on blue")
