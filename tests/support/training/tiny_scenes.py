"""A tiny model of scenes, to learn or with opinions."""

from __future__ import annotations

from specviz.training.families.scenes_vlm import Learner, new_model
from specviz.training.registry import recipes


def tiny_scenes(layers: int, vocab: int) -> Learner:
    """A model drawn anew, 32 wide, with one layer that sees; its picture is as large as the shipped one's."""
    shape, own = recipes()["scenes_vlm"].shape, {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 2}
    text = {**shape["text"], **own, "num_hidden_layers": layers}
    vision = {**shape["vision"], **own, "num_hidden_layers": 1}
    return new_model({**shape, "text": text, "vision": vision}, vocab)
