"""Comparison of two models' vocabularies."""

from __future__ import annotations

import hashlib
import json
from typing import Any, Protocol

from specviz.errors import TokenizerMismatch


class HasTokenizer(Protocol):
    """A loaded model with its tokenizer."""

    @property
    def name(self) -> str: ...

    @property
    def tokenizer(self) -> Any: ...

    @property
    def tokenizer_hash(self) -> str: ...


def tokenizer_hash(tokenizer: Any) -> str:
    """SHA-256 over the meaning of token ids: vocabulary by id, merges and normaliser.

    Chat templates, padding and special-token roles are left out: two models that differ only there share their tokens.
    """
    vocabulary = sorted((index, token) for token, index in tokenizer.get_vocab().items())
    meaning = [vocabulary, *_rules(tokenizer)]
    return hashlib.sha256(json.dumps(meaning, ensure_ascii=True, sort_keys=True).encode()).hexdigest()


def same_tokenizer(target: HasTokenizer, draft: HasTokenizer) -> None:
    """Raise TokenizerMismatch, naming both and the first difference, unless the two share their tokens."""
    if target.tokenizer_hash == draft.tokenizer_hash:
        return
    target_ids, draft_ids = (_by_id(model.tokenizer) for model in (target, draft))
    first = min((index for index, _ in target_ids.items() ^ draft_ids.items()), default=None)
    if first is None:
        why = "the same tokens, but text is cut into them by other rules"
    else:
        why = f"token {first} is {target_ids.get(first)!r} in one and {draft_ids.get(first)!r} in the other"
    raise TokenizerMismatch(
        f"The target {target.name} ({len(target_ids)} tokens) and the draft {draft.name} ({len(draft_ids)} tokens) do not share "
        f"a tokenizer: {why}. Choose a draft model of the target's own family."
    )


def same_words(target: HasTokenizer, draft: HasTokenizer) -> None:
    """Raise TokenizerMismatch unless every token of the draft is the target's own, by the same id and cut by the same rules.

    The target may have further tokens, such as those for pictures: no draft proposes them.
    """
    missing = _by_id(draft.tokenizer).items() - _by_id(target.tokenizer).items()
    if missing or _rules(target.tokenizer) != _rules(draft.tokenizer):
        same_tokenizer(target, draft)


def _rules(tokenizer: Any) -> tuple[Any, Any]:
    """Merges and normaliser; None if the tokenizer is not one of the tokenizers library."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    described = json.loads(backend.to_str()) if backend is not None else {}
    return described.get("model", {}).get("merges"), described.get("normalizer")


def _by_id(tokenizer: Any) -> dict[int, str]:
    return {index: token for token, index in tokenizer.get_vocab().items()}
