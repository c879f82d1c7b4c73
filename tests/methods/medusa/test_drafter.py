"""Heads on the target's last hidden state: what they start as, what they read, and how they come back from a file."""

import pytest
import torch

from specviz.acceptance.exact import Match
from specviz.drafting.networks.parallel_net import ParallelConfig, ParallelNet
from specviz.drafting.trees.best_first import ranked
from specviz.engine.interfaces import Composition, SingleDrafter
from specviz.engine.loop import Decoding, Recorder
from specviz.engine.sampling import Noise, Warp
from specviz.errors import ModelUnavailable
from specviz.methods.medusa.drafter import ParallelDrafter, Product
from tests.support.rounds import context
from tests.support.tiny.text import Letters, tiny_llama, tiny_target

TAP = 2  # of a target with two layers: its last hidden state, after the norm
HIDDEN = 32


def head():
    return tiny_llama().get_output_embeddings().weight.detach()


def network(heads=3, seed=5, draft_ids=None):
    torch.manual_seed(seed)
    net = ParallelNet(ParallelConfig(HIDDEN, heads, TAP), head(), draft_ids).double().requires_grad_(False)
    for value in net.parameters():
        value.normal_(std=0.3)
    return net


def test_untrained_heads_all_say_what_the_target_says():
    net = ParallelNet(ParallelConfig(HIDDEN, 3, TAP), head()).double()
    features = torch.randn(5, HIDDEN, dtype=torch.float64)
    for said in net.logits(features):
        assert torch.allclose(said, features @ head().T)


def test_heads_that_share_what_they_read_turn_it_each_their_own_way():
    torch.manual_seed(2)
    net = ParallelNet(ParallelConfig(HIDDEN, 2, TAP, blocks=0, trunk=1, turned=True), head()).double()
    features = torch.randn(5, HIDDEN, dtype=torch.float64)
    assert torch.allclose(net.logits(features)[1], features @ head().T)
    for value in net.parameters():
        value.data.normal_(std=0.3)
    weight, bias = net.trunk[0].linear.weight, net.trunk[0].linear.bias
    read = features + torch.nn.functional.silu(features @ weight.T + bias)
    for said, turn in zip(net.logits(features), net.heads, strict=True):
        assert torch.allclose(said, (read @ turn[0].weight.T + turn[0].bias) @ head().T)


def test_a_draft_vocabulary_takes_its_rows_of_the_targets_head():
    ids = torch.tensor([40, 3, 17])
    features = torch.randn(2, HIDDEN, dtype=torch.float64)
    assert torch.allclose(network(draft_ids=ids).logits(features), network().logits(features)[..., ids])


def test_a_target_of_another_width_is_refused():
    with pytest.raises(ModelUnavailable, match="width 64, but the target's have width 32"):
        ParallelNet(ParallelConfig(64, 3, TAP), head())


class Watching(ParallelDrafter):
    """Notes which text each drafting went on from, and what it said."""

    def __init__(self, net):
        super().__init__(net)
        self.said = []


class Noted(Product):
    def build(self, drafter, now):
        draft = super().build(drafter, now)
        logits = drafter.marginals(now)
        lists = [] if logits is None else ranked(logits, drafter.support, 4)
        drafter.said.append((list(now.ids), [one.tokens for one in lists]))
        return draft


@pytest.mark.spread(1)
@pytest.mark.parametrize("tier", ["eager", "graph"])
@pytest.mark.parametrize("draft_ids", [None, torch.arange(4, 44)])
def test_each_round_reads_the_target_at_the_token_before_the_root(tier, draft_ids):
    """Head k's list is the one a fresh pass over the text without its last token gives."""
    target, net = tiny_target(tier), network(draft_ids=draft_ids)
    drafter = Watching(net)
    paths = [(0,), (1,), (2,), (3,), (0, 0), (0, 1), (1, 0), (0, 0, 0)]
    composition = Composition(SingleDrafter(drafter, Noted(paths)), Match(), (TAP,))
    run = Decoding(target, composition, [3, 1, 4, 1, 5], Warp(), Noise(0), 40, Recorder(Letters()))
    steps = list(run.steps())
    assert not run.outcome.message
    assert any(len(step.path) for step in steps)
    ids = torch.arange(48) if draft_ids is None else draft_ids
    for text, said in drafter.said:
        states = tiny_llama()(torch.tensor([text[:-1]]), output_hidden_states=True).hidden_states[TAP][0, -1:]
        expected = ids[net.logits(states)[:, 0].topk(4).indices]
        assert [list(one) for one in said] == expected.tolist()


def test_a_prompt_of_one_token_leaves_nothing_to_read_at_first():
    drafter = ParallelDrafter(network())
    drafter.begin(context([5]), None)
    assert drafter.marginals(context([5])) is None and drafter.calls() == 0
    composition = Composition(SingleDrafter(drafter, Product([(0,), (0, 0)])), Match(), (TAP,))
    run = Decoding(tiny_target(), composition, [5], Warp(), Noise(0), 12, Recorder(Letters()))
    steps = list(run.steps())
    assert [len(step.nodes) for step in steps[:2]] == [1, 3]
    assert [step.draft_calls for step in steps[:2]] == [0, 1]
