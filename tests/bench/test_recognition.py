"""What counts as recognised in a description, and what the included vision-language model recognises at least."""

import json
from collections import Counter
from statistics import mean

import numpy as np
import pytest
import torch

from specviz.bench.recognition import listed, shares
from specviz.models.vision import scenes
from specviz.models.vision.pictures import open_picture
from specviz.paths import SCENES, WEIGHTS
from specviz.training.families.scenes_vlm import Learner, answers
from specviz.training.families.scenes_words import DESCRIBE, Writer


def test_things_are_listed_once_each_whatever_else_is_said_of_them():
    said = (
        "The picture shows two things on a white background. At the top there is a cat. A red circle is on the left. "
        "The cat is right of the circle. One of the things is a shape and one is not. The largest thing is the cat."
    )
    assert listed(said) == Counter({"cat": 1, "circle": 1})


@pytest.mark.model
def test_every_picture_of_the_gallery_is_described_right():
    gallery = json.loads((SCENES / "index.json").read_text("utf-8"))["scenes"]
    model, tokenizer = scenes.load(WEIGHTS / "scenes_vlm.safetensors")
    learner, writer = Learner(model), Writer(tokenizer)
    pictures = [np.asarray(open_picture((SCENES / one["file"]).read_bytes()).image.convert("RGB")) for one in gallery]
    with torch.no_grad():
        visual = learner.tokens_of(pictures)
    said = answers(learner, visual, [writer.ids(DESCRIBE[0])] * len(pictures), writer, 200)
    for one, ids in zip(gallery, said, strict=True):
        assert listed(tokenizer.decode(list(ids), clean_up_tokenization_spaces=False)) == Counter(one["names"]), one["file"]


@pytest.mark.model
def test_the_included_model_recognises_what_other_programs_draw():
    found = {column: mean(share for values in kinds.values() for share in values) for column, kinds in shares(4).items()}
    assert found["names"] > 0.85 and found["colours"] > 0.85 and found["counts"] > 0.8 and found["left or right"] > 0.8
    assert found["unknown admitted"] > 0.8 and found["known denied"] < 0.1
