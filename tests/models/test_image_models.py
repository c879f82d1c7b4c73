"""Image models: prompts become rows, codes become pictures, and small networks fit only what they were trained for."""

import json
import os
from dataclasses import replace

import numpy as np
import pytest
import torch

from specviz.drafting.networks.weights import write_weights
from specviz.errors import BadInput, ModelUnavailable
from specviz.models.image import image, load
from specviz.models.image.prompts import PICTURE, PROMPT_TOKENS
from tests.support.tiny.images import tiny_image, tiny_pair, tiny_prompts, tiny_samplers


def test_both_rows_are_equally_long_and_differ_in_the_words():
    rows = tiny_prompts().rows("a cat")
    assert len(rows.conditional) == len(rows.unconditional) == PROMPT_TOKENS
    assert rows.conditional[-1] == rows.unconditional[-1] == PICTURE
    assert rows.conditional != rows.unconditional == tiny_prompts().rows("dog").unconditional
    assert rows.unread == ""


def test_words_nobody_ever_wrote_can_be_read_and_what_does_not_fit_is_named():
    assert tiny_prompts().rows("žluťoučký 🦤").unread
    rows = tiny_prompts().rows("abcdefghijklmn" + "opq")
    assert "abcdefghijklmn".endswith(rows.unread) or "abcdefghijklmnopq".endswith(rows.unread)
    assert len(rows.conditional) == PROMPT_TOKENS and rows.unread


def test_endless_prompts_are_refused():
    with pytest.raises(BadInput):
        tiny_prompts().rows("x" * 10_000)


def test_a_half_drawn_picture_shows_what_is_there_and_grey():
    loaded = tiny_image(dtype=torch.float32)
    shown = loaded.picture([1] * 7)
    assert shown.shape == (12, 12, 3) and shown.dtype == np.uint8
    assert (shown[4:] == image.MISSING).all() and (shown[2:4, 2:] == image.MISSING).all()
    assert not (shown[:2] == image.MISSING).all()
    with pytest.raises(BadInput):
        loaded.picture([loaded.codes])
    with pytest.raises(BadInput):
        loaded.picture([0] * 37)


def test_samplers_never_look_at_rows_below():
    large, small = tiny_pair()
    net = tiny_samplers(large)
    coarse = torch.randint(0, small.codes, (3, 3), generator=torch.Generator().manual_seed(0))
    whole = net.up(coarse)
    assert whole.shape == (6, 6)
    for rows in (1, 2):
        assert torch.equal(net.up(coarse[:rows]), whole[: 2 * rows])
        assert torch.equal(net.down(whole[: 2 * rows]), net.down(whole)[:rows])


def test_names_that_do_not_exist_and_missing_weights_say_what_to_do(tmp_path, monkeypatch):
    with pytest.raises(ModelUnavailable, match="emoji-64"):
        load.load_image_model("no-such-model")
    monkeypatch.setattr(load, "WEIGHTS", tmp_path)
    with pytest.raises(ModelUnavailable, match="specviz train image_ar"):
        load.load_image_model("emoji-64")
    with pytest.raises(ModelUnavailable, match="specviz train image_drafter"):
        load.image_drafter(tiny_image())


def _shipped(folder, codebook="same"):
    """A tiny model written as ours are, to be read as "emoji-64"."""
    loaded = tiny_image(dtype=torch.float32)
    config = json.dumps({name: part.to_dict() for name, part in _parts(loaded.model.config).items()} | {"image_token_id": 0})
    tensors = dict(loaded.model.named_parameters())
    pixels = {name: value for name, value in tensors.items() if name.startswith("model.vqmodel.")}
    rest = {name: value for name, value in tensors.items() if not name.startswith(("model.vqmodel.", *image.UNTRAINED))}
    about = {
        "config": config,
        "prompts": loaded.prompts.description,
        "guidance": "2.5",
        "digest": "d",
        "codebook": codebook,
    }
    write_weights(folder / "image_vq.safetensors", pixels, {"codebook": "same"})
    write_weights(folder / "image_ar.safetensors", rest, about)
    return loaded


def _parts(config):
    return {"text_config": config.text_config, "vision_config": config.vision_config, "vq_config": config.vq_config}


def test_files_that_ship_load_into_the_standard_class(tmp_path, monkeypatch):
    monkeypatch.setattr(load, "WEIGHTS", tmp_path)
    written = _shipped(tmp_path)
    loaded = load.load_image_model("emoji-64", "float32", "cpu")
    assert type(loaded.model).__name__ == "JanusForConditionalGeneration" and not loaded.model.training
    assert (loaded.grid, loaded.codes, loaded.guidance) == (written.grid, written.codes, 2.5)
    assert loaded.prompts.rows("a cat") == written.prompts.rows("a cat")
    torch.testing.assert_close(loaded.codebook.norm(dim=-1), torch.ones(written.codes))
    torch.testing.assert_close(loaded.codebook, written.codebook, atol=0.02, rtol=0.1)
    assert load.load_image_model("emoji-64", "float32", "cpu") is loaded


def test_a_model_of_other_codes_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(load, "WEIGHTS", tmp_path)
    _shipped(tmp_path, codebook="another")
    with pytest.raises(ModelUnavailable, match="image_vq.safetensors"):
        load.load_image_model("emoji-64", "float32", "cpu")


def test_samplers_are_read_as_they_were_written(tmp_path):
    large, _ = tiny_pair()
    net = tiny_samplers(large)
    torch.nn.init.normal_(net.finer.leave.weight)
    net.save(tmp_path / "s.safetensors", {})
    again = type(net).load(tmp_path / "s.safetensors", (large.codebook.float(),), torch.float32, torch.device("cpu"))
    coarse = torch.arange(9).view(3, 3)
    assert (again.up(coarse) == net.up(coarse)).float().mean() > 0.9
    with pytest.raises(ModelUnavailable, match="codes of dimension 8"):
        type(net).load(tmp_path / "s.safetensors", (torch.eye(4),), torch.float32, torch.device("cpu"))


def test_patches_are_of_the_codebook_that_they_were_counted_on_and_no_other_has_any(tmp_path, monkeypatch):
    monkeypatch.setattr(load, "WEIGHTS", tmp_path)
    loaded = _shipped(tmp_path)
    assert load.code_patches(loaded) is None
    shipped = replace(loaded, name="emoji-64", codebook_digest="same")
    with pytest.raises(ModelUnavailable, match="specviz train image_patches"):
        load.code_patches(shipped)
    for codebook in ("same", "another"):
        write_weights(tmp_path / "image_patches.safetensors", {"patches": torch.zeros(24, 12)}, {"codebook": codebook})
        if codebook == "same":
            assert load.code_patches(shipped).shape == (24, 2, 2, 3)
    assert load.code_patches(shipped) is None


def _sprites(folder):
    """A tiny model whose codes are patches, written as ours are, to be read as "sprites-32"."""
    loaded, patches = _shipped(folder), torch.rand(24, 2, 2, 3, generator=torch.Generator().manual_seed(0)) * 2 - 1
    os.replace(folder / "image_ar.safetensors", folder / "image_sprites.safetensors")
    write_weights(folder / "image_codebook.safetensors", {"patches": patches}, {"codebook": "same"})
    return loaded, patches.half().float()


def test_a_sprite_is_its_codes_patches_side_by_side(tmp_path, monkeypatch):
    monkeypatch.setattr(load, "WEIGHTS", tmp_path)
    written, patches = _sprites(tmp_path)
    loaded = load.load_image_model("sprites-32", "float32", "cpu")
    assert (loaded.side, loaded.codes) == (2 * written.grid, 24)
    assert torch.equal(loaded.codebook, patches.flatten(1)) and torch.equal(load.code_patches(loaded), patches)
    codes = torch.arange(loaded.cells) % 24
    pixels = loaded.pixels(codes)
    for cell in (0, 1, loaded.grid, loaded.cells - 1):
        row, column = (2 * place for place in divmod(cell, loaded.grid))
        assert torch.equal(pixels[row : row + 2, column : column + 2], patches[codes[cell]])
    with pytest.raises(ModelUnavailable, match="No drafter for sprites-32 .* specviz train image_sprites_drafter"):
        load.image_drafter(loaded)
