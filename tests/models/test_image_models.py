"""Image models: prompts become rows, codes become pictures, and small networks fit only what they were trained for."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from specviz.errors import BadInput, ModelUnavailable
from specviz.models import image, image_parts
from specviz.models.prompts import PICTURE, PROMPT_TOKENS
from tests.tiny_images import tiny_image, tiny_image_drafter, tiny_pair, tiny_prompts, tiny_samplers


def test_both_rows_are_equally_long_and_differ_in_the_words() -> None:
    rows = tiny_prompts().rows("a cat")
    assert len(rows.conditional) == len(rows.unconditional) == PROMPT_TOKENS
    assert rows.conditional[-1] == rows.unconditional[-1] == PICTURE
    assert rows.conditional != rows.unconditional == tiny_prompts().rows("dog").unconditional
    assert rows.unread == ""


def test_words_nobody_ever_wrote_can_be_read_and_what_does_not_fit_is_named() -> None:
    assert tiny_prompts().rows("žluťoučký 🦤").unread
    rows = tiny_prompts().rows("abcdefghijklmn" + "opq")
    assert "abcdefghijklmn".endswith(rows.unread) or "abcdefghijklmnopq".endswith(rows.unread)
    assert len(rows.conditional) == PROMPT_TOKENS and rows.unread


@pytest.mark.parametrize("prompt", ["", "  \n", "x" * 10_000])
def test_empty_and_endless_prompts_are_refused(prompt: str) -> None:
    with pytest.raises(BadInput):
        tiny_prompts().rows(prompt)


def test_ids_of_prompts_and_codes_share_one_table() -> None:
    loaded = tiny_image()
    ids = torch.tensor([3, loaded.first_code, loaded.first_code + loaded.codes - 1])
    found = loaded.embed(ids)
    torch.testing.assert_close(found[0], loaded.model.get_input_embeddings().weight[3])
    torch.testing.assert_close(
        found[2], loaded.model.prepare_embeddings_for_image_generation(torch.tensor(loaded.codes - 1))
    )


def test_a_half_drawn_picture_shows_what_is_there_and_grey() -> None:
    loaded = tiny_image(dtype=torch.float32)
    shown = loaded.picture([1] * 7)
    assert shown.shape == (12, 12, 3) and shown.dtype == np.uint8
    assert (shown[4:] == image.MISSING).all() and (shown[2:4, 2:] == image.MISSING).all()
    assert not (shown[:2] == image.MISSING).all()
    with pytest.raises(BadInput):
        loaded.picture([loaded.codes])
    with pytest.raises(BadInput):
        loaded.picture([0] * 37)


def test_the_codebook_has_rows_of_length_one() -> None:
    torch.testing.assert_close(tiny_image().codebook.norm(dim=-1), torch.ones(24))


def test_samplers_never_look_at_rows_below() -> None:
    large, small = tiny_pair()
    net = tiny_samplers(large)
    coarse = torch.randint(0, small.codes, (3, 3), generator=torch.Generator().manual_seed(0))
    whole = net.up(coarse)
    assert whole.shape == (6, 6)
    for rows in (1, 2):
        assert torch.equal(net.up(coarse[:rows]), whole[: 2 * rows])
        assert torch.equal(net.down(whole[: 2 * rows]), net.down(whole)[:rows])


def test_the_drafter_speaks_in_the_ids_of_a_run() -> None:
    loaded = tiny_image()
    net = tiny_image_drafter(loaded)
    assert net.draft_ids is not None and net.draft_ids.tolist() == list(range(loaded.first_code, net.config.vocab_size))
    assert net.head.shape == (loaded.codes, net.config.hidden)


def test_names_that_do_not_exist_and_missing_weights_say_what_to_do(tmp_path, monkeypatch) -> None:
    with pytest.raises(ModelUnavailable, match="emoji-64"):
        image.load_image_model("no-such-model")
    monkeypatch.setattr(image, "WEIGHTS", tmp_path)
    with pytest.raises(ModelUnavailable, match="specviz train image_ar"):
        image.load_image_model("emoji-64")
    with pytest.raises(ModelUnavailable, match="specviz train image_drafter"):
        image_parts.image_drafter(tiny_image())
