"""Own drawings: from the model as it is, with guidance, each given as often as it says before others are drawn."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from specviz.models.image.image_shape import TextShape, VqShape
from specviz.training.image.image_drift import OwnDrawings
from specviz.training.image.image_net import ImageNet, fresh
from specviz.training.image.image_samples import attended, draw

VQ = VqShape(codes=20, channels=32, multiplier=(1, 1), latent=32)
SHAPE = TextShape(prompts=30, width=16, inner=24, layers=2, heads=2)


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
