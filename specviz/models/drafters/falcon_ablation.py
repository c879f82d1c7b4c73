"""Falcon ablation: the block drafter trained without glancing, measured where it was trained and not shipped."""

from __future__ import annotations

from pathlib import Path

from specviz.drafters.networks.block_net import BlockNet, load
from specviz.errors import ModelUnavailable
from specviz.models.hub.cache_dir import cache_folder
from specviz.targets.text import TextTarget


def plain_file() -> Path:
    """Where training leaves it."""
    return cache_folder() / "training" / "falcon_plain_weights.safetensors"


def load_plain(target: TextTarget) -> BlockNet:
    """It, for this target. Raises ModelUnavailable when it was not trained here."""
    if not plain_file().is_file():
        raise ModelUnavailable(
            "The block drafter without glancing is measured, not shipped: make it with `python -m specviz train falcon_plain`."
        )
    model = target.model
    shared = (model.get_input_embeddings().weight, model.get_output_embeddings().weight)
    return load(plain_file(), *shared, target.dtype, target.device)
