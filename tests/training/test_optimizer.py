"""The optimiser: what Muon does to a matrix, to a pile of them, and to what is slower."""

import pytest
import torch

from specviz.training.optimizer import Optimizer, orthogonalise


@pytest.mark.parametrize("shape", [(8, 8), (4, 12), (12, 4)])
def test_every_direction_of_an_update_weighs_about_the_same(shape):
    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(0)) * 30
    values = torch.linalg.svdvals(orthogonalise(matrix))
    assert values.min() > 0.5 and values.max() < 1.3
    left, _, right = torch.linalg.svd(matrix, full_matrices=False)
    found, goal = orthogonalise(matrix).flatten(), (left @ right).flatten()
    assert torch.nn.functional.cosine_similarity(found, goal, dim=0) > 0.97


def test_matrices_that_stand_on_top_of_each_other_move_as_if_each_were_alone():
    upper, lower = torch.randn(4, 6), 100 * torch.randn(4, 6)
    alone = {"upper": torch.zeros(4, 6), "lower": torch.zeros(4, 6)}
    pile = {"pile": torch.zeros(8, 6)}
    Optimizer(alone).step({"upper": upper, "lower": lower}, 0.1)
    Optimizer(pile, stacked={"pile": 2}).step({"pile": torch.cat((upper, lower))}, 0.1)
    torch.testing.assert_close(pile["pile"], torch.cat((alone["upper"], alone["lower"])))
    as_one = {"pile": torch.zeros(8, 6)}
    Optimizer(as_one).step({"pile": torch.cat((upper, lower))}, 0.1)
    assert not torch.allclose(as_one["pile"], pile["pile"])


def test_what_is_slower_moves_by_its_share_and_tables_are_no_matrices():
    start = {name: torch.ones(1, 4, 3) for name in ("table", "slow")}
    optimizer = Optimizer({name: value.clone() for name, value in start.items()}, rate_factors={"slow": 0.25})
    gradient = torch.randn(1, 4, 3, generator=torch.Generator().manual_seed(0))
    optimizer.step({"table": gradient, "slow": gradient}, 0.01)
    moved = {name: start[name] - value for name, value in optimizer.parameters.items()}
    assert torch.allclose(moved["slow"], 0.25 * moved["table"], atol=1e-6)
    assert torch.allclose(moved["table"].abs(), torch.full((1, 4, 3), 0.01), atol=1e-4)  # Adam's first step


def test_orthogonalising_roughly_is_nearly_the_same():
    gradient = torch.randn(16, 24, generator=torch.Generator().manual_seed(1))
    moves = []
    for fast_dtype in (None, torch.bfloat16):
        optimizer = Optimizer({"matrix": torch.zeros(16, 24)}, fast_dtype=fast_dtype)
        optimizer.step({"matrix": gradient}, 0.1)
        moves.append(optimizer.parameters["matrix"])
    assert float((moves[0] - moves[1]).norm() / moves[0].norm()) < 0.05
