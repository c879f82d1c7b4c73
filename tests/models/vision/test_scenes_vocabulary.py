"""What the included vision-language model is asked beyond what it learned is said, and its own scenes are not warned of."""

import json

import pytest
from PIL import Image
from safetensors import safe_open

from specviz.models.vision import scenes
from specviz.models.vision.pictures import open_picture
from specviz.paths import WEIGHTS
from specviz.pipeline.runner import run

SCENES = json.loads((scenes.SCENES / "index.json").read_text(encoding="utf-8"))["scenes"]


@pytest.fixture(scope="module")
def words():
    """The model's tokenizer without the model."""
    with safe_open(WEIGHTS / "scenes_vlm.safetensors", "pt") as weights:
        return scenes.tokenizer_from(weights.metadata()["tokenizer"])


@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene["file"])
def test_a_scene_and_its_question_are_not_warned_of(words, scene):
    picture = open_picture((scenes.SCENES / scene["file"]).read_bytes()).image
    assert scenes.warnings("scenes-vlm", words, scene["question"], picture) == ()


@pytest.mark.parametrize(
    ("question", "unknown_words"),
    [
        ("What is the total?", ["total"]),
        ("how many donuts are there", []),
        ("Who wears a hat?", ["Who", "wears"]),
        ("What colour is the background?", []),
        ("Was kostet das?", ["Was", "kostet", "das"]),
    ],
)
def test_words_that_training_never_asked_with_are_named(words, question, unknown_words):
    assert scenes.unknown_words(words, question) == unknown_words


def test_another_picture_is_said_to_be_answered_by_invention(words):
    told = scenes.warnings("scenes-vlm", words, "What is the total?", Image.new("RGB", (64, 64), "white"))
    assert len(told) == 2 and "it leaves out or invents" in told[0] and "“total”" in told[1]


def test_a_picture_of_nothing_known_is_said_to_be_one(words):
    told = scenes.warnings("scenes-vlm", words, "What can you see?", Image.new("RGB", (64, 64), "white"), nothing=True)
    assert told == ("scenes-vlm finds nothing in the picture that it knows, and says so: it knows emoji and plain shapes only.",)
    assert scenes.admits("I see nothing that I know. The background is white.") and not scenes.admits("I see nothing at the top.")


@pytest.mark.model
def test_the_included_model_finds_nothing_in_an_empty_picture_alone(tmp_path):
    Image.new("RGB", (200, 150), "white").save(tmp_path / "empty.png")
    about = {"method": "autoregressive", "prompt": "Describe the picture.", "target": "scenes-vlm", "max_new_tokens": 4}
    (warning,) = run(**about, image=tmp_path / "empty.png").run.warnings
    assert "finds nothing" in warning
    assert run(**about, image=scenes.SCENES / SCENES[0]["file"]).run.warnings == ()
