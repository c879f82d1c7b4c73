"""Tiny stand-ins for what each recipe learns from: its target, its data, the network it begins with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from specviz.models.hub.packed_model import write_model
from specviz.models.image.image import janus_config
from specviz.training import data, driver, parallel, registry
from specviz.training.driver import TrainState
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
    medusa,
    mixers,
    picture_drafters,
    scenes_vlm,
)
from specviz.training.families.scenes_words import train_tokenizer
from specviz.training.registry import recipes as known_recipes
from tests.support.tiny.hybrid import SHAPE, pure
from tests.support.tiny.hybrid import hybrid as tiny_hybrid
from tests.support.tiny.images import tiny_image
from tests.support.tiny.shelf import TEXTS, spell
from tests.support.tiny.text import tiny_llama
from tests.support.training.tiny_forest import drafter
from tests.support.training.tiny_masked import small_lm
from tests.support.training.tiny_scenes import noisy_renderer, tiny_scenes
from tests.support.training.tiny_training import VOCAB, dialogues, short_windows, world

Patch = pytest.MonkeyPatch


def _put(patch: Patch, module: Any, **values: Any) -> None:
    """Replace these names of a module."""
    for name, value in values.items():
        patch.setattr(module, name, value)


def _smaller(patch: Patch, name: str, **own: int) -> None:
    """The recipe with settings of its own."""
    recipe = known_recipes()[name]
    known = {**known_recipes(), name: replace(recipe, settings={**recipe.settings, **own})}
    patch.setattr(registry, "recipes", lambda: known)


def _text(name: str, folder: Path, patch: Patch) -> None:
    """A tiny Llama and dialogues that count."""
    world(patch, 120)


def _block_fill(name: str, folder: Path, patch: Patch) -> None:
    """A narrower network."""
    _text(name, folder, patch)
    recipe = known_recipes()[name]
    shape = {**recipe.shape, "inner": 24, "block": 4, "rank": 4}
    patch.setattr(registry, "recipes", lambda: {**known_recipes(), name: replace(recipe, shape=shape)})


def _owl(name: str, folder: Path, patch: Patch) -> None:
    """Windows as short as the tiny answers."""
    _text(name, folder, patch)
    short_windows(patch)


def _gto(name: str, folder: Path, patch: Patch) -> None:
    """A drafter that is often wrong."""
    _text(name, folder, patch)
    patch.setattr(gto, "load_heads", lambda *asked: drafter(0.3))


def _masked(name: str, folder: Path, patch: Patch) -> None:
    """The tiny language model as the start, and its masked model as it ships."""
    _text(name, folder, patch)
    source = tiny_llama(dtype=torch.float32, vocab=VOCAB).get_input_embeddings().weight.detach()
    small_lm(source).save(folder / "small_draft.safetensors", {})
    patch.setattr(masked.SmallLM, "load", lambda *asked: small_lm(source))
    patch.setattr(masked.from_autoregressive, "__defaults__", (48,))
    masked.from_autoregressive(small_lm(source)).eval().save(folder / "masked_lm.safetensors", {})
    patch.setattr(masked, "WEIGHTS", folder)


def _arms(name: str, folder: Path, patch: Patch) -> None:
    """The tiny language model, to be changed for one domain."""
    _text(name, folder, patch)
    _put(patch, arms, float32_draft_model=lambda assets: small_lm(assets.embedding).eval(), collect=lambda *asked: dialogues(60))


def _hybrid(name: str, folder: Path, patch: Patch) -> None:
    """A tiny hybrid model and a few texts."""
    patch.setattr(data, "find", lambda names: [])
    _put(
        patch, hybrid, _read=lambda files: hybrid.Split(TEXTS * 30, TEXTS), small_tokenizer=lambda texts: spell(),
        _teacher=lambda device: (tiny_hybrid(0, torch.float32, vocab=spell().get_vocab_size()), spell()),
        target_config=lambda vocab: tiny_hybrid(0, torch.float32, vocab=vocab).config,
        draft_config=lambda vocab: pure(0, torch.float32, vocab=vocab).config,
    )  # fmt: skip


def _mixers(name: str, folder: Path, patch: Patch) -> None:
    """A tiny Llama, whose second layer gets a mixer."""
    _text(name, folder, patch)
    tiny_llama(dtype=torch.float32, vocab=VOCAB).save_pretrained(folder)
    _put(patch, mixers, prepare=lambda name: folder)
    patch.setattr(registry, "recipes", lambda: {**known_recipes(), name: replace(known_recipes()[name], shape=SHAPE)})


def _scenes(name: str, folder: Path, patch: Patch) -> None:
    """A tiny model of pictures, new or learned."""
    fresh = lambda shape, *asked: tiny_scenes(2, *asked)  # noqa: E731
    tokenizer = train_tokenizer(60, 600)
    write_model(folder / "scenes_vlm.safetensors", tiny_scenes(2, len(tokenizer)).model, tokenizer.backend_tokenizer, {})
    _put(patch, scenes_vlm, new_model=fresh, train_tokenizer=lambda: tokenizer, QUESTIONS=2, READING=1, MEASURED=2)
    _put(patch, scenes_vlm, Renderer=noisy_renderer, WEIGHTS=folder)
    _smaller(patch, name, batch=2, later=2, part=2, measured=4)


def _pictures(name: str, folder: Path, patch: Patch) -> None:
    """A tiny target with opinions and its answers about a few scenes."""
    tokenizer = train_tokenizer(60, 600)
    learner = tiny_scenes(4, len(tokenizer))
    with torch.no_grad():
        for value in learner.model.parameters():
            if value.ndim == 2:
                value.normal_(std=2 * value.shape[1] ** -0.5)
    write_model(folder / "scenes_vlm.safetensors", learner.model, tokenizer.backend_tokenizer, {})
    target = folder / "scenes_vlm.safetensors"
    _put(
        patch, picture_drafters, _renderer=noisy_renderer, TARGET=target, SCENES=16, HELD_OUT_SCENES=4, _AT_A_TIME=4, _LONGEST=24
    )


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

    def coded(grid: int, *codec: str) -> emoji.Coded:
        return emoji.Coded(concepts, np.random.default_rng(grid - 4).integers(0, codes, (120, 2, grid * grid)), "codes")

    patch.setattr(module, "code_pictures", coded)


def _emoji(name: str, folder: Path, patch: Patch) -> None:
    """Pictures of 4 x 4 random codes."""
    codes, dim = (janus_config(4)["vq_config"][size] for size in ("num_embeddings", "embed_dim"))
    _coded(patch, image_ar, codes, _art(patch).concepts)
    vectors = torch.randn(codes, dim, generator=torch.Generator().manual_seed(0))
    vq = SimpleNamespace(quantize=SimpleNamespace(embedding=SimpleNamespace(weight=F.normalize(vectors, dim=-1))))
    prompts = emoji.word_prompts()
    _put(
        patch, image_ar, word_prompts=lambda: prompts, vq_model=lambda: (vq, "codes"), WEIGHTS=folder,
        words_file=lambda model: folder / f"{model}.txt", phrases=lambda name: {"sprites": [f"thing {at}" for at in range(9)]},
        patches=lambda: (vectors.repeat(1, 2)[:, :12].unflatten(1, (2, 2, 3)), "codes"),
    )  # fmt: skip
    patch.setattr(image_ar.compositions, "nearest", lambda picture: len(picture) - 8)
    _smaller(patch, name, batch=3)
    small = registry.recipes()
    shape = {**small[name].shape, "grid": 4, "text": {"width": 16, "inner": 24, "layers": 2, "heads": 2}}
    patch.setattr(registry, "recipes", lambda: {**small, name: replace(small[name], shape=shape)})


def _image_drafter(name: str, folder: Path, patch: Patch) -> None:
    """A tiny image model of 6 x 6 codes."""
    loaded = replace(tiny_image(grid=6, dtype=torch.float32), name=known_recipes()[name].shape["target"])
    _coded(patch, image_drafter, loaded.codes, _art(patch).concepts)
    _put(patch, image_drafter, load_image_model=lambda *asked: loaded, DRAWN=4, SHELF=24, MEASURED=2)


def _image(name: str, folder: Path, patch: Patch) -> None:
    """Few pictures an update."""
    art = _art(patch)
    _coded(patch, image_samplers, janus_config(4)["vq_config"]["num_embeddings"], art.concepts)
    _put(patch, image_vq, CROPS=3, WHOLE=1, REDRAWN=1, SHRUNK=1)
    _put(patch, image_samplers, DRAWN=1)
    _smaller(patch, name, **{"image_score": {"batch": 8}, "image_samplers": {"batch": 4}}.get(name, {}))


WORLDS: dict[str, Callable[[str, Path, Patch], None]] = {
    **dict.fromkeys(("eagle", "eagle3", "falcon", "medusa", "small_draft"), _text),
    "dspark": _block_fill,
    **dict.fromkeys(("scenes_vlm", "scenes_vlm_open", "scenes_vlm_further"), _scenes),
    **{"owl": _owl, "gto": _gto, "masked_lm": _masked, "deer": _masked, "arms": _arms},
    **dict.fromkeys(("hybrid", "hybrid_draft"), _hybrid),
    "smollm2_hybrid": _mixers,
    **dict.fromkeys(("vlm_text_only", "vlm_eagle", "vlm_hivis", "vlm_dream"), _pictures),
    **dict.fromkeys(("image_ar_small", "image_ar", "image_sprites", "image_sprites_further"), _emoji),
    **dict.fromkeys(("image_vq", "image_decoder", "image_samplers", "image_score"), _image),
    **dict.fromkeys(("image_drafter", "image_sprites_drafter"), _image_drafter),
}


def stand_in(name: str, folder: Path, patch: Patch) -> None:
    """Give the recipe its tiny world, and ``folder`` for whatever it writes."""
    patch.setattr(torch, "set_num_threads", lambda threads: None)
    patch.setenv("SPECVIZ_CACHE", str(folder))
    patch.setattr(driver, "WEIGHTS", folder)
    patch.setattr(medusa, "TREES", folder)
    WORLDS[name](name, folder, patch)


class Begun(Exception):
    """Thrown where a recipe would train."""


def begun(name: str, folder: Path, patch: Patch) -> TrainState:
    """The recipe's training before its first update, in single precision."""
    states: list[TrainState] = []

    def train(state: TrainState, *_: Any, **__: Any) -> None:
        states.append(state)
        state.begin()
        raise Begun

    patch.setattr(driver, "train", train)
    patch.setattr(parallel, "cpu_has_bfloat16", lambda: False)
    torch.manual_seed(0)
    stand_in(name, folder, patch)
    torch.manual_seed(0)
    with pytest.raises(Begun):
        registry.train(name, "cpu", 1.0)
    return states[0]
