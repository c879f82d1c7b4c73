"""Curriculum of image models: short beginnings of many pictures cost what few whole ones do and come when the schedule says.

Own drawings are from the model as it is, with guidance, each given as often as it says before others are drawn.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from specviz.models.image.image_shape import TextShape, VqShape
from specviz.training.families.image_ar import SCHEDULE, Curriculum, OwnDrawings, length, many
from specviz.training.families.image_net import ImageNet, attended, draw, fresh

VQ = VqShape(codes=20, channels=32, multiplier=(1, 1), latent=32)
SHAPE = TextShape(prompts=30, width=16, inner=24, layers=2, heads=2)


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


def test_the_schedule_is_whole() -> None:
    assert [end for end, _ in SCHEDULE] == sorted(end for end, _ in SCHEDULE) and SCHEDULE[-1][0] == 1
    for _, kinds in SCHEDULE:
        assert sum(kinds.values()) == pytest.approx(1)


@pytest.mark.parametrize("grid", [8, 16])
def test_every_phase_reads_whole_pictures_and_short_beginnings(grid: int) -> None:
    shares = torch.linspace(0, 1, 400).tolist()
    for begin, end in zip((0.0, 0.35), (0.34, 1.0), strict=True):
        found = {length(begin, one, grid) for one in shares} | {length(end, one, grid) for one in shares}
        assert any(places == grid * grid for places, _ in found)
        assert any(own and places <= grid * grid // 4 for places, own in found)
        assert all(places % grid == 0 and grid <= places <= grid * grid for places, _ in found)


def test_own_drawings_end_after_a_quarter() -> None:
    """Below its own wrong rows a picture is noise, and nothing is to be learned from it."""
    found = {length(share, one / 400, 16) for share in (0.0, 0.3, 0.5, 1.0) for one in range(400)}
    assert max(places for places, own in found if own) == 64


def test_short_beginnings_cost_what_whole_pictures_do() -> None:
    assert many(256, 16, 12, words=16) == 12
    for rows in (1, 2, 4, 8):
        count = many(rows * 16, 16, 12, words=16)
        assert count * (16 + rows * 16) == pytest.approx(12 * 272, rel=0.05)
        assert count > 12


def test_lessons_as_given_are_short_and_their_words_are_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specviz.training.families.image_ar.length", lambda share, probability, grid: (4, False))
    lessons = Curriculum(Shelf(), _unasked, grid=4, count=3, guidance=2.0, workers=None)  # type: ignore[arg-type]
    words, codes, read = lessons.next(0.0)
    assert codes.shape == read.shape == (many(4, 4, 3, 16), 4)
    assert torch.equal(words[:, 1], codes[:, 0])
    assert (read == codes).float().mean() > 0.75


def test_the_models_own_drawings_stand_beside_what_was_right(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specviz.training.families.image_ar.length", lambda share, probability, grid: (8, True))
    drawn = []

    def drawing(net, rows, cells, guidance, seed):
        drawn.append((len(rows), cells, guidance, seed))
        return torch.tensor([[row[0][1] + 100] * cells for row in rows])

    monkeypatch.setattr("specviz.training.families.image_ar.draw", drawing)
    monkeypatch.setattr("specviz.training.families.image_ar.halved", lambda net: net)
    lessons = Curriculum(Shelf(), lambda: "net", grid=4, count=3, guidance=2.0, workers=2)  # type: ignore[arg-type, return-value]
    words, right, own = lessons.next(0.9)
    assert torch.equal(own, right + 100) and torch.equal(words[:, 1], right[:, 0])
    assert right.shape == (many(8, 4, 3, 16), 8)
    assert {cells for _, cells, _, _ in drawn} == {8} and len({seed for *_, seed in drawn}) == 2
    assert sum(count for count, *_ in drawn) == 3 * len(right)


def _unasked():
    raise AssertionError("Nothing is drawn for lessons as they are given.")


@pytest.fixture
def net() -> ImageNet:
    codebook = F.normalize(torch.randn(20, 8, generator=torch.Generator().manual_seed(0)), dim=-1)
    return ImageNet(fresh(VQ, SHAPE, 4, codebook), SHAPE, torch.float32)


def ask(count: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    words = torch.stack((torch.ones(count, dtype=torch.long), torch.arange(count) % 28 + 2), dim=1)
    return words, torch.zeros_like(words), words[:, 1:].expand(-1, 16) % 20


def test_they_are_what_the_model_draws_for_their_prompts(net: ImageNet) -> None:
    drawings = OwnDrawings(ask, places=8, count=4, guidance=2.0, workers=None, times=1, seed=5)
    words, right, own = drawings.next(lambda: net)
    rows = [(tuple(one), (0, 0)) for one in ask(4)[0].tolist()]
    expected = draw(net, rows, 8, 2.0, seed=5)
    order = torch.argsort(words[:, 1])
    assert torch.equal(own[order], expected)
    assert torch.equal(right[order], ask(4)[2][:, :8])


def test_each_is_given_so_often_and_then_others_are_drawn(net: ImageNet) -> None:
    made = []

    def now() -> ImageNet:
        made.append(1)
        return net

    drawings = OwnDrawings(ask, places=4, count=3, guidance=2.0, workers=2, times=3)
    seen = [tuple(drawings.next(now)[0][:, 1].tolist()) for _ in range(9)]
    assert len(made) == 1
    assert sorted(name for part in seen for name in part) == sorted([*range(2, 11)] * 3)
    drawings.next(now)
    assert len(made) == 2


def test_they_can_be_learned_from(net: ImageNet) -> None:
    """Drawn without gradients, and still codes that a network which keeps them may read."""
    learning = {name: nn.Parameter(value.detach()) for name, value in net.parameters.items()}
    lesson = OwnDrawings(ask, places=8, count=4, guidance=2.0, workers=2).next(lambda: net)
    ImageNet(learning, SHAPE, torch.float32).loss(*lesson).backward()
    assert learning["model.language_model.layers.0.mlp.up_proj.weight"].grad.abs().max() > 0


def test_one_place_among_many_is_read_as_torchs_attention_reads_it() -> None:
    query, key, value = (torch.randn(2, 3, places, 8, dtype=torch.double) for places in (1, 9, 9))
    torch.testing.assert_close(
        attended(query, key, value), F.scaled_dot_product_attention(query, key, value), atol=1e-5, rtol=1e-5
    )
