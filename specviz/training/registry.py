"""Which weights this project can make again, and the one way to make them."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from specviz.errors import BadInput
from specviz.paths import WEIGHTS as WEIGHTS


@dataclass(frozen=True)
class Recipe:
    """``module`` holds ``make(job)``. ``minutes`` is how long it runs when nobody says."""

    name: str
    title: str
    module: str
    minutes: float


@dataclass(frozen=True)
class Job:
    """What the user asked for. ``data`` are the dialogue files, none for the usual one; ``reserved`` are prompts that must
    never be training data."""

    recipe: Recipe
    device: str
    minutes: float
    resume: bool
    data: tuple[str, ...] = ()
    reserved: tuple[str, ...] = ()


_RECIPES = {
    recipe.name: recipe
    for recipe in (
        Recipe("dialogues", "The target's answers to user turns of many kinds", "specviz.training.common.dialogues", 60.0),
        Recipe("small_draft", "Small autoregressive draft model", "specviz.training.draft_model.small_draft", 90.0),
        Recipe("medusa", "Medusa: four heads, each for a token further ahead", "specviz.training.feature.medusa", 20.0),
        Recipe("eagle", "EAGLE: the target's last hidden state, regressed", "specviz.training.feature.recipes", 20.0),
        Recipe("eagle3", "EAGLE-3: three hidden states in, tested on itself", "specviz.training.feature.recipes", 60.0),
        Recipe("falcon", "Falcon: two tokens a forward, taught by glancing", "specviz.training.families.falcon", 20.0),
        Recipe("scenes_vlm", "Small vision-language model of scenes", "specviz.training.families.scenes_vlm", 32.0),
        Recipe("vlm_text_only", "Pictures: a drafter that knows words alone", "specviz.training.families.vlm_text_only", 5.0),
        Recipe("vlm_eagle", "Pictures: EAGLE with visual rows", "specviz.training.families.picture_drafters", 6.0),
        Recipe("vlm_hivis", "Pictures: HiViS, visual rows hidden", "specviz.training.families.picture_drafters", 6.0),
        Recipe("vlm_dream", "Pictures: DREAM, gated cross-attention", "specviz.training.families.picture_drafters", 6.0),
        Recipe("hybrid", "A small hybrid target: Mamba-2 layers and attention", "specviz.training.families.hybrid", 24.0),
        Recipe("hybrid_draft", "Its drafter: two Mamba-2 layers", "specviz.training.families.hybrid", 8.0),
        Recipe("gto", "GTO: a change to EAGLE-3, rewarded for trees", "specviz.training.feature.make_gto", 10.0),
        Recipe("masked_lm", "Masked-diffusion language model", "specviz.training.families.masked", 14.0),
        Recipe("ngrams", "Pairs and triples of tokens, counted", "specviz.training.families.ngrams", 1.0),
        Recipe("deer", "DEER: a change to masked_lm in two stages", "specviz.training.families.deer", 9.0),
        Recipe("image_vq", "Picture codes: one for 4 x 4 pixels of emoji art", "specviz.training.families.image_vq", 8.0),
        Recipe("image_decoder", "The same picture codes, better drawn", "specviz.training.families.image_decoder", 4.0),
        Recipe("image_patches", "What each picture code looks like", "specviz.training.families.image_patches", 1.0),
        Recipe("image_ar_small", "Image model of 8 x 8 codes, the partner", "specviz.training.families.image_ar", 6.0),
        Recipe("image_drafter", "The image model's drafter, with guidance", "specviz.training.families.image_drafter", 8.0),
        Recipe("image_samplers", "Picture codes from coarse to fine and back", "specviz.training.families.image_samplers", 4.0),
        Recipe("image_score", "How well a picture fits its prompt", "specviz.training.families.image_score", 2.0),
        Recipe("arms", "Four domains: a change each to the small draft model", "specviz.training.draft_model.arms", 4.0),
        Recipe("owl", "OWL: a recurrence on the last token's state alone", "specviz.training.families.owl", 12.0),
        Recipe("image_ar", "Image model of 16 x 16 codes, from prompts", "specviz.training.families.image_ar", 14.0),
    )
}


def recipes() -> Mapping[str, Recipe]:
    """Every recipe by name."""
    return MappingProxyType(_RECIPES)


def train(
    name: str, device: str = "auto", minutes: float | None = None, resume: bool = False, data: tuple[str, ...] = (),
    reserved: tuple[str, ...] = (),
) -> None:  # fmt: skip
    """Make the weights called ``name`` and print how it goes.

    ``resume`` goes on from the last checkpoint; ``minutes`` counts from the very beginning. Raises BadInput on an
    unknown name or a time that is not positive, ModelUnavailable when the target cannot be had.
    """
    if name not in _RECIPES:
        raise BadInput(f"There is no recipe {name!r}; there are: {', '.join(sorted(_RECIPES))}.")
    recipe = _RECIPES[name]
    spent = recipe.minutes if minutes is None else minutes
    if not 0 < spent < 60 * 24 * 30:
        raise BadInput(f"minutes is {spent}; choose a positive number, at most 30 days.")
    importlib.import_module(recipe.module).make(Job(recipe, device, spent, resume, data, reserved))
