"""Prompts that numbers are reported on: enough of each kind, all different, and none that a drafter was trained on."""

from __future__ import annotations

import re

import pytest

from specviz.bench.kit.prompts import CALIBRATION, GROUNDED, KINDS


def plain(text: str) -> str:
    """Words alone, so that a stray comma does not hide a twin."""
    return " ".join(re.findall(r"[a-z0-9]+", text.lower()))


def test_six_kinds_of_at_least_ten_prompts() -> None:
    assert list(KINDS) == ["chat", "translation", "summarising", "question answering", "maths", "code"]
    assert all(len(prompts) >= 10 for prompts in KINDS.values())


def test_every_prompt_is_asked_once() -> None:
    asked = [plain(prompt) for prompts in (*KINDS.values(), GROUNDED, CALIBRATION) for prompt in prompts]
    assert len(set(asked)) == len(asked)


@pytest.mark.model
def test_no_prompt_is_in_the_dialogues_that_drafters_learn_from() -> None:
    from specviz.models.text.load import load_causal_lm
    from specviz.training.common import data

    if not data.place().is_file():
        pytest.skip("no dialogues on this machine")
    tokenizer = load_causal_lm("smollm2-135m-instruct").tokenizer
    dialogues = data.read_all(data.find())
    questions = [tokenizer.decode(dialogues.of(one)[: dialogues.prompt[one]]) for one in range(len(dialogues))]
    learned = "\n".join(plain(question) for question in questions)
    reported = [prompt for prompts in (*KINDS.values(), GROUNDED, CALIBRATION) for prompt in prompts]
    assert not [prompt for prompt in reported if plain(prompt) in learned]
