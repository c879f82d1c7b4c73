"""The recipe of the block drafter on a tiny made-up world: what counts, what is shown, what it foresees."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from specviz.drafting.networks.block_net import BlockNet
from specviz.drafting.networks.weights import read_weights
from specviz.errors import ModelUnavailable
from specviz.training import driver
from specviz.training.data import places_in
from specviz.training.families import falcon
from specviz.training.families.falcon import (
    BlockTraining,
    block_shape,
    glanced,
    levels,
    noisy,
    reveal,
    start,
    summed,
    truth_of,
)
from specviz.training.families.feature import TrainInputs, run
from specviz.training.features import DialogueFeatures, joined
from specviz.training.registry import Job, recipes
from tests.support.training.tiny_training import IDS, VOCAB, inputs

SETTINGS = driver.Schedule(minutes=0.02, batch=4, every=1.0, measured=3, peak=0.003, decay=0.5)


def inputs_of() -> TrainInputs:
    return inputs((1, 2))


def fresh(given: TrainInputs, started: bool = True, **own: int) -> BlockNet:
    torch.manual_seed(0)
    model = given.assets.target.model
    shape = block_shape(model.config, 2, len(IDS), width=24, **own)
    net = BlockNet(shape, given.assets.embedding, model.lm_head.weight, IDS)
    if started:
        start(net, model, given.store.get(given.training[:30]))
    return net


def state_of(given: TrainInputs, net: BlockNet, share: float = 0.0) -> BlockTraining:
    made = BlockTraining(net, given, SETTINGS)
    made.share = share
    return made


def test_places_that_count_are_those_whose_token_is_in_the_answer_and_in_the_vocabulary() -> None:
    given = inputs_of()
    net = fresh(given, started=False)
    seen = given.store.get([4])[0]
    truth = truth_of(net, places_in(IDS, VOCAB), seen)
    drafted = seen.tokens[truth.places + 3]
    assert set(drafted.tolist()) <= set(IDS.tolist())
    expected = [at for at in range(seen.first, len(seen.tokens)) if int(seen.tokens[at]) in IDS.tolist()]
    assert (truth.places + 3).tolist() == expected
    assert torch.equal(truth.features, seen.features[truth.places + 2, -1])
    whole = given.assets.target.model(seen.tokens[None]).logits[0]
    assert torch.equal(truth.logits.argmax(-1), whole[truth.places + 2][:, IDS].argmax(-1)), (
        "the distribution of the drafted token"
    )


@pytest.mark.parametrize(("wrong", "ratio", "shown"), [(4, 0.0, 0), (4, 0.5, 2), (8, 1.0, None)])
def test_as_much_is_shown_as_the_ratio_of_what_was_wrong(wrong: int, ratio: float, shown: int | None) -> None:
    given, generator = inputs_of(), torch.Generator().manual_seed(1)
    net, several = fresh(given), joined(given.store.get([4, 5]))
    texts, truth = noisy(several, generator), truth_of(net, places_in(IDS, VOCAB), several)
    guessed = net.logits(net(*texts, 1).flatten(0, 1)[truth.places]).argmax(-1)
    guessed[:wrong] = (guessed[:wrong] + 1) % len(IDS)
    truth = truth._replace(logits=torch.nn.functional.one_hot(guessed, len(IDS)))
    beginnings = {place for place in truth.places.tolist() if place % texts.tokens.shape[1] % 2 == 1}
    found = glanced(net, texts, truth, 1, ratio, generator).tolist()
    assert len(found) == len(set(found)) == min(wrong if shown is None else shown, len(beginnings)) and set(found) <= beginnings


def test_shown_places_are_read_but_have_no_part_in_the_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    given = inputs_of()
    net = fresh(given)
    seen = given.store.get([4])[0]
    truth = truth_of(net, places_in(IDS, VOCAB), seen)
    replaced = truth.places[truth.places % 2 == 1][:3]
    monkeypatch.setattr("specviz.training.families.falcon.glanced", lambda *asked: replaced)
    generator = torch.Generator().manual_seed(3)
    found = float(state_of(given, net).taught(seen, generator, 1.0).detach())
    generator = torch.Generator().manual_seed(3)
    text = noisy(seen, generator)
    phase = int(torch.randint(2, (), generator=generator))
    inputs, counts = reveal(text, replaced, 2), ~torch.isin(truth.places, replaced)
    outputs = net(*inputs, phase)[0, truth.places].detach()
    assert int(counts.sum()) == len(truth.places) - 3
    assert found == pytest.approx(float(summed(net, outputs[counts], truth, counts)), rel=1e-5)
    everything = torch.ones_like(counts)
    assert found < 0.99 * float(summed(net, outputs, truth, everything))


@pytest.mark.parametrize(("share", "ratio"), [(0.0, 0.4), (0.75, 0.1), (1.0, None)])
def test_less_is_shown_the_further_the_training_is(share: float, ratio: float | None, monkeypatch: pytest.MonkeyPatch) -> None:
    given, shown = inputs_of(), list[float]()
    net = fresh(given, started=False)
    nothing = torch.zeros(0, dtype=torch.long)
    monkeypatch.setattr(falcon, "glanced", lambda *asked: shown.append(asked[4]) or nothing)
    state_of(given, net, share).taught(given.store.get([4])[0], torch.Generator().manual_seed(0), 1.0)
    assert shown == ([] if ratio is None else [pytest.approx(ratio)])


def test_a_target_without_gated_layers_is_refused() -> None:
    given = inputs_of()
    odd = SimpleNamespace(base_model=SimpleNamespace(layers=[torch.nn.Linear(2, 2)]))
    with pytest.raises(ModelUnavailable, match="Llama-like"):
        start(fresh(given, started=False), odd, given.store.get(given.training[:2]))


class Oracle(BlockNet):
    """Says the features k ahead, but for inputs whose token is one it does not know."""

    unknown = -1

    def forward(self, tokens: Tensor, features: Tensor, phase: int = 0) -> Tensor:
        ahead = torch.cat((features[:, self.block :], features.new_zeros(1, self.block, features.shape[-1])), 1)
        return torch.where((tokens == self.unknown)[..., None], -ahead, ahead)


class Certain:
    """A store in which the head reads the next token out of every feature."""

    def __init__(self, net: BlockNet, texts: list[list[int]], first: int) -> None:
        self._texts, self._net, self._first = texts, net, first

    def get(self, numbers: list[int]) -> list[DialogueFeatures]:
        place, found = places_in(self._net.draft_ids, VOCAB), []
        for number in numbers:
            tokens = torch.tensor(self._texts[number])
            features = 5 * self._net.head[place[tokens].roll(-1).clamp_min(0)]
            found.append(DialogueFeatures(tokens, features[:, None], self._first))
        return found


def oracle() -> Oracle:
    torch.manual_seed(0)
    shape = replace(fresh(inputs_of(), started=False).config, hidden=32)
    head = torch.nn.functional.normalize(torch.randn(VOCAB, 32), dim=-1)
    return Oracle(shape, torch.randn(VOCAB, 32), head, IDS)


def test_acceptance_by_level_counts_what_it_says() -> None:
    net = oracle()
    text = [1, 4, 3, *range(6, 30)]
    sure = levels(net, Certain(net, [text], 6), [0])
    assert sure == {f"{name}{level}": 1.0 for name in ("first", "five", "alone") for level in (1, 2)} | {"tau": 3.0}
    net.unknown = 20  # the input before it, k ahead of which is token 22, is answered wrong, at either level
    one_wrong = levels(net, Certain(net, [text], 6), [0])
    starts = len(text) - 4 - 3
    assert one_wrong["alone1"] == pytest.approx(1 - 1 / starts) == one_wrong["alone2"]
    assert one_wrong["first1"] == pytest.approx(1 - 1 / starts)
    assert one_wrong["first2"] == pytest.approx(1 - 1 / (starts - 1))
    assert one_wrong["tau"] == pytest.approx(1 + (2 * starts - 3) / starts)


def test_joined_dialogues_are_taught_as_each_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    given = inputs_of()
    net, place = fresh(given), places_in(IDS, VOCAB)
    several = given.store.get([4, 5, 6])
    monkeypatch.setattr("specviz.training.families.falcon.NOISE", 0.0)
    one_by_one, apart = (
        [of(one) for one in several] for of in (lambda one: noisy(one, torch.Generator()), partial(truth_of, net, place))
    )
    together, truth = noisy(joined(several), torch.Generator()), truth_of(net, place, joined(several))
    width = together.tokens.shape[1]
    for phase in (0, 1):
        for text, one in enumerate(one_by_one):
            alone, length = net(*one, phase)[0], one.tokens.shape[1]
            found = net(*together, phase)[text, :length]
            assert torch.allclose(found[:-1], alone[:-1], atol=1e-5), "of a broken-off block the end does not count"
    assert truth.places.tolist() == torch.cat([one.places + width * text for text, one in enumerate(apart)]).tolist()
    assert torch.equal(truth.features, torch.cat([one.features for one in apart]))
    shown = truth.places[::3]
    for text, one in enumerate(one_by_one):
        own = shown[shown // width == text] - width * text
        for found, alone in zip(reveal(together, shown, 2), reveal(one, own, 2), strict=True):
            assert torch.equal(found[text, : one.tokens.shape[1]], alone[0])


def test_what_is_written_loads_again_and_its_card_says_what_was_spent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "WEIGHTS", tmp_path)
    monkeypatch.setenv("SPECVIZ_CACHE", str(tmp_path / "cache"))
    given = inputs_of()
    net = fresh(given)
    made = state_of(given, net)
    made.settings = replace(SETTINGS, minutes=1e-12)
    run(Job(recipes()["falcon"], "cpu", 1.0, False), given, made, net.save)
    path = tmp_path / "falcon.safetensors"
    card = read_weights(path)[1]
    assert "1 updates" in card["spent"] and card["tokenizer_hash"] == "abc"
    assert {"first1", "first2", "alone2", "tau", "gap", "curve"} <= set(json.loads(card["metrics"]))
    target = given.assets.target.model
    again = BlockNet.load(path, (given.assets.embedding, target.lm_head.weight), torch.float32, torch.device("cpu"))
    seen = given.store.get([3])[0]
    ours, theirs = (one(seen.tokens[None, 1:], seen.features[None, :-1, -1]).detach() for one in (net, again))
    assert float((ours - theirs).norm() / ours.norm()) < 0.1
