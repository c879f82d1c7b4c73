"""A project whose shipped hybrid and its drafter are tiny random ones, for tests that ask for them by name."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer

from specviz.models import cache
from specviz.models.cache import ModelCache
from specviz.models.heads import heads
from specviz.models.hub import prepare
from specviz.models.hub.packed_model import TEACHER_KEY, named, write_model
from specviz.training.families.hybrid import END, START, small_tokenizer
from tests.support.tiny.hybrid import hybrid, pure

TEXTS = [f"{START}user\nWhy is the sky blue?{END}\n{START}assistant\nBecause light scatters.{END}\n"] * 4


def spell() -> Tokenizer:
    return small_tokenizer(TEXTS, 280)


def put(weights: Path, name: str, seed: int = 0) -> None:
    """Write ``hybrid``, or ``hybrid_draft`` as one that learned from the hybrid that is there."""
    size = spell().get_vocab_size()
    model = hybrid(seed, torch.float32, vocab=size) if name == "hybrid" else pure(seed, vocab=size)
    model.config.eos_token_id, model.config.bos_token_id = 1, 0
    card = {} if name == "hybrid" else {TEACHER_KEY: named(weights / "hybrid.safetensors")}
    write_model(weights / f"{name}.safetensors", model, spell(), {"recipe": "a test", **card})


def fill(folder: Path) -> Path:
    """``folder`` with the weights of both models in it, beside all others that ship."""
    weights = folder / "assets" / "weights"
    for name in ("hybrid", "hybrid_draft"):
        put(weights, name)
    for file in heads.WEIGHTS.glob("*.safetensors"):
        if not (weights / file.name).exists():
            (weights / file.name).symlink_to(file)
    return folder


def stock(folder: Path, patch: pytest.MonkeyPatch) -> Path:
    """Make a filled ``folder`` the project's; the folder with the weights."""
    weights = folder / "assets" / "weights"
    patch.setattr(prepare, "BASE", folder)
    patch.setattr(heads, "WEIGHTS", weights)
    patch.setenv("SPECVIZ_CACHE", str(folder / "cache"))
    # Loaded models are kept by name: what this test loads must not be there for the next one, nor the next one's for it.
    patch.setattr(cache, "MODELS", ModelCache())
    return weights
