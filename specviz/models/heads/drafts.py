"""Draft models: the small one that ships, or any model with the target's tokenizer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from specviz.drafting.networks.small_lm import SmallLM
from specviz.drafting.networks.weights import read_weights
from specviz.drafting.runtimes.language_model import DraftModel, SessionModel, SmallModel
from specviz.engine.cached import cached
from specviz.errors import ModelUnavailable
from specviz.models.heads.lora_heads import IMITATES, named
from specviz.models.hub.packed_model import card_in, tokenizer_hash_in
from specviz.models.hub.vocabulary import same_tokenizer
from specviz.models.text.load import LoadedText, load_causal_lm
from specviz.paths import WEIGHTS
from specviz.targets.causal import CausalTarget, causal_target

HYBRID = "hybrid-small"
STATE = "hybrid-small-draft"
SMALL = "small_draft"
FILE = WEIGHTS / f"{SMALL}.safetensors"
Progress = Callable[[str, float | None], None]


def draft_model(name: str | None, loaded: LoadedText, target: CausalTarget, progress: Progress) -> DraftModel:
    """Return the draft model called ``name`` for this target; a shipped one if ``name`` is None or "small_draft".

    Raises TokenizerMismatch naming both models, and ModelUnavailable if no draft model ships for the target, or the
    shipped one was trained on another version of it.
    """
    if name in {None, ""} and loaded.tokenizer_hash == tokenizer_hash_in(WEIGHTS / "hybrid_draft.safetensors"):
        name = STATE
    if name in {None, "", SMALL}:
        return _shipped(loaded, target)
    if name == STATE and loaded.name == HYBRID:
        _imitates(WEIGHTS / "hybrid_draft.safetensors", WEIGHTS / "hybrid.safetensors")
    assert name is not None
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


def _imitates(draft: Path, target: Path) -> None:
    """Raise ModelUnavailable if the drafter in ``draft`` was not trained on the model in ``target``."""
    if card_in(draft).get(IMITATES) != named(target):
        raise ModelUnavailable(
            f"{draft.name} learned from another version of {target.name}: make it again with "
            f"`python -m specviz train {draft.stem}`, or name another draft model."
        )


def named_draft(name: str, loaded: LoadedText, target: CausalTarget, progress: Progress) -> tuple[CausalTarget, tuple[str, ...]]:
    """Load the model called ``name`` and return it with its warnings. Raises TokenizerMismatch unless it shares the target's
    tokenizer."""
    draft = load_causal_lm(name, str(target.dtype).removeprefix("torch."), str(target.device), progress)
    same_tokenizer(loaded, draft)
    model = causal_target(draft.model, draft.name, draft.eos_ids, target.tier)
    return model, tuple(word for word in (*draft.warnings, model.warning) if word)


def shipped_small(loaded: LoadedText, target: CausalTarget) -> SmallLM:
    """Return the shipped small draft model on this target's embedding. Raises ModelUnavailable if the tokenizers differ."""
    if loaded.tokenizer_hash != _trained_for():
        raise ModelUnavailable(
            f"The draft models that ship were trained for SmolLM2's tokenizer and for hybrid-small's; {loaded.name} uses "
            "neither. Name a draft model with the target's tokenizer."
        )
    embedding = target.model.get_input_embeddings().weight
    return cached(target.model, SMALL, lambda: SmallLM.load(FILE, (embedding,), target.dtype, target.device))


def _shipped(loaded: LoadedText, target: CausalTarget) -> DraftModel:
    small = shipped_small(loaded, target)
    return DraftModel(SMALL, target.context_length, lambda capacity: SmallModel(small, capacity))


def _trained_for() -> str:
    """The tokenizer hash on the shipped weights' card."""
    return read_weights(FILE)[1].get("tokenizer_hash", "")
