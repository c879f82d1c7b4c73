"""From a name to a model that reads pictures: our own file, a folder with a processor, and what is refused."""

import pytest
import torch
import transformers as tf
from PIL import Image

from specviz.errors import ModelUnavailable
from specviz.models.hub.packed_model import write_model
from specviz.models.vision import scenes, vision_language
from specviz.models.vision.picture_question import pad_to_square
from tests.support.tiny.scenes import tiny_scenes, tiny_tokenizer

QUESTION = "what is it"


@pytest.fixture
def loaded(tmp_path):
    """Our own model, from its one file."""
    path = tmp_path / "scenes_vlm.safetensors"
    write_model(path, tiny_scenes(), tiny_tokenizer().backend_tokenizer, {"recipe": "none"})
    return vision_language.load_scenes(path, torch.float32, torch.device("cpu"))


def test_our_own_file_gives_back_the_model_it_was_made_of(loaded):
    asked = loaded.read(Image.new("RGB", (40, 20), (10, 200, 30)), QUESTION)
    ids = torch.tensor([asked.ids])
    found = loaded.model(input_ids=ids, **asked.inputs).logits
    meant = tiny_scenes()(input_ids=ids, **asked.inputs).logits
    assert torch.allclose(found, meant, atol=0.05 * float(meant.std()))
    assert loaded.eos_ids == {0} and loaded.image_token_id == 3
    assert loaded.model.lm_head.weight is loaded.model.get_input_embeddings().weight


def test_a_question_becomes_ids_pixels_and_places(loaded):
    asked = loaded.read(Image.new("L", (64, 64), 90), QUESTION)
    assert asked.visual == asked.hidden == tuple(range(1, 17)) and asked.grid == (4, 4)
    assert "".join(loaded.text.pieces([], [asked.ids[place] for place in asked.text])) == f"<|user|>{QUESTION}<|assistant|>"
    assert asked.inputs["pixel_values"].shape == (1, 1, 3, 32, 32)
    assert len(asked.boxes) == 16 and asked.boxes[-1] == (0.75, 0.75, 1.0, 1.0)


def test_a_typed_picture_token_is_only_text(loaded):
    asked = loaded.read(Image.new("RGB", (32, 32)), "a <image> and <|end|> here")
    assert len(asked.visual) == 16 and 0 not in asked.ids


def test_a_picture_of_another_shape_is_padded_with_white_and_transparency_is_white():
    wide = Image.new("RGBA", (40, 10), (255, 0, 0, 255))
    wide.paste((0, 0, 0, 0), (0, 0, 20, 10))
    seen = pad_to_square(wide, 32)
    assert seen.size == (32, 32) and seen.mode == "RGB"
    assert seen.getpixel((4, 16)) == seen.getpixel((16, 2)) == (255, 255, 255) and seen.getpixel((28, 16)) == (
        255,
        0,
        0,
    )


def test_missing_and_foreign_files_say_what_to_do(tmp_path):
    with pytest.raises(ModelUnavailable, match="specviz train scenes_vlm"):
        scenes.load(tmp_path / "scenes_vlm.safetensors")
    with pytest.raises(ModelUnavailable, match="reads no pictures"):
        vision_language.load_vision_language("smollm2-135m-instruct")


def llava_folder(folder):
    """A repository as others publish them: configuration, weights, tokenizer, picture processor, template."""
    vision = tf.CLIPVisionConfig(
        hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2, image_size=32, patch_size=8
    )
    text = tf.LlamaConfig(
        vocab_size=260, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, eos_token_id=0, bos_token_id=None, pad_token_id=0,
    )  # fmt: skip
    config = tf.LlavaConfig(vision_config=vision, text_config=text, image_token_id=3)
    tf.LlavaForConditionalGeneration(config).save_pretrained(folder)
    sized = {"size": {"shortest_edge": 32}, "crop_size": {"height": 32, "width": 32}}
    tf.LlavaProcessor(
        image_processor=tf.CLIPImageProcessor(**sized), tokenizer=tiny_tokenizer(), patch_size=8,
        vision_feature_select_strategy="default", num_additional_image_tokens=1, chat_template=scenes.TEMPLATE,
        image_token="<image>",
    ).save_pretrained(folder)  # fmt: skip
    return folder


def test_a_folder_with_a_processor_is_read_through_it(tmp_path):
    loaded = vision_language.load_vision_language(str(llava_folder(tmp_path)), "float32", "cpu")
    asked = loaded.read(Image.new("RGB", (64, 32), (10, 200, 30)), QUESTION)
    assert len(asked.visual) == 16 and asked.grid == (4, 4)
    assert asked.boxes[0][0] == 0.25 and asked.boxes[-1][2] == 0.75  # the middle square alone is looked at
    with torch.no_grad():
        logits = loaded.model(input_ids=torch.tensor([asked.ids]), **asked.inputs).logits
    assert torch.isfinite(logits).all()
