"""The recipes of masked language models: what is hidden and what it counts, that stages resume and the base stays."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from specviz.drafting.networks.masked_lm import MaskedLM
from specviz.training import data
from specviz.training.families import masked
from specviz.training.families.masked import block_agreement
from tests.support.training.tiny_masked import fresh, state_of, taught
from tests.support.training.tiny_training import MARKERS, dialogues


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(masked, "RANK", 8)
    monkeypatch.setattr(masked, "REACH", 6)


@pytest.fixture(scope="module")
def learned() -> MaskedLM:
    made = state_of()
    taught(made, 50)
    return made.model


def test_the_learned_answers_of_a_milestone_are_the_first_that_were_read(monkeypatch: pytest.MonkeyPatch) -> None:
    told, asked, judged = dialogues(120), list[int](), list[list[int]]()
    monkeypatch.setattr(masked, "EARLY", 8)
    turn = data._turn
    monkeypatch.setattr(data, "_turn", lambda told, number, markers: asked.append(number) or turn(told, number, markers))
    made = state_of(fresh())
    monkeypatch.setattr(
        masked, "block_agreement", lambda model, told, numbers, *_: judged.append(numbers) or {"tau": 1.0 + len(judged)}
    )  # type: ignore[func-returns-value]
    next(made.stream)
    assert made.measure() == {"tau": 2.0, "gap": 1.0}
    held_out, learned = data.split(told)[1], list(dict.fromkeys(asked))[:8]
    assert judged == [data.greedy_only(told, numbers)[:12] for numbers in (held_out, learned)]


@pytest.mark.slow
def test_agreement_counts_blocks_by_hand(learned: MaskedLM) -> None:
    told = dialogues(120)
    number = data.split(told)[1][0]
    found = block_agreement(learned, told, [number], MARKERS, 3, 100)
    text = [*MARKERS.prefix, *told.of(number)]
    at, answer, lengths = len(text) - len(told.answer(number)), told.answer(number).tolist(), []
    while at + 4 <= len(text):
        best = learned.draft_ids[learned(torch.tensor(text[:at]), 3).argmax(-1)].tolist()
        right = [one == other for one, other in zip(best, text[at:], strict=False)]
        lengths.append(right.index(False) if False in right else 3)
        at += lengths[-1] + 1
    assert found["tau"] == pytest.approx(np.mean(lengths) + 1) and found["steps"] == len(lengths)
    assert found["longest"] == max(lengths) and len(answer) > 4
    assert found["first1"] == pytest.approx(np.mean([length > 0 for length in lengths]))
