"""Comparison of two models' vocabularies."""

from __future__ import annotations

import hashlib
import json
from typing import Any, Protocol

from specviz.errors import TokenizerMismatch


class HasTokenizer(Protocol):
    """A loaded model, as far as its tokens go."""

    @property
    def name(self) -> str: ...

    @property
    def tokenizer(self) -> Any: ...

    @property
    def tokenizer_hash(self) -> str: ...


def tokenizer_hash(tokenizer: Any) -> str:
    """sha256 over what gives a token id its meaning: vocabulary by id, merges, and normaliser.

    Chat templates, padding and special-token roles are left out: two models that differ only there share their tokens.
    """
    described = _backend(tokenizer)
    vocabulary = sorted((index, token) for token, index in tokenizer.get_vocab().items())
    meaning = [vocabulary, described.get("model", {}).get("merges"), described.get("normalizer")]
    return hashlib.sha256(json.dumps(meaning, ensure_ascii=True, sort_keys=True).encode()).hexdigest()


def _backend(tokenizer: Any) -> dict[str, Any]:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    return json.loads(backend.to_str()) if backend is not None else {}


def same_tokenizer(target: HasTokenizer, draft: HasTokenizer) -> None:
    """Raises TokenizerMismatch, naming both and the first difference, unless the two share their tokens."""
    if target.tokenizer_hash == draft.tokenizer_hash:
        return
    target_ids, draft_ids = (_by_id(model.tokenizer) for model in (target, draft))
    differing = [index for index in sorted(target_ids.keys() | draft_ids.keys()) if target_ids.get(index) != draft_ids.get(index)]
    if differing:
        first = differing[0]
        why = f"token {first} is {target_ids.get(first)!r} in one and {draft_ids.get(first)!r} in the other"
    else:
        why = "the same tokens, but text is cut into them by other rules"
    raise TokenizerMismatch(
        f"The target {target.name} ({len(target_ids)} tokens) and the draft {draft.name} ({len(draft_ids)} tokens) do not share "
        f"a tokenizer: {why}. Choose a draft model of the target's own family."
    )


def same_words(target: HasTokenizer, draft: HasTokenizer) -> None:
    """Raises TokenizerMismatch unless every token of the draft is the target's own, by the same id and cut by the same rules.

    The target may have tokens besides, as models that read pictures have for them: no draft proposes those.
    """
    if target.tokenizer_hash == draft.tokenizer_hash:
        return
    target_ids, draft_ids = (_by_id(model.tokenizer) for model in (target, draft))
    target_rules, draft_rules = (_rules(model.tokenizer) for model in (target, draft))
    if target_rules != draft_rules or any(target_ids.get(index) != token for index, token in draft_ids.items()):
        same_tokenizer(target, draft)


def _rules(tokenizer: Any) -> tuple[Any, Any]:
    described = _backend(tokenizer)
    return described.get("model", {}).get("merges"), described.get("normalizer")


def _by_id(tokenizer: Any) -> dict[int, str]:
    return {index: token for token, index in tokenizer.get_vocab().items()}
