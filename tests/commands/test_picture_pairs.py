"""Pairs that read pictures, as a user names them: folders on disk, a picture, and what `run` and `inspect` make of them."""

import json

import pytest
import transformers as tf
from PIL import Image

from specviz.__main__ import main
from specviz.drafting.networks.eagle_head import PublishedEagleHead
from specviz.drafting.networks.head_config import HeadConfig, HeadConventions
from specviz.models.heads.head_writer import write_head
from tests.support.fakes.commands import printed
from tests.support.referee.filled import weight
from tests.support.tiny.vision_folders import qwen_folder, smolvlm_folder, text_folder, tokenizer_with

ROPE = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 2, 2]}


@pytest.fixture
def picture(tmp_path, monkeypatch):
    monkeypatch.setenv("SPECVIZ_CACHE", str(tmp_path / "cache"))
    image = Image.new("RGB", (48, 32), (240, 240, 240))
    image.paste((200, 30, 30), (4, 4, 24, 20))
    image.save(tmp_path / "scene.png")
    return tmp_path / "scene.png"


def head_for(folder, target, layout):
    """A random EAGLE-3 head for the Qwen2.5-VL in ``target``."""
    model = tf.Qwen2_5_VLForConditionalGeneration.from_pretrained(target)
    embedding = model.get_input_embeddings().weight.detach()
    config = HeadConfig(len(embedding), 48, 48, 4, 2, 12, 40, 1, True, HeadConventions((2, 3, 4)))
    tensors = {name: weight(name, shape) for name, shape in config.shapes().items()}
    write_head(PublishedEagleHead(config, tensors, embedding, embedding, None), folder, layout, "someone/tiny")
    said = json.loads((folder / "config.json").read_text())
    if layout == "speculators":
        said["transformer_layer_config"]["rope_parameters"] = ROPE
    else:
        said |= {"rope_scaling": {**ROPE, "type": "mrope"}, "rope_theta": 1e4}
        said["rope_scaling"].pop("rope_type")
    (folder / "config.json").write_text(json.dumps(said))
    return folder


def agree(capsys, asked, drafting):
    """Run drafted and alone: the same text of 40 tokens, several of them in a pass. Returns what the drafted run used."""
    told = [*asked, "--prompt", "what is it", "--dtype", "float64", "--max-new-tokens", "40", "--method"]
    drafted, alone = (printed(capsys, "run", *told, *method) for method in (drafting, ["autoregressive"]))
    assert drafted["output_ids"] == alone["output_ids"] and len(alone["output_ids"]) == 40
    assert drafted["metrics"]["verified"] > drafted["metrics"]["passes"]
    return drafted["draft"]


@pytest.mark.spread(1)
@pytest.mark.parametrize("layout", ["flat", "speculators"])
def test_qwen_drafts_with_published_heads(tmp_path, picture, layout, capsys):
    target = qwen_folder(tmp_path / "target")
    head = head_for(tmp_path / "head", target, layout)
    drafting = ["eagle3", "--draft", str(head), "--param", "depth=3", "--param", "nodes=12"]
    assert agree(capsys, ["--target", str(target), "--image", str(picture)], drafting) == "eagle3 with visual rows"


def test_without_a_named_head_the_reason_is_told(tmp_path, picture, capsys):
    target = qwen_folder(tmp_path / "target")
    asked = ["run", "--method", "eagle3", "--target", str(target), "--image", str(picture), "--prompt", "what is it"]
    assert main(asked) != 0
    assert "Name heads published for it as the draft" in capsys.readouterr().err


@pytest.mark.slow
def test_a_head_for_pictures_is_inspected_along_answers_about_one(tmp_path, picture, capsys):
    target = qwen_folder(tmp_path / "target")
    head = head_for(tmp_path / "head", target, "flat")
    asked = ["inspect", str(head), "--target", str(target), "--tokens", "24", "--depth", "3"]
    assert main([*asked, "--image", str(picture), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    readings = {one["reading"] for one in found["readings"]}
    assert readings >= {"the picture's own embeddings at its positions", "one position per token", "rotary rates interleaved"}
    assert found["conventions"]["sections"] == [2, 2, 2] and found["loaded"]["places"] > 60
    assert main(asked) == 2
    assert "There is no picture" in capsys.readouterr().err


@pytest.mark.slow
def test_smolvlm2_drafts_with_a_language_model_of_its_words(tmp_path, picture, capsys):
    target, draft = smolvlm_folder(tmp_path / "target"), text_folder(tmp_path / "draft")
    drafting = ["language_only", "--draft", str(draft)]
    assert agree(capsys, ["--target", str(target), "--image", str(picture)], drafting) == str(draft)


def test_a_language_model_of_other_words_is_refused(tmp_path, picture, capsys):
    other = text_folder(tmp_path / "draft", tokenizer=tokenizer_with(["<other>"]))
    asked = ["run", "--target", str(smolvlm_folder(tmp_path / "target")), "--image", str(picture), "--prompt", "what is it"]
    assert main([*asked, "--method", "language_only", "--draft", str(other)]) == 2
    assert "tokenizer" in capsys.readouterr().err


def test_tiles_of_a_picture_are_numbered_and_the_whole_comes_last(tmp_path):
    from specviz.models.vision.vision_language import load_vision_language

    loaded = load_vision_language(str(smolvlm_folder(tmp_path / "target")), "float32", "cpu")
    asked = loaded.read(Image.new("RGB", (64, 32), (10, 200, 30)), "what is it")
    written = loaded.tokenizer.decode(asked.ids).replace("<image>" * 4, "####")
    around = "<fake_token_around_image>"
    tiles = "".join(f"{around}<row_1_col_{column}>####" for column in (1, 2))
    assert written == f"<|user|>{tiles}\n\n{around}<global-img>####{around}what is it<|assistant|>"
    assert len(asked.visual) == len(asked.boxes) == 12 and asked.boxes[0] == (0.0, 0.0, 0.25, 0.5)
