"""What every drafter's network has in common: its file gives it back, and another target or file is refused in a sentence."""

import pytest
import torch

from specviz.drafting.networks.block_net import BlockConfig, BlockNet
from specviz.drafting.networks.cross_net import CrossConfig, CrossNet
from specviz.drafting.networks.eagle_head import EagleConfig, EagleHead
from specviz.drafting.networks.masked_lm import MaskedLM
from specviz.drafting.networks.parallel_net import ParallelConfig, ParallelNet
from specviz.drafting.networks.recurrent_net import RecurrentConfig, RecurrentNet
from specviz.drafting.networks.small_lm import SmallConfig, SmallLM
from specviz.drafting.networks.weights import read_weights, write_weights
from specviz.errors import ModelUnavailable

VOCAB, HIDDEN, KNOWN = 40, 16, 24
SMALL = SmallConfig(VOCAB, HIDDEN, draft_vocab=KNOWN, width=8, layers=1, heads=2, inner=8, window=32)
FEATURES = {"heads": 2, "kv_heads": 1, "head_size": 8, "inner": 8, "taps": (0, 2)}
MAKERS = {
    "feature": lambda e, h, ids: EagleHead(EagleConfig(VOCAB, HIDDEN, wide=True, **FEATURES), e, h, ids),
    "cross": lambda e, h, ids: CrossNet(CrossConfig(VOCAB, HIDDEN, wide=False, **FEATURES), e, h, ids),
    "block": lambda e, h, ids: BlockNet(BlockConfig(VOCAB, HIDDEN, 2, 1, 8, 8, 2, draft_vocab=KNOWN, width=8), e, h, ids),
    "parallel": lambda e, h, ids: ParallelNet(ParallelConfig(HIDDEN, 3, 2, blocks=1, trunk=1, turned=True), h, ids),
    "recurrent": lambda e, h, ids: RecurrentNet(RecurrentConfig(VOCAB, HIDDEN, 2, 8, 8, 8), e, h, ids),
    "small": lambda e, h, ids: SmallLM(SMALL, e, ids),
    "masked": lambda e, h, ids: MaskedLM(SMALL, e, ids),
}
SHARED = {"small": slice(0, 1), "masked": slice(0, 1), "parallel": slice(1, 2)}
"""What those share with their target that want but one of embedding and head."""


@pytest.fixture(params=sorted(MAKERS))
def made(request):
    """A network of each kind, and what it shares with its target."""
    generator = torch.Generator().manual_seed(0)
    embedding, head = (torch.randn(VOCAB, HIDDEN, generator=generator) for _ in range(2))
    net = MAKERS[request.param](embedding, head, torch.arange(3, 3 + KNOWN))
    with torch.no_grad():
        for weight in net.parameters():
            weight.copy_(torch.randn(weight.shape, generator=generator))
    return net, [embedding, head][SHARED.get(request.param, slice(2))]


def load(net, path, shared):
    return type(net).load(path, shared, torch.float32, torch.device("cpu"))


def test_a_file_gives_a_network_back_without_the_targets_tensors(made, tmp_path):
    net, shared = made
    net.save(tmp_path / "new" / "net.safetensors", {"licence": "none"})
    tensors, card = read_weights(tmp_path / "new" / "net.safetensors")
    assert card["licence"] == "none" and not {"embedding", "head", "rotary"} & set(tensors)
    again = load(net, tmp_path / "new" / "net.safetensors", shared)
    assert again.config == net.config and torch.equal(again.draft_ids, net.draft_ids)
    for name, value in net.state_dict().items():
        assert torch.allclose(again.state_dict()[name], value, atol=0.02 * float(value.abs().max())), name
    assert not any(weight.requires_grad for weight in again.parameters()) and not again.training


def test_what_does_not_fit_is_refused_in_a_sentence(made, tmp_path):
    net, shared = made
    path = tmp_path / "net.safetensors"
    net.save(path, {})
    expected = f"(a target with {VOCAB} tokens and a hidden size of|states of width) {HIDDEN}.*[Cc]hoose the target"
    with pytest.raises(ModelUnavailable, match=expected):
        load(net, path, [part[:, 1:] for part in shared])
    tensors, card = read_weights(path)
    name = next(iter(net.state_dict()))
    write_weights(path, {other: value for other, value in tensors.items() if other != name}, card)
    with pytest.raises(ModelUnavailable, match="does not hold the weights of a .*: fetch the file again"):
        load(net, path, shared)
    write_weights(path, tensors, {})
    with pytest.raises(ModelUnavailable, match="choose a file written by"):
        load(net, path, shared)


def test_rotary_tables_grow_without_changing_what_they_held(made):
    net, _ = made
    if "rotary" in dict(net.named_buffers()):
        before = net.rotary.clone()
        net.reach(5 * before.shape[1])
        assert net.rotary.shape[1] >= 5 * before.shape[1] and torch.equal(net.rotary[:, : before.shape[1]], before)
