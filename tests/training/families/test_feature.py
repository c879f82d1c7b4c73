"""The recipes of feature drafters on a tiny made-up world: what counts, what is read, and how it is measured."""

import copy
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
import torch

from specviz.errors import BadInput
from specviz.methods.medusa.drafter import paths_of
from specviz.methods.registry import published_tree
from specviz.models.hub.packed_model import BASE_KEY
from specviz.models.packing import PackedLinear, pack
from specviz.training import acceptance, data, features
from specviz.training.driver import Progress
from specviz.training.families import feature
from specviz.training.families.feature import acceptance_metrics, shuffled, unroll
from specviz.training.features import DialogueFeatures
from specviz.training.phrases import KINDS, REPORTED
from tests.support.tiny.text import tiny_llama
from tests.support.training.stand_ins import Patch, begun
from tests.support.training.tiny_training import VOCAB, dialogues


@pytest.fixture(scope="module")
def once(tmp_path_factory):
    """EAGLE-3's training with a draft vocabulary that lacks some of the answers' tokens."""
    with Patch.context() as patch:
        patch.setattr(features, "SUPPORT", 30)
        yield begun("eagle3", tmp_path_factory.mktemp("eagle3"), patch)


@pytest.fixture
def one(once):
    """The same, to be changed by a test."""
    return copy.copy(once)


def test_a_resumed_training_goes_on_in_the_same_round_with_batches_of_any_size(one):
    order = list(islice(shuffled(one.training), 2 * len(one.training)))
    one.progress = Progress(updates=3, tokens=one.answers(order[:24]))
    for size in (8, 64):
        one.settings = replace(one.settings, batch=size)
        one.begin()
        assert one.visited() == order[:24] and one.distinct() == one.progress.tokens
        assert [next(one.stream), next(one.stream)] == [order[24 : 24 + size], order[24 + size :][:size]]
    one.progress = Progress(tokens=one.answers(order))
    assert one.visited()[:24] == order[:24] and sorted(one.visited()) == sorted(one.training)


def test_what_was_begun_on_other_data_is_not_resumed(tmp_path, monkeypatch):
    """A draft vocabulary of other data is as large, so no shape would tell."""
    states = []
    for place, source in enumerate(("dialogues 1", "dialogues 1", "dialogues 2")):
        monkeypatch.setattr(data, "dialogues_line", lambda files, *more, source=source: source)
        (folder := tmp_path / str(place)).mkdir()
        states.append(begun("small_draft", folder, monkeypatch))
    first, same, other = states
    first.write(tmp_path / "c")
    same.read(tmp_path / "c")
    with pytest.raises(BadInput, match="data was 'dialogues 1', now 'dialogues 2'"):
        other.read(tmp_path / "c")


@pytest.mark.parametrize(("name", "base"), [("gto", "eagle3"), ("deer", "masked_lm"), ("arms", "small_draft")])
def test_a_low_rank_change_is_bound_to_the_weights_that_it_changes(name, base, tmp_path, monkeypatch):
    state = begun(name, tmp_path, monkeypatch)
    assert state.sources["data"] and state.sources[BASE_KEY].startswith(f"{base}.safetensors ")
    state.write(tmp_path / "c")
    state.sources = {**state.sources, BASE_KEY: f"{base}.safetensors 0123456789abcdef"}
    with pytest.raises(BadInput, match=f"{base}.safetensors .* now '{base}.safetensors 0123456789abcdef'"):
        state.read(tmp_path / "c")


def test_what_is_compared_with_held_out_answers_is_of_their_kinds_and_drawn_like_them(one):
    told = one.dialogues = replace(one.dialogues, kind=np.arange(len(one.dialogues)) % len(KINDS))
    one.held_out, one.progress = data.greedy_only(told, one.held_out), Progress(tokens=one.answers(one.training))
    measured = []
    one.measured = lambda numbers: measured.extend(numbers) or {"tau": 1.0}
    one.measure()
    known = set(measured) & set(one.training)
    assert known and {float(told.temperature[number]) for number in known} == {0.0}
    assert {KINDS[int(told.kind[number])] for number in known} <= set(REPORTED)


def test_only_answers_count_and_of_them_what_the_draft_vocabulary_has(one):
    known = set(one.net.draft_ids.tolist())
    seen = next(seen for seen in one.store.get(one.training[:20]) if not set(seen.tokens[seen.first :].tolist()) <= known)

    def value(changed):
        return float(one.loss(changed, torch.Generator().manual_seed(1), 1.0).detach())

    def changed(places):
        """With another thought of the target's at these places, where nothing but the wanted distributions is read."""
        features = seen.features.clone()
        features[places, -1] = features[places, -1].roll(1, -1)
        return DialogueFeatures(seen.tokens, features, seen.first)

    before = value(seen)
    counted = [place for place in range(seen.first - 1, len(seen.tokens) - 1) if int(seen.tokens[place + 1]) in known]
    for place in range(len(seen.tokens)):
        moved = value(changed(torch.tensor([place]))) != before
        # With few starts in the deeper steps every answer token still counts in the first.
        assert moved == (place in counted), place


def test_acceptance_is_what_drafting_from_each_place_alone_would_find(one):
    numbers, rows = one.held_out[:2], []
    for seen in one.store.get(numbers):
        fused = seen.features[:, feature.EAGLE3_TAPS].flatten(1)
        for start in range(seen.first - 2, len(seen.tokens) - 4):
            outputs = unroll(one.net, seen.tokens, fused, [torch.tensor([start])] * 3)
            named = [one.net.draft_ids[one.net.logits(output)[0].topk(5).indices].tolist() for output in outputs]
            truths = seen.tokens[start + 2 : start + 5].tolist()
            rows.append([best.index(truth) if truth in best else 9 for best, truth in zip(named, truths, strict=True)])
    found = acceptance_metrics(one.net, one.store, feature.EAGLE3_TAPS, numbers, 3)
    assert found == pytest.approx(acceptance.metrics(torch.tensor(rows), set(paths_of(published_tree("eagle")))))
    assert found["tree"] > found["tau"] > 1


def test_greedy_answers_of_the_reported_kinds_take_turns():
    made = dialogues()
    kind = np.array([number * 7 % len(KINDS) for number in range(len(made))])
    told = replace(made, kind=kind)
    found = data.greedy_only(told, range(60))
    kinds = [KINDS[kind[number]] for number in found]
    assert kinds[:6] == kinds[6:12] == list(REPORTED) and set(kinds) == set(REPORTED)
    assert set(found) <= set(np.flatnonzero(made.temperature == 0)) and len(set(found)) == len(found)
    numbers_by_kind = data.by_kind(told, found[:7])
    assert numbers_by_kind.keys() == set(REPORTED) and numbers_by_kind["chat"] == [found[0], found[6]]
    assert data.greedy_only(made, range(9)) == [1, 2, 4, 5, 7, 8] and data.by_kind(made, [1]) == {}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weights_kept_in_a_layout_of_their_own_are_read_exactly(dtype):
    model = tiny_llama(dtype=dtype, vocab=VOCAB)
    wanted = model.base_model.layers[-1].mlp.down_proj.weight.clone()
    if pack(model):
        assert isinstance(model.base_model.layers[-1].mlp.down_proj, PackedLinear)
    assert torch.equal(feature.dense(model.base_model.layers[-1].mlp.down_proj), wanted)


def test_a_block_needs_a_token_to_predict(tmp_path, monkeypatch):
    """An unprompted answer of one token has no anchor, alone or beside others, and training goes on."""
    one = begun("dspark", tmp_path, monkeypatch)
    seen = one.store.get(one.training[:1])[0]
    single = DialogueFeatures(seen.tokens[:1], seen.features[:1], 0)
    for dialogue, positive in ((single, False), (features.joined([seen, single]), True)):
        loss = one.loss(dialogue, torch.Generator().manual_seed(1), 1.0)
        loss.backward()
        assert (float(loss.detach()) > 0) == positive
    assert acceptance.chain_ranks([single], 7, lambda *asked: []).shape == (0, 7), "an answer shorter than a block"
