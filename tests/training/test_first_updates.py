"""A recipe's first updates from one seed, on a tiny target: the losses that were written down once still come out.

``python -m tests.training.test_first_updates`` from the root writes them down anew, where a recipe is meant to change.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from specviz.models.image.image_shape import SHIPPED_VQ, TextShape
from specviz.models.image.prompts import WordPrompts
from specviz.training.common import data, parallel
from specviz.training.common.loop import TrainState
from specviz.training.common.target_assets import TargetAssets
from specviz.training.draft_model import small_draft
from specviz.training.families import emoji, image_ar, image_codes, image_training, scenes_vlm
from specviz.training.families.scenes_batches import train_tokenizer
from specviz.training.families.scenes_net import Shape
from specviz.training.feature import medusa, recipes
from specviz.training.registry import Job
from specviz.training.registry import recipes as known_recipes
from tests.support.tiny.text import tiny_llama
from tests.support.training.tiny_training import MARKERS, VOCAB, dialogues

WRITTEN_DOWN = Path(__file__).with_name("first_updates.json")
UPDATES = 50
TEXT = {"eagle3": recipes, "medusa": medusa, "small_draft": small_draft}
SCENES = Shape(width=32, layers=2, heads=2, inner=48, vision_width=32, vision_layers=1, vision_heads=2, vision_inner=48)


class _Prepared(Exception):
    """Thrown where a recipe would begin to train."""


def _prepared(make: Callable[[Job], None], module: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> TrainState:
    """The state that ``make`` hands to the loop."""
    states: list[TrainState] = []

    def take(state: TrainState, *_: Any, **__: Any) -> None:
        states.append(state)
        raise _Prepared

    monkeypatch.setattr(module, "train", take)
    with pytest.raises(_Prepared):
        make(Job(known_recipes()[name], "cpu", 1.0, False))
    return states[0]


def _text(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> TrainState:
    model = tiny_llama(dtype=torch.float32, vocab=VOCAB)
    target = SimpleNamespace(model=model, name="tiny", device=torch.device("cpu"), tokenizer_hash="")
    assets = TargetAssets(target, model.get_input_embeddings().weight.detach(), MARKERS, ())  # type: ignore[arg-type]
    monkeypatch.setattr(data, "find", lambda names: [])
    monkeypatch.setattr(data, "read_all", lambda files: dialogues(120))
    monkeypatch.setattr(recipes, "target_assets", lambda device: assets)
    monkeypatch.setattr(recipes, "cores", lambda: 1)
    return _prepared(TEXT[name].make, TEXT[name], name, monkeypatch)


def _scenes(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> TrainState:
    small = {"batch": 2, "seeing_batch": 2, "part": 2, "questions": 2, "reading": 1, "measured": 1, "workers": 1}
    monkeypatch.setattr(scenes_vlm, "Shape", lambda: SCENES)
    monkeypatch.setattr(scenes_vlm, "train_tokenizer", lambda: train_tokenizer(60, 600))
    monkeypatch.setattr(scenes_vlm, "settings_for", lambda device, job: scenes_vlm.Settings(**small))
    return _prepared(scenes_vlm.make, scenes_vlm, name, monkeypatch)


def _emoji(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> TrainState:
    """Forty pictures of 4 x 4 random codes, each with a name of its own."""
    generator = np.random.default_rng(0)
    rows = [{style: 3 * at + place for place, style in enumerate(emoji.STYLES)} for at in range(40)]
    concepts = tuple(emoji.Concept(f"{at:x}", f"thing {at}", (f"tag {at % 7}", "all"), 0, own) for at, own in enumerate(rows))
    art = emoji.Emoji(concepts, np.zeros((120, 1, 1, 4), np.uint8))
    coded = image_codes.Coded(concepts, generator.integers(0, SHIPPED_VQ.codes, (120, 2, 16)), "codes")
    vectors = torch.randn(SHIPPED_VQ.codes, SHIPPED_VQ.dim, generator=torch.Generator().manual_seed(0))
    vq = SimpleNamespace(quantize=SimpleNamespace(embedding=SimpleNamespace(weight=F.normalize(vectors, dim=-1))))
    monkeypatch.setattr(emoji, "load", lambda: art)
    prompts: WordPrompts = image_codes.word_prompts()
    for found, value in {"word_prompts": prompts, "vq_model": (vq, "codes")}.items():
        monkeypatch.setattr(image_ar, found, lambda value=value: value)
    monkeypatch.setattr(image_ar, "coded", lambda grid: coded)
    monkeypatch.setattr(image_ar, "WEIGHTS", folder)
    monkeypatch.setitem(image_ar.GRIDS, name, 4)
    monkeypatch.setitem(image_ar.SHAPES, name, TextShape(width=16, inner=24, layers=2, heads=2))
    monkeypatch.setitem(image_ar.BATCHES, name, 3)
    monkeypatch.setattr(image_ar, "sharing", lambda: 1)
    return _prepared(image_ar.make, image_ar, name, monkeypatch)


WORLDS = {"eagle3": _text, "medusa": _text, "small_draft": _text, "image_ar": _emoji, "scenes_vlm": _scenes}


def first_losses(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The losses of the first updates, as if the time ran evenly; torch on one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    monkeypatch.setenv("SPECVIZ_CACHE", str(folder))
    for module in (parallel, image_training, scenes_vlm):
        monkeypatch.setattr(module, "cpu_has_bfloat16", lambda: False)
    try:
        state = WORLDS[name](name, folder, monkeypatch)
        state.begin()
        return [state.update(update / UPDATES).loss for update in range(UPDATES)]
    finally:
        torch.set_num_threads(threads)


@pytest.mark.slow
@pytest.mark.parametrize("name", WORLDS)
def test_the_first_updates_lose_what_they_lost(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = json.loads(WRITTEN_DOWN.read_text("utf-8"))[name]
    losses = first_losses(name, tmp_path, monkeypatch)
    print(f"{name}: {losses[0]:.5f} to {losses[-1]:.5f} in {UPDATES} updates, written down {known[0]:.5f} to {known[-1]:.5f}")
    assert losses == pytest.approx(known, rel=1e-3) and min(losses) < losses[0]


def write_down(folder: Path) -> None:
    """Write every recipe's losses down as they are now."""
    losses = {}
    for name in WORLDS:
        with pytest.MonkeyPatch.context() as monkeypatch:
            losses[name] = [float(f"{loss:.6g}") for loss in first_losses(name, folder / name, monkeypatch)]
    WRITTEN_DOWN.write_text("{\n" + ",\n".join(f'"{name}": {row}' for name, row in losses.items()) + "\n}\n", "utf-8")


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        write_down(Path(folder))
