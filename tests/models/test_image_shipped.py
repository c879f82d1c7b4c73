"""The image models that come with the project: whole, of one piece, small enough, and able to do what their cards say."""

import base64
import io

import numpy as np
import pytest
import torch
from PIL import Image

from specviz.acceptance.relaxed import nearest_codes
from specviz.drafting.networks.weights import read_weights
from specviz.models.image.image import embedding_table, tiles
from specviz.models.image.load import WEIGHTS, code_patches, image_drafter, image_samplers, load_image_model
from specviz.pipeline.runner import run

pytestmark = pytest.mark.model


def test_both_models_mean_the_same_by_a_code_and_by_a_word():
    large, small = (load_image_model(name, "float32", "cpu") for name in ("emoji-64", "emoji-32"))
    assert (large.grid, small.grid) == (16, 8) and large.codes == small.codes >= 256
    assert torch.equal(large.codebook, small.codebook)
    assert large.prompts.rows("red apple, noto style") == small.prompts.rows("red apple, noto style")
    assert large.model.config.text_config.num_hidden_layers >= 12


def test_every_part_fits():
    large = load_image_model("emoji-64", "float32", "cpu")
    drafter, samplers = image_drafter(large), image_samplers(large)
    assert drafter.config.vocab_size == large.first_code + large.codes
    coarse = torch.zeros(8, 8, dtype=torch.long)
    assert samplers.up(coarse).shape == (16, 16) and torch.equal(samplers.up(coarse[:3]), samplers.up(coarse)[:6])
    names = ("image_vq", "image_ar", "image_ar_small", "image_drafter", "image_samplers", "image_score", "image_patches")
    for name in (*names, "image_codebook", "image_sprites"):
        assert {"recipe", "data", "licence", "spent", "metrics", "commit"} <= read_weights(WEIGHTS / f"{name}.safetensors")[
            1
        ].keys()


def test_a_code_s_patch_is_what_it_looks_like_in_pictures():
    """Laid side by side, the patches of a picture's codes are nearer to the decoded picture than the codes' colours alone."""
    large = load_image_model("emoji-64", "float32", "cpu")
    patches = code_patches(large)
    assert patches.shape == (large.codes, 4, 4, 3)
    codes = _codes(large, _round_face())
    decoded = torch.from_numpy(large.picture(codes.tolist())).float() / 127.5 - 1

    def error(cells):
        laid = cells[codes].view(16, 16, 4, 4, 3).transpose(1, 2).reshape(64, 64, 3)
        return float((laid - decoded).square().mean().sqrt())

    flat = patches.mean((1, 2), keepdim=True).expand_as(patches)
    assert error(patches) < error(flat) < 0.8 * error(tiles(large))


def test_words_make_the_next_code_likelier_than_probability_and_other_words_change_it():
    """One code after the other of a plain yellow disc: the model must be less surprised than a uniform guess is, and expect
    something else when it was asked for something else or for nothing."""
    large = load_image_model("emoji-64", "float32", "cpu")
    rows, others = (large.prompts.rows(f"{one}, noto style") for one in ("grinning face", "broccoli"))
    drawn = _round_face()
    with torch.inference_mode():
        codes = _codes(large, drawn)
        asked, other, nothing = (
            _logits(large, words, codes) for words in (rows.conditional, others.conditional, rows.unconditional)
        )
    assert torch.nn.functional.cross_entropy(asked, codes) < 0.7 * np.log(large.codes)
    for changed in (other, nothing):
        apart = 0.5 * (asked.softmax(-1) - changed.softmax(-1)).abs().sum(-1)
        assert apart.mean() > 0.05
    shown = large.picture(codes.tolist()).astype(float)
    assert np.abs(shown - drawn).mean() < 20


def test_the_nearest_latent_codes_of_a_sprite_look_nearly_the_same():
    large = load_image_model("sprites-32", "float32", "cpu")
    near = nearest_codes(large.codebook, 3)
    apart = (large.codebook[:, None] - large.codebook[near]).square().mean(-1).sqrt() / 2
    assert apart.median() < 0.12, "of the range from black to white"
    assert torch.equal(large.patches[0], torch.ones(2, 2, 3)), "white is a code"


@pytest.mark.parametrize(("words", "red"), [("red heart", True), ("light blue heart", False)])
def test_a_drawn_heart_has_its_colour_on_white(words, red):
    trace = run(method="speculative_jacobi", prompt=f"{words}, twemoji style", target="sprites-32", temperature=1.0, seed=0)
    with Image.open(io.BytesIO(base64.b64decode(trace.end.picture))) as picture:
        pixels = np.asarray(picture.convert("RGB")).astype(int)
    assert pixels.shape == (32, 32, 3) and (pixels[-1, [0, -1]] > 240).all()
    middle = pixels[10:20, 10:22].reshape(-1, 3).mean(0)
    assert (middle[0] - middle[2] > 60) if red else (middle[2] - middle[0] > 60)


def _codes(large, picture):
    pixels = torch.from_numpy(picture).permute(2, 0, 1)[None].float() / 127.5 - 1
    return large.model.model.vqmodel.encode(pixels, return_dict=True).image_tokens.view(-1)


def _logits(large, words, codes):
    """Of each code after these words and the codes before it, [code, code]."""
    ids = torch.cat((torch.tensor(words), codes + large.first_code))
    hidden = large.model.model.language_model(
        inputs_embeds=embedding_table(large.model, large.first_code)[ids][None]
    ).last_hidden_state
    return large.model.model.generation_head(hidden[0, len(words) - 1 : -1])


def _round_face():
    y, x = np.mgrid[:64, :64] - 31.5
    picture = np.full((64, 64, 3), 255, np.uint8)
    picture[np.hypot(x, y) < 29] = (252, 200, 40)
    picture[(np.hypot(x - 10, y + 8) < 4) | (np.hypot(x + 10, y + 8) < 4)] = (90, 50, 20)
    picture[(np.abs(x) < 14) & (np.abs(y - 12) < 3)] = (90, 50, 20)
    return picture
