"""The default target, really: fetched, unpacked, loaded, and asked a question."""

from __future__ import annotations

import pytest
import torch

from specviz.engine.attention import GROUPED
from specviz.models.hub.catalog import DEFAULT_TEXT_TARGET
from specviz.models.hub.prepare import prepare
from specviz.models.text.load import load_causal_lm

pytestmark = pytest.mark.model


def test_smollm2_is_what_its_card_says() -> None:
    loaded = load_causal_lm(DEFAULT_TEXT_TARGET)
    assert (loaded.text.rows, loaded.text.context_length) == (49152, 8192)
    unpacked = load_causal_lm(DEFAULT_TEXT_TARGET, "float64").model
    assert sum(weight.numel() for weight in unpacked.parameters()) == 134_515_008
    assert loaded.device.type != "cpu" or loaded.model.config._attn_implementation == GROUPED
    assert {loaded.text.of(end) for end in loaded.eos_ids} == {"<|im_end|>"}
    assert loaded.warnings == ()


def test_smollm2_gets_its_own_system_prompt() -> None:
    text = load_causal_lm(DEFAULT_TEXT_TARGET).text
    wrapped = text.decode(text.encode("Hello"))
    assert wrapped.startswith("<|im_start|>system\nYou are a helpful AI assistant named SmolLM")
    assert wrapped.endswith("<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n")
    assert text.decode(text.encode("Hello", raw=True)) == "Hello"


def test_smollm2_answers_and_its_pieces_join_to_the_answer() -> None:
    loaded = load_causal_lm(DEFAULT_TEXT_TARGET, "float32")
    ids = loaded.text.encode("What is the capital of France?")
    prompt = torch.tensor([ids], device=loaded.device)
    with torch.inference_mode():
        answer = loaded.model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=24, do_sample=False)[
            0, len(ids) :
        ].tolist()
    pieces = loaded.text.pieces(ids, answer)
    assert "".join(pieces) == loaded.text.decode(answer)
    assert "Paris" in "".join(pieces)
    assert answer[-1] in loaded.eos_ids


def test_smollm2_cuts_numbers_as_it_was_trained() -> None:
    text = load_causal_lm(DEFAULT_TEXT_TARGET).text
    ids = text.encode("List:\n\n1. a  12", raw=True)
    assert [text.of(token) for token in ids] == ["List", ":", "\n\n", "1", ".", " a", "  ", "1", "2"]


def test_smollm2_is_ready_without_asking_anybody_the_second_time() -> None:
    prepare(DEFAULT_TEXT_TARGET)
    told: list[str] = []
    prepare(DEFAULT_TEXT_TARGET, lambda message, fraction: told.append(message))
    assert told == []
