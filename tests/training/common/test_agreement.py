"""The measured tau is what speculative decoding would give: checked with drafts that are always, never or half
right."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from specviz.drafters.networks.small_lm import SmallCache, SmallConfig
from specviz.training.common.agreement import chain_agreement
from specviz.training.common.data import Dialogues, Markers

MARKERS = Markers((1,), (3,), 2)


class Counting:
    """Drafts the next number, or nonsense after numbers that ``misses`` divides."""

    def __init__(self, misses: int) -> None:
        self.misses = misses
        self.embedding = torch.zeros(100, 4)
        self.draft_ids = torch.arange(100)
        self.config = SmallConfig(vocab_size=100, hidden=4, draft_vocab=100, width=4, layers=1, heads=1)
        self.fed: list[int] = []

    def open(self, capacity: int) -> SmallCache:
        self.fed = []
        return SmallCache(self.config, capacity, self.embedding)

    def __call__(self, ids: torch.Tensor, cache: SmallCache, last_only: bool = False) -> torch.Tensor:
        self.fed = [*self.fed[: cache.length], *ids.tolist()]
        cache.length += len(ids)
        logits = torch.zeros(len(ids), 100)
        for row, token in enumerate(ids.tolist()):
            logits[row, 0 if self.misses and token % self.misses == 0 else token + 1] = 1
        return logits


def counting(length: int) -> Dialogues:
    tokens = np.array([7, 9, *range(10, 10 + length)])
    return Dialogues(tokens, np.array([0, len(tokens)]), np.array([2]), np.array([0.0]))


@pytest.mark.parametrize(("misses", "tau"), [(0, 5.0), (1, 1.0)])
def test_always_right_and_never_right(misses: int, tau: float) -> None:
    found = chain_agreement(Counting(misses), counting(40), [0], MARKERS, depth=4, runs=100)
    assert found.tau == tau
    assert found.top1 == ((1.0,) * 4 if not misses else (0.0,) * 4)


def test_a_miss_every_third_token_gives_three_a_step() -> None:
    model = Counting(3)
    found = chain_agreement(model, counting(60), [0], MARKERS, depth=4, runs=100)
    assert found.tau == pytest.approx(3.0, abs=0.2)
    assert model.fed[:2] == [1, 7], "the draft reads the prefix and the question"
    committed = [1, 7, 9, *range(10, 70)]
    same = [ours == theirs for ours, theirs in zip(model.fed, committed, strict=False)]
    assert all(same[:-5]), "rejected drafts are taken back before the next step"


def test_steps_cut_by_the_end_of_the_answer_are_left_out() -> None:
    found = chain_agreement(Counting(0), counting(12), [0], MARKERS, depth=4, runs=100)
    assert found.steps == 2 and found.tau == 5.0


def test_repetition_is_reported() -> None:
    looping = np.array([7, *([10, 11, 12, 13] * 6)])
    made = Dialogues(looping, np.array([0, 25]), np.array([1]), np.array([0.0]))
    assert chain_agreement(Counting(0), made, [0], MARKERS, 2, 3).repetition > 0.7
    assert chain_agreement(Counting(0), counting(30), [0], MARKERS, 2, 3).repetition == 0
