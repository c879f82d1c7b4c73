"""Dialogues the target writes itself: well formed, its own words, greedy where they say so."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from specviz.bench.kit import prompts
from specviz.training.common import data, dialogues
from specviz.training.common.data import Markers
from specviz.training.common.openings import KINDS, opening
from specviz.training.common.target_assets import Material
from specviz.training.registry import Job, recipes

END = 2
PREFIX, ANSWER = (1, 9, 11), (END, 5, 6)


@pytest.fixture(scope="module")
def stuff() -> Material:
    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=24, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, initializer_range=0.3, eos_token_id=None, bos_token_id=None, pad_token_id=None,
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval().requires_grad_(False)
    target = SimpleNamespace(model=model, device=torch.device("cpu"))
    return Material(target, model.get_input_embeddings().weight, Markers(PREFIX, (5,), END), ANSWER)


def test_questions_end_in_the_separator_and_differ(stuff: Material) -> None:
    torch.manual_seed(0)
    found = dialogues.questions(stuff, [()] * 48)
    assert len(found) >= 5 and len(set(found)) == len(found)
    for question in found:
        assert question[-3:] == ANSWER and question.count(END) == 1
        assert len(question) >= dialogues.SHORTEST_QUESTION + len(ANSWER)


def test_a_question_begins_as_it_is_told_to(stuff: Material) -> None:
    torch.manual_seed(0)
    openings = [(7, 8, 12), (), (10,)] * 16
    found = dialogues.questions(stuff, openings)
    begun = [next((one for one in ((7, 8, 12), (10,)) if question[: len(one)] == one), ()) for question in found]
    assert {(7, 8, 12), (10,)} <= set(begun) and len(found) <= len(openings)


def test_every_kind_of_question_has_its_turn() -> None:
    first = [opening(number) for number in range(len(KINDS))]
    assert [text in kind for text, kind in zip(first, KINDS, strict=True)] == [True] * len(KINDS)
    assert {opening(number) for number in range(len(KINDS) * max(map(len, KINDS)))} == set().union(*KINDS)


def test_a_greedy_answer_is_what_the_target_would_say(stuff: Material) -> None:
    asked = [(7, 8, *ANSWER), (10, 12, 13, 14, 15, *ANSWER)]
    for one in dialogues.answers(stuff, asked, 0.0):
        assert one.answer[-1] == END or len(one.answer) == dialogues.LONGEST_ANSWER
        ids = [*PREFIX, *one.question]
        for token in one.answer[:12]:
            logits = stuff.target.model(torch.tensor([ids])).logits[0, -1]
            assert int(logits.argmax()) == token, "padding in front of the shorter question must not be seen"
            ids.append(token)


def test_nothing_follows_an_answers_end(stuff: Material) -> None:
    torch.manual_seed(0)
    found = dialogues.answers(stuff, [(7, 8, *ANSWER)] * 30, 1.0)
    assert all(END not in one.answer[:-1] and one.answer for one in found)
    assert len({one.answer for one in found}) > 1


def test_the_file_grows_when_resumed_and_can_be_trained_on(
    stuff: Material, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dialogues, "material", lambda device: stuff)
    monkeypatch.setattr(dialogues, "_ids", lambda stuff, text: (7, 8))
    path = tmp_path / "d.npz"
    job = Job(recipes()["dialogues"], "cpu", 1e-6, False, str(path))
    ticks = iter([0.0, 0.0, 1.0])
    monkeypatch.setattr(dialogues.time, "monotonic", lambda: next(ticks))
    dialogues.make(job)
    first = data.read(path)
    assert len(first) > 0 and len({float(one) for one in first.temperature}) == 1
    ticks = iter([0.0, 0.0, 1.0])
    dialogues.make(Job(job.recipe, "cpu", 1e-6, True, str(path)))
    more = data.read(path)
    assert len(more) > len(first)
    assert (more.tokens[: len(first.tokens)] == first.tokens).all()
    asked = [tuple(more.of(number)[: more.prompt[number]]) for number in range(len(more))]
    assert len(set(asked)) == len(asked), "no question twice"


def test_no_prompt_that_numbers_are_reported_on_begins_with_an_opening() -> None:
    reported = [text for texts in prompts.KINDS.values() for text in texts] + list(prompts.GROUNDED)
    openings = {one for kind in KINDS for one in kind}
    assert not [(text, one) for text in reported for one in openings if text.startswith(one)]
    assert len(openings) == sum(map(len, KINDS)), "none is there twice"
