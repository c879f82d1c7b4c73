"""A low-rank change: what is added, and what is refused."""

import pytest
import torch
from torch import nn

from specviz.drafting.networks.lora import merge_lora
from specviz.errors import ModelUnavailable


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6, bias=False), nn.Linear(6, 3))


def factors():
    torch.manual_seed(1)
    return {"0.weight.tall": torch.randn(6, 2), "0.weight.wide": torch.randn(2, 4)}


def test_the_product_is_added_and_nothing_else_moves():
    before, after = network(), network()
    merge_lora(after, factors(), "change")
    torch.testing.assert_close(after[0].weight - before[0].weight, factors()["0.weight.tall"] @ factors()["0.weight.wide"])
    assert torch.equal(after[1].weight, before[1].weight)


@pytest.mark.parametrize(
    ("spoiled", "told"),
    [
        ({"0.weight.tall": torch.zeros(6, 2)}, "incomplete"),
        ({"0.weight.tall": torch.zeros(6, 2), "0.weight.wide": torch.zeros(2, 5)}, "0.weight"),
        ({"0.weight.tall": torch.zeros(6, 2), "0.weight.wide": torch.zeros(3, 4)}, "0.weight"),
        ({"9.weight.tall": torch.zeros(6, 2), "9.weight.wide": torch.zeros(2, 4)}, "9.weight"),
    ],
)
def test_a_change_for_another_network_is_refused_and_nothing_moves(spoiled, told):
    made, before = network(), network()
    with pytest.raises(ModelUnavailable, match=told):
        merge_lora(made, spoiled, "change")
    assert torch.equal(made[0].weight, before[0].weight)
