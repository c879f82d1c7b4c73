"""A recipe's first updates from one seed, on tiny stand-ins: the losses that were written down once still come out.

``python -m tests.training.test_first_updates [NAME …]`` from the root writes them down anew, where a recipe is meant to change.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from specviz.drafting.networks.small_lm import SmallConfig, SmallLM
from specviz.models.hub.packed_model import write_model
from specviz.models.image.image_shape import SHIPPED_VQ
from specviz.training import data, driver, parallel, registry
from specviz.training.driver import Progress, TrainState
from specviz.training.families import (
    arms,
    emoji,
    gto,
    hybrid,
    image_ar,
    image_drafter,
    image_samplers,
    image_vq,
    masked,
    picture_drafters,
    scenes_vlm,
)
from specviz.training.families.scenes_words import train_tokenizer
from specviz.training.registry import recipes as known_recipes
from tests.support.tiny.hybrid import hybrid as tiny_hybrid
from tests.support.tiny.hybrid import pure
from tests.support.tiny.images import tiny_image
from tests.support.tiny.shelf import TEXTS, spell
from tests.support.tiny.text import tiny_llama
from tests.support.training.tiny_forest import drafter
from tests.support.training.tiny_scenes import tiny_scenes
from tests.support.training.tiny_training import END, VOCAB, dialogues, short_windows, world

WRITTEN_DOWN = Path(__file__).with_name("first_updates.json")
UPDATES = 50
Patch = pytest.MonkeyPatch


class _Learned(Exception):
    """Thrown where a recipe has made its first updates."""


def _smaller(patch: Patch, name: str, **own: int) -> None:
    """The recipe with settings of its own."""
    recipe = known_recipes()[name]
    known = {**known_recipes(), name: replace(recipe, settings={**recipe.settings, **own})}
    patch.setattr(registry, "recipes", lambda: known)


def _text(name: str, folder: Path, patch: Patch) -> None:
    """A tiny Llama and dialogues that count."""
    world(patch, 120)


def _owl(name: str, folder: Path, patch: Patch) -> None:
    """Windows as short as the tiny answers."""
    _text(name, folder, patch)
    short_windows(patch)


def _gto(name: str, folder: Path, patch: Patch) -> None:
    """A drafter that is often wrong."""
    _text(name, folder, patch)
    patch.setattr(gto, "load_heads", lambda *asked: drafter(0.3))


def small_lm(source: torch.Tensor) -> SmallLM:
    """A small language model over most of the tiny vocabulary."""
    torch.manual_seed(0)
    config = SmallConfig(VOCAB, source.shape[1], draft_vocab=36, width=32, layers=3, heads=2, inner=64, window=48)
    start = SmallLM(config, source, torch.tensor([END, *range(5, 40)]))
    for weight in start.parameters():
        weight.data.normal_(std=0.15)
    return start


def _masked(name: str, folder: Path, patch: Patch) -> None:
    """The tiny language model as the start, and its masked model as it ships."""
    _text(name, folder, patch)
    source = tiny_llama(dtype=torch.float32, vocab=VOCAB).get_input_embeddings().weight.detach()
    patch.setattr(masked.SmallLM, "load", lambda *asked: small_lm(source))
    patch.setattr(masked.from_autoregressive, "__defaults__", (48,))
    masked.from_autoregressive(small_lm(source)).eval().save(folder / "masked_lm.safetensors", {})
    patch.setattr(masked, "WEIGHTS", folder)


def _arms(name: str, folder: Path, patch: Patch) -> None:
    """The tiny language model, to be changed for one domain."""
    _text(name, folder, patch)
    patch.setattr(arms, "fresh", lambda assets: small_lm(assets.embedding).eval())
    patch.setattr(arms, "collect", lambda *asked: dialogues(60))


def _hybrid(name: str, folder: Path, patch: Patch) -> None:
    """A tiny hybrid model and a few texts."""
    patch.setattr(data, "find", lambda names: [])
    patch.setattr(hybrid, "_read", lambda files: hybrid.Split(TEXTS * 30, TEXTS))
    patch.setattr(hybrid, "small_tokenizer", lambda texts: spell())
    patch.setattr(hybrid, "_teacher", lambda device: (tiny_hybrid(0, torch.float32, vocab=spell().get_vocab_size()), spell()))
    patch.setattr(hybrid, "target_config", lambda vocab: tiny_hybrid(0, torch.float32, vocab=vocab).config)
    patch.setattr(hybrid, "draft_config", lambda vocab: pure(0, torch.float32, vocab=vocab).config)


def _scenes(name: str, folder: Path, patch: Patch) -> None:
    """A tiny model of pictures."""
    patch.setattr(scenes_vlm, "fresh", lambda shape, *asked: tiny_scenes(2, *asked))
    patch.setattr(scenes_vlm, "train_tokenizer", lambda: train_tokenizer(60, 600))
    patch.setattr(scenes_vlm, "QUESTIONS", 2)
    patch.setattr(scenes_vlm, "READING", 1)
    _smaller(patch, name, batch=2, later=2, part=2, measured=1)


def _pictures(name: str, folder: Path, patch: Patch) -> None:
    """A tiny target with opinions and its answers about a few scenes."""
    tokenizer = train_tokenizer(60, 600)
    learner = tiny_scenes(4, len(tokenizer))
    with torch.no_grad():
        for value in learner.model.parameters():
            if value.ndim == 2:
                value.normal_(std=2 * value.shape[1] ** -0.5)
    write_model(folder / "scenes_vlm.safetensors", learner.model, tokenizer.backend_tokenizer, {})
    patch.setattr(picture_drafters, "TARGET", folder / "scenes_vlm.safetensors")
    for constant, value in {"SCENES": 16, "HELD_OUT_SCENES": 4, "_AT_A_TIME": 4, "_LONGEST": 24}.items():
        patch.setattr(picture_drafters, constant, value)


def _art(patch: Patch) -> emoji.Emoji:
    """Forty concepts in three styles, noise on a transparent ground, each with a name of its own."""
    generator = np.random.default_rng(0)
    rows = [{style: 3 * at + place for place, style in enumerate(emoji.STYLES)} for at in range(40)]
    concepts = tuple(emoji.Concept(f"{at:x}", f"thing {at}", (f"tag {at % 7}", "all"), 0, own) for at, own in enumerate(rows))
    art = emoji.Emoji(concepts, generator.integers(0, 256, (120, emoji.SIDE, emoji.SIDE, 4), dtype=np.uint8))
    patch.setattr(emoji, "load", lambda: art)
    return art


def _coded(patch: Patch, module: Any, codes: int, concepts: tuple[emoji.Concept, ...]) -> None:
    """Random codes of the pictures at any grid."""

    def coded(grid: int) -> emoji.Coded:
        return emoji.Coded(concepts, np.random.default_rng(grid - 4).integers(0, codes, (120, 2, grid * grid)), "codes")

    patch.setattr(module, "coded", coded)


def _emoji(name: str, folder: Path, patch: Patch) -> None:
    """Pictures of 4 x 4 random codes."""
    _coded(patch, image_ar, SHIPPED_VQ.codes, _art(patch).concepts)
    vectors = torch.randn(SHIPPED_VQ.codes, SHIPPED_VQ.dim, generator=torch.Generator().manual_seed(0))
    vq = SimpleNamespace(quantize=SimpleNamespace(embedding=SimpleNamespace(weight=F.normalize(vectors, dim=-1))))
    prompts = emoji.word_prompts()
    for found, value in {"word_prompts": prompts, "vq_model": (vq, "codes")}.items():
        patch.setattr(image_ar, found, lambda value=value: value)
    patch.setattr(image_ar, "WEIGHTS", folder)
    _smaller(patch, name, batch=3)
    recipe = registry.recipes()[name]
    tiny = replace(recipe, shape={**recipe.shape, "grid": 4, "text": {"width": 16, "inner": 24, "layers": 2, "heads": 2}})
    patch.setattr(registry, "recipes", lambda: {**known_recipes(), name: tiny})


def _image_drafter(name: str, folder: Path, patch: Patch) -> None:
    """A tiny image model of 6 x 6 codes."""
    loaded = tiny_image(grid=6, dtype=torch.float32)
    _coded(patch, image_drafter, loaded.codes, _art(patch).concepts)
    patch.setattr(image_drafter, "load_image_model", lambda *asked: loaded)
    for constant, value in {"DRAWN": 4, "SHELF": 24, "MEASURED": 2}.items():
        patch.setattr(image_drafter, constant, value)


def _image(name: str, folder: Path, patch: Patch) -> None:
    """Few pictures an update."""
    art = _art(patch)
    _coded(patch, image_samplers, SHIPPED_VQ.codes, art.concepts)
    small = {image_vq: {"CROPS": 3, "WHOLE": 1, "REDRAWN": 1, "SHRUNK": 1}, image_samplers: {"DRAWN": 1}}
    for module, constants in small.items():
        for constant, value in constants.items():
            patch.setattr(module, constant, value)
    _smaller(patch, name, **{"image_score": {"batch": 8}, "image_samplers": {"batch": 4}}.get(name, {}))


WORLDS: dict[str, Callable[[str, Path, Patch], None]] = {
    **dict.fromkeys(("eagle", "eagle3", "falcon", "medusa", "small_draft"), _text),
    **{"owl": _owl, "gto": _gto, "masked_lm": _masked, "deer": _masked, "arms": _arms, "scenes_vlm": _scenes},
    **dict.fromkeys(("hybrid", "hybrid_draft"), _hybrid),
    **dict.fromkeys(("vlm_text_only", "vlm_eagle", "vlm_hivis", "vlm_dream"), _pictures),
    **dict.fromkeys(("image_ar_small", "image_ar"), _emoji),
    **dict.fromkeys(("image_vq", "image_decoder", "image_samplers", "image_score"), _image),
    "image_drafter": _image_drafter,
}
COUNTED = {"dialogues", "ngrams", "image_patches"}
"""Recipes without a loss."""


def first_losses(name: str, folder: Path, patch: Patch) -> tuple[list[float], TrainState]:
    """The losses of the first updates, as if the time ran evenly; torch on one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    patch.setenv("SPECVIZ_CACHE", str(folder))
    losses: list[float] = []
    states: list[TrainState] = []

    def train(state: TrainState, *_: Any, **__: Any) -> Progress:
        states.append(state)
        state.begin()
        losses.extend(state.update(update / UPDATES).loss for update in range(UPDATES))
        raise _Learned

    patch.setattr(driver, "train", train)
    patch.setattr(parallel, "cpu_has_bfloat16", lambda: False)
    try:
        WORLDS[name](name, folder, patch)
        torch.manual_seed(0)
        with pytest.raises(_Learned):
            registry.train(name, "cpu", 1.0)
    finally:
        torch.set_num_threads(threads)
    return losses, states[-1]


def test_every_recipe_that_learns_is_held() -> None:
    assert set(WORLDS) == set(known_recipes()) - COUNTED == set(json.loads(WRITTEN_DOWN.read_text("utf-8")))


@pytest.mark.slow
@pytest.mark.parametrize("name", WORLDS)
def test_the_first_updates_lose_what_they_lost(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = json.loads(WRITTEN_DOWN.read_text("utf-8"))[name]
    losses, _ = first_losses(name, tmp_path, monkeypatch)
    print(f"{name}: {losses[0]:.5f} to {losses[-1]:.5f} in {UPDATES} updates, written down {known[0]:.5f} to {known[-1]:.5f}")
    assert losses == pytest.approx(known, rel=1e-3) and min(losses) < losses[0]


def write_down(folder: Path, names: list[str]) -> None:
    """Write the losses of these recipes down as they are now."""
    losses = json.loads(WRITTEN_DOWN.read_text("utf-8"))
    for name in names:
        (folder / name).mkdir()
        with pytest.MonkeyPatch.context() as patch:
            losses[name] = [float(f"{loss:.6g}") for loss in first_losses(name, folder / name, patch)[0]]
    WRITTEN_DOWN.write_text("{\n" + ",\n".join(f'"{name}": {losses[name]}' for name in WORLDS) + "\n}\n", "utf-8")


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        write_down(Path(folder), sys.argv[1:] or list(WORLDS))
