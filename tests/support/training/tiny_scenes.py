"""A tiny model of scenes, to learn or with opinions."""

from __future__ import annotations

from unittest.mock import patch

import numpy as np
import torch

from specviz.training.families import scenes_render, scenes_unknown
from specviz.training.families.scenes_vlm import Learner, new_model
from specviz.training.registry import recipes


def tiny_scenes(layers: int, vocab: int) -> Learner:
    """A model drawn anew, 32 wide, with one layer that sees; its picture is as large as the shipped one's."""
    shape, own = recipes()["scenes_vlm"].shape, {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 2}
    text = {**shape["text"], **own, "num_hidden_layers": layers}
    vision = {**shape["vision"], **own, "num_hidden_layers": 1}
    return new_model({**shape, "text": text, "vision": vision}, vocab)


def noisy_renderer(device: torch.device = torch.device("cpu")) -> scenes_render.Renderer:
    """A renderer with random art, and noise for pictures of nothing known."""
    generator = np.random.default_rng(0)
    art = generator.integers(0, 256, (220, 64, 64, 4), dtype=np.uint8)
    unknown = generator.integers(0, 256, (4, 128, 128, 3), dtype=np.uint8)
    with patch.object(scenes_render, "art", lambda: art), patch.object(scenes_unknown, "pictures", lambda: unknown):
        return scenes_render.Renderer(device)
