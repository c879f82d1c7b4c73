"""Draft models: the small ones that ship, or any model with the target's tokenizer."""

from __future__ import annotations

from specviz.drafting.runtimes.language_model import DraftModel, SessionModel, SmallModel
from specviz.errors import ModelUnavailable
from specviz.models.heads.heads import SMALL, TEXT_ONLY, WEIGHTS, load_heads
from specviz.models.hub.cache_dir import Progress
from specviz.models.hub.packed_model import refuse_outdated, tokenizer_hash_in
from specviz.models.text.load import LoadedText, load_causal_lm
from specviz.models.text.text import same_tokenizer, same_words
from specviz.targets.hybrid import CausalTarget, causal_target
from specviz.targets.vision_language import VisionLanguageTarget

HYBRID = "hybrid-small"
STATE = "hybrid-small-draft"


def draft_model(name: str | None, loaded: LoadedText, target: CausalTarget, progress: Progress) -> DraftModel:
    """Return the draft model called ``name`` for this target; by default the one that ships for it.

    A draft model for pictures reads the text alone. Raises TokenizerMismatch naming both models, and ModelUnavailable if none
    ships for the target, or the shipped one was trained on another version of it.
    """
    state = WEIGHTS / "hybrid_draft.safetensors"
    if not name:
        small = TEXT_ONLY if isinstance(target, VisionLanguageTarget) else SMALL
        name = STATE if loaded.tokenizer_hash == tokenizer_hash_in(state) else small
    if name in (SMALL, TEXT_ONLY):
        network = load_heads(name, None, loaded, target)
        return DraftModel(name, target.context_length, lambda capacity: SmallModel(network, capacity))
    if name == STATE and loaded.name == HYBRID:
        refuse_outdated(state, WEIGHTS / "hybrid.safetensors")
    model, warnings = named_draft(name, loaded, target, progress)
    return DraftModel(
        model.name,
        model.context_length,
        lambda capacity: SessionModel(model.open(capacity), model, target.vocab_size),
        warnings,
        model,
    )


def several_models(names: str, loaded: LoadedText, target: CausalTarget, progress: Progress) -> dict[str, DraftModel]:
    """Return the draft models in the comma-separated ``names``, by the last part of each name. Raises ModelUnavailable as
    :func:`draft_model` does, and if two last parts are equal."""
    given = [name.strip() for name in names.split(",") if name.strip()]
    short = {name.rstrip("/").rsplit("/", 1)[-1]: name for name in given}
    if len(short) < len(given):
        raise ModelUnavailable(f"Two of the draft models in {names} have one name: give each once, or rename a folder.")
    return {label: draft_model(name, loaded, target, progress) for label, name in short.items()}


def named_draft(name: str, loaded: LoadedText, target: CausalTarget, progress: Progress) -> tuple[CausalTarget, tuple[str, ...]]:
    """Load the model called ``name`` and return it with its warnings. Raises TokenizerMismatch unless it shares the target's
    tokenizer, or its words where the target reads pictures, which have tokens of their own."""
    draft = load_causal_lm(name, str(target.dtype).removeprefix("torch."), str(target.device), progress)
    (same_words if isinstance(target, VisionLanguageTarget) else same_tokenizer)(loaded, draft)
    model = causal_target(draft.model, draft.name, draft.eos_ids, target.tier)
    return model, tuple(word for word in (*draft.warnings, model.warning) if word)
