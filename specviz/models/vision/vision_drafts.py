"""Loader of drafter networks for vision-language models, checked against the target and cached with its model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from specviz.drafting.networks.cross_net import CrossNet, CrossRuntime
from specviz.drafting.networks.feature_net import FeatureNet
from specviz.drafting.networks.small_lm import SmallLM
from specviz.drafting.runtimes.language_model import DraftModel, SessionModel, SmallModel
from specviz.engine.cached import cached
from specviz.errors import ModelUnavailable
from specviz.models.heads.heads import WEIGHTS, layout_for, version
from specviz.models.heads.lora_heads import digest
from specviz.models.hub.cache_dir import Progress, no_progress
from specviz.models.hub.packed_model import card_in, shipped_file
from specviz.models.hub.vocabulary import same_words
from specviz.models.text.load import load_causal_lm
from specviz.models.vision.vision_language import LoadedVisionLanguage
from specviz.targets.causal import causal_target
from specviz.targets.vision_language import VisionLanguageTarget

FILES = {"eagle": "vlm_eagle", "hivis": "vlm_hivis", "dream": "vlm_dream"}
"""Shipped files by kind of network."""
TEXT = "vlm_text_only"
SCENES = "scenes_vlm.safetensors"
TARGET = "target"
"""Key of the card for the :func:`target_version` of the target that a drafter was trained on."""


def target_version(target: Path) -> str:
    """Name of a target's file and the beginning of its SHA-256: a retrained file is another target."""
    return f"{target.name} {digest(target)}"


def text_only_model(
    name: str | None, loaded: LoadedVisionLanguage, target: VisionLanguageTarget, progress: Progress = no_progress
) -> DraftModel:
    """Return the language model that drafts from the text alone. ``name`` is any model whose tokens the target has too, such as
    SmolLM2 for SmolVLM2; None selects the small one that ships for the scenes model. Raises TokenizerMismatch or
    ModelUnavailable."""
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
    """Return the drafting network of this kind for the target, ready to draft. Raises ModelUnavailable if none ships."""
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
    """The shipped file of this ``name``. Raises ModelUnavailable if it is missing, or was trained on another target."""
    path = shipped_file(WEIGHTS / f"{name}.safetensors")
    card = card_in(path)
    if card.get("tokenizer_hash", "") != loaded.tokenizer_hash:
        raise ModelUnavailable(
            f"The {what} that ships was trained for the scenes model, and {loaded.name} has other tokens: choose "
            "scenes-vlm as the target, or a method that needs no trained network; language_only takes a draft model of the "
            "target's own words as well."
        )
    target = WEIGHTS / SCENES
    if not target.is_file() or card.get(TARGET) != target_version(target):
        raise ModelUnavailable(
            f"{path.name} was trained for another version of {SCENES}: make it again with `python -m specviz train {name}`."
        )
    return path
