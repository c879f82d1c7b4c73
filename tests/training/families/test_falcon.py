"""The recipe of the block drafter on a tiny made-up world: what counts, what is shown, what it foresees."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from specviz.drafting.networks.block_net import BlockNet
from specviz.errors import ModelUnavailable
from specviz.training import features
from specviz.training.data import draft_index
from specviz.training.families.falcon import (
    labels_of,
    levels,
    start,
)
from specviz.training.features import DialogueFeatures
from tests.support.tiny.text import tiny_llama
from tests.support.training.stand_ins import Patch, begun
from tests.support.training.tiny_training import IDS, VOCAB


@pytest.fixture(scope="module")
def state(tmp_path_factory):
    """A training whose draft vocabulary lacks some of the answers' tokens."""
    with Patch.context() as patch:
        patch.setattr(features, "SUPPORT", 30)
        yield begun("falcon", tmp_path_factory.mktemp("falcon"), patch)


def one_text(state):
    """The network, a dialogue, and what that wants of it."""
    seen = state.store.get([4])[0]
    return state.net, seen, labels_of(state.net, state.place, seen)


def test_places_that_count_are_those_whose_token_is_in_the_answer_and_in_the_vocabulary(state):
    (net, seen, truth), model = one_text(state), tiny_llama(dtype=torch.float32, vocab=VOCAB)
    known = net.draft_ids.tolist()
    assert (truth.places + 3).tolist() == [at for at in range(seen.first, len(seen.tokens)) if int(seen.tokens[at]) in known]
    assert torch.equal(truth.features, seen.features[truth.places + 2, -1])
    whole = model(seen.tokens[None]).logits[0]
    assert torch.equal(truth.logits.argmax(-1), whole[truth.places + 2][:, known].argmax(-1)), "of the drafted token"


def test_a_target_without_gated_layers_is_refused(state):
    odd = SimpleNamespace(base_model=SimpleNamespace(layers=[torch.nn.Linear(2, 2)]))
    with pytest.raises(ModelUnavailable, match="Llama-like"):
        start(state.net, odd, state.store.get(state.training[:2]))


class Oracle(BlockNet):
    """Says the features k ahead, but for inputs whose token is one it does not know."""

    unknown = -1

    def forward(self, tokens, features, phase=0):
        ahead = torch.cat((features[:, self.block :], features.new_zeros(1, self.block, features.shape[-1])), 1)
        return torch.where((tokens == self.unknown)[..., None], -ahead, ahead)


def certain(net, text):
    """A store in which the head reads the next token out of every feature."""
    tokens = torch.tensor(text)
    read = 5 * net.head[draft_index(net.draft_ids, VOCAB)[tokens].roll(-1).clamp_min(0)]
    return SimpleNamespace(get=lambda numbers: [DialogueFeatures(tokens, read[:, None], 6)])


def test_acceptance_by_level_counts_what_it_says(state):
    torch.manual_seed(0)
    head = torch.nn.functional.normalize(torch.randn(VOCAB, 32), dim=-1)
    net = Oracle(replace(state.net.config, draft_vocab=len(IDS)), torch.randn(VOCAB, 32), head, IDS)
    text = [1, 4, 3, *range(6, 30)]
    sure = levels(net, certain(net, text), [0])
    assert sure == {f"{name}{level}": 1.0 for name in ("first", "five", "alone") for level in (1, 2)} | {"tau": 3.0}
    net.unknown = 20  # the input before it, k ahead of which is token 22, is answered wrong, at either level
    one_wrong = levels(net, certain(net, text), [0])
    starts = len(text) - 4 - 3
    assert one_wrong["alone1"] == pytest.approx(1 - 1 / starts) == one_wrong["alone2"]
    assert one_wrong["first1"] == pytest.approx(1 - 1 / starts)
    assert one_wrong["first2"] == pytest.approx(1 - 1 / (starts - 1))
    assert one_wrong["tau"] == pytest.approx(1 + (2 * starts - 3) / starts)
