"""Whether a draft model's tokens mean what the target's mean."""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any

import pytest

from specviz.errors import TokenizerMismatch
from specviz.models.text.text import same_tokenizer, same_words, tokenizer_hash


def _model(name: str, tokenizer: Any) -> SimpleNamespace:
    return SimpleNamespace(name=name, tokenizer=tokenizer, tokenizer_hash=tokenizer_hash(tokenizer))


def test_the_hash_depends_on_tokens_not_on_templates(byte_level: Any, base_model: Any, sentencepiece: Any) -> None:
    assert tokenizer_hash(byte_level) == tokenizer_hash(base_model) == tokenizer_hash(copy.deepcopy(byte_level))
    assert tokenizer_hash(byte_level) != tokenizer_hash(sentencepiece)
    assert len(tokenizer_hash(byte_level)) == 64


def test_models_of_one_family_pass(byte_level: Any, base_model: Any) -> None:
    same_tokenizer(_model("target", byte_level), _model("draft", base_model))


def test_a_mismatch_names_both_and_the_first_difference(byte_level: Any, sentencepiece: Any) -> None:
    with pytest.raises(TokenizerMismatch) as caught:
        same_tokenizer(_model("big", byte_level), _model("small", sentencepiece))
    said = str(caught.value)
    assert "big" in said and "small" in said and "token 0 is '<|endoftext|>' in one and '<unk>' in the other" in said


def test_a_target_may_have_tokens_for_pictures_besides(byte_level: Any, sentencepiece: Any) -> None:
    seeing = copy.deepcopy(byte_level)
    seeing.add_tokens(["<image>", "<end_of_utterance>"])
    same_words(_model("target", seeing), _model("draft", byte_level))
    same_words(_model("target", byte_level), _model("draft", byte_level))
    with pytest.raises(TokenizerMismatch, match="is None in one and '<image>'"):
        same_words(_model("target", byte_level), _model("draft", seeing))
    with pytest.raises(TokenizerMismatch, match="token 0 is"):
        same_words(_model("target", seeing), _model("draft", sentencepiece))
