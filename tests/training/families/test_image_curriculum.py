"""Curriculum of image models: short beginnings of many pictures cost what few whole ones do."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from specviz.models.image.prompts import PROMPT_TOKENS
from specviz.training.families import image_ar
from specviz.training.families.image_ar import TIMES, Curriculum


class Shelf:
    """Pictures whose codes say which one they are of; the prompt says it too."""

    def __init__(self) -> None:
        self.next = 0

    def guided_batch(self, count: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        names = torch.arange(self.next, self.next + count)
        self.next += count
        words = torch.stack((torch.ones(count, dtype=torch.long), names), dim=1)
        return words, torch.zeros_like(words), names[:, None].expand(-1, 16).contiguous()

    def draw(self, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        words, _, codes = self.guided_batch(count)
        return words, codes


def lessons(monkeypatch: pytest.MonkeyPatch, places: int, own: bool, grid: int = 4, count: int = 3) -> Curriculum:
    monkeypatch.setattr(image_ar, "length", lambda share, probability, grid: (places, own))

    def draw(prompts: torch.Tensor, empty: torch.Tensor, places: int, seed: int) -> torch.Tensor:
        assert own and not empty.any(), "nothing is drawn for lessons as they are given"
        return prompts[:, 1:].expand(-1, places) + 100

    return Curriculum(Shelf(), draw, grid, count)  # type: ignore[arg-type]


def test_lessons_as_given_are_short_and_their_words_are_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    words, codes, read = lessons(monkeypatch, 4, False).next(0.0)
    assert codes.shape == read.shape == (3 * (PROMPT_TOKENS + 16) // (PROMPT_TOKENS + 4), 4)
    assert torch.equal(words[:, 1], codes[:, 0]) and (read == codes).float().mean() > 0.75


def test_short_beginnings_cost_what_whole_pictures_do(monkeypatch: pytest.MonkeyPatch) -> None:
    for places in (16, 32, 64, 128, 256):
        count = len(lessons(monkeypatch, places, False, 16, 12).next(0.0)[0])
        assert count >= 12 and count * (16 + places) == pytest.approx(12 * 272, rel=0.05)


def test_own_drawings_stand_beside_what_was_right_and_come_so_many_times(monkeypatch: pytest.MonkeyPatch) -> None:
    made = lessons(monkeypatch, 8, True)
    seen = Counter[int]()
    for _ in range(2 * TIMES * TIMES):
        words, right, own = made.next(0.9)
        assert torch.equal(own, right + 100) and torch.equal(words[:, 1], right[:, 0])
        seen.update(words[:, 1].tolist())
    assert set(seen.values()) == {TIMES} and len(seen) == made.drawn[8] == made.batches.next == 2 * TIMES * (3 * 32 // 24)
