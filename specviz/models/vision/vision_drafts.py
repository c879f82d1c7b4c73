"""Loader of drafter networks for vision-language models, checked against the target and kept with its model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from specviz.drafting.networks.cross_net import CrossNet, CrossRuntime
from specviz.drafting.networks.feature_net import FeatureNet
from specviz.drafting.networks.small_lm import SmallLM
from specviz.drafting.networks.weights import read_weights
from specviz.drafting.runtimes.language_model import DraftModel, SessionModel, SmallModel
from specviz.engine.cached import cached
from specviz.errors import ModelUnavailable
from specviz.models.heads.heads import WEIGHTS, layout_for, version
from specviz.models.heads.lora_heads import digest
from specviz.models.hub.cache_dir import Progress, silent
from specviz.models.hub.vocabulary import same_words
from specviz.models.text.load import load_causal_lm
from specviz.models.vision.vision_language import LoadedVisionLanguage
from specviz.targets.causal import causal_target
from specviz.targets.vision_language import VisionLanguageTarget

FILES = {"eagle": "vlm_eagle", "hivis": "vlm_hivis", "dream": "vlm_dream"}
"""A kind of network, and the file that ships."""
TEXT = "vlm_text_only"
SCENES = "scenes_vlm.safetensors"
TARGET = "target"
"""The card's line that says which target a drafter learned from: :func:`told_apart`."""


def told_apart(target: Path) -> str:
    """A target's file by its name and the beginning of its SHA-256: another training of it is another target."""
    return f"{target.name} {digest(target)}"


def text_only_model(
    name: str | None, loaded: LoadedVisionLanguage, target: VisionLanguageTarget, progress: Progress = silent
) -> DraftModel:
    """The language model that drafts from words alone: the one called ``name``, any whose tokens the target has too, such as
    SmolLM2 for SmolVLM2; None for the small one that ships for the scenes model."""
    if name and name != TEXT:
        return _named(name, loaded, target, progress)
    path = _shipped(TEXT, "language-only draft model", loaded)

    def make() -> SmallLM:
        return SmallLM.load(path, (target.model.get_input_embeddings().weight,), target.dtype, target.device)

    small = cached(target.model, ("text", version(path)), make)
    return DraftModel(TEXT, target.context_length, lambda capacity: SmallModel(small, capacity))


def _named(name: str, loaded: LoadedVisionLanguage, target: VisionLanguageTarget, progress: Progress) -> DraftModel:
    draft = load_causal_lm(name, str(target.dtype).removeprefix("torch."), str(target.device), progress)
    same_words(loaded, draft)
    model = causal_target(draft.model, draft.name, draft.eos_ids, target.tier)
    warnings = tuple(word for word in (*draft.warnings, model.warning) if word)
    return DraftModel(
        model.name,
        model.context_length,
        lambda capacity: SessionModel(model.open(capacity), model, target.vocab_size),
        warnings,
        model,
    )


def vision_heads(kind: str, loaded: LoadedVisionLanguage, target: VisionLanguageTarget) -> Any:
    """The drafting network of this kind for the target, ready to draft. Raises ModelUnavailable when there is none."""
    if kind not in FILES:
        raise ModelUnavailable(
            f"No {kind} network ships for {loaded.name}: name heads that were published for it as the draft, or choose a method "
            "that needs none."
        )
    path = _shipped(FILES[kind], f"{kind} network", loaded)
    return cached(target.model, ("vision", kind, version(path)), lambda: _read(kind, path, target))


def _read(kind: str, path: Path, target: VisionLanguageTarget) -> Any:
    model = target.model
    shared = (model.get_input_embeddings().weight, model.get_output_embeddings().weight)
    if kind == "dream":
        crossed = CrossNet.load(path, shared, target.dtype, target.device)
        return CrossRuntime(crossed, layout_for(crossed))
    net = FeatureNet.load(path, shared, target.dtype, target.device)
    stepper = net.runtime(layout_for(net))
    return (stepper, net.steps) if net.config.steps else stepper


def _shipped(name: str, what: str, loaded: LoadedVisionLanguage) -> Path:
    path = WEIGHTS / f"{name}.safetensors"
    if not path.is_file():
        raise ModelUnavailable(
            f"The weights {path.name} are missing from {path.parent}: get them with the project, or make them with "
            f"`python -m specviz train {name}`."
        )
    _fits(path, name, what, loaded)
    return path


def _fits(path: Path, name: str, what: str, loaded: LoadedVisionLanguage) -> None:
    """Raises ModelUnavailable when the file was trained on another target than this one."""
    card = read_weights(path)[1]
    if card.get("tokenizer_hash", "") != loaded.tokenizer_hash:
        raise ModelUnavailable(
            f"The {what} that ships was trained for the scenes model, and {loaded.name} has other tokens: choose "
            "scenes-vlm as the target, or a method that needs no trained network; language_only takes a draft model of the "
            "target's own words as well."
        )
    target = WEIGHTS / SCENES
    if not target.is_file() or card.get(TARGET) != told_apart(target):
        raise ModelUnavailable(
            f"{path.name} was trained for another version of {SCENES}: make it again with `python -m specviz train {name}`."
        )
