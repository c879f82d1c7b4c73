"""The file of dialogues: turns of every kind, the target's own answers, nothing twice, and a resumed file goes on."""

from collections import Counter
from itertools import count
from types import SimpleNamespace

import pytest
import torch

from specviz.training import data
from specviz.training.data import Dialogue, Markers, Reserved
from specviz.training.decoding import Finished
from specviz.training.families import dialogues
from specviz.training.families.dialogues import Author
from specviz.training.features import TargetAssets, store_for
from specviz.training.phrases import KINDS, phrases
from specviz.training.registry import Job, recipes
from tests.support.tiny.text import tiny_llama

VOCAB, END = 9000, 2
PREFIX, ANSWER, TURN = (1, 9, 3), (END, 5, 6), (7, 8)


class Words:
    """A tokenizer with a token for every word it has met."""

    def __init__(self):
        self._ids = {}

    def __call__(self, text, add_special_tokens):
        return {"input_ids": [self._ids.setdefault(word, 20 + len(self._ids)) for word in text.split(" ")]}

    def decode(self, ids):
        known = {number: word for word, number in self._ids.items()}
        return " ".join(known.get(number, f"w{number}") for number in ids)


@pytest.fixture
def assets():
    model = tiny_llama(dtype=torch.float32, vocab=VOCAB)
    target = SimpleNamespace(model=model, tokenizer=Words(), device=torch.device("cpu"), name="tiny")
    return TargetAssets(target, model.get_input_embeddings().weight, Markers(PREFIX, TURN, END), ANSWER)


@pytest.fixture(autouse=True)
def small(monkeypatch, tmp_path):
    monkeypatch.setattr(dialogues, "LONGEST_ANSWER", 12)
    monkeypatch.setenv("SPECVIZ_CACHE", str(tmp_path / "cache"))


def author(assets, made=None, reserved=()):
    return Author(assets, made or [], Reserved(reserved))


def said(request, *answer, looped=False):
    return Finished(request, (*answer, END), torch.zeros(0), looped)


def asked(one, number):
    return [request for request, _ in zip(one.requests(float("inf")), range(number), strict=False)]


def test_all_kinds_have_their_turn_and_one_turn_in_twenty_is_held_out(assets):
    one = author(assets)
    rounds = 2 * data.HELD_OUT_EVERY
    kinds = Counter()
    kept_out = Counter()
    for place, request in enumerate(one.requests(float("inf"))):
        if place == rounds * len(phrases("turns")["order"]):
            break
        assert len(request.ids) <= dialogues.LONGEST_TURN
        one.take(said(request, *(2000 + place * 9 + step for step in range(9))))
        kinds[request.tag.kind] += 1
        kept_out[request.tag.kind] += request.tag.held_out
    assert set(kinds) == set(KINDS) == set(kept_out)
    assert 0.03 < kept_out.total() / kinds.total() < 0.07 and min(kept_out.values()) > 0
    assert {one.held_out for one in one.dialogues} == {False, True}
    assert {one.temperature for one in one.dialogues} == set(dialogues.TEMPERATURES)


def test_the_targets_own_turn_is_answered_next_unless_it_never_ended(assets):
    one = author(assets)
    requests = one.requests(float("inf"))
    own = next(request for request in requests if request.tag.kind == "unprompted")
    assert not one.take(said(own, 30, 31, 32)) and not one.dialogues
    follows = next(requests)
    assert follows.ids == (*own.ids, 30, 31, 32, *ANSWER) and not follows.tag.asks
    assert one.take(said(follows, 40, 41)) and one.dialogues[-1].question == follows.ids
    assert not one.take(Finished(own, (33, 34, 35), torch.zeros(0), False))
    assert next(requests).ids[: len(own.ids) + 1] != (*own.ids, 33)


def test_another_turn_follows_an_earlier_dialogue_of_the_same_side(assets):
    sides = [Dialogue((50 + side, *ANSWER), (60 + side, END), 0.0, "chat", bool(side)) for side in (0, 1)]
    found = [request for request in asked(author(assets, sides), 800) if request.tag.kind == "multi-turn"]
    assert {request.tag.held_out for request in found} == {False, True}
    for request in found:
        side = int(request.tag.held_out)
        before = (*sides[side].question, *sides[side].answer, *TURN)
        assert request.ids[: len(before)] == before and request.ids[-len(ANSWER) :] == ANSWER


def test_passages_come_from_earlier_answers_of_the_same_side(assets):
    texts = [" ".join(f"{word}{number}" for number in range(40)) + " end." for word in ("learned", "kept")]
    ids = [assets.target.tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]
    made = [Dialogue((50 + side, *ANSWER), (*ids[side], END), 0.0, "stories", bool(side)) for side in (0, 1)]
    found = asked(author(assets, made), 1500)
    quoting = [(request.tag.held_out, [set(own) <= set(request.ids) for own in ids]) for request in found]
    assert {side for side, (learned, kept) in quoting if learned} == {False}
    assert {side for side, (learned, kept) in quoting if kept} == {True}


def test_a_turn_is_asked_again_a_few_times_and_warmer_and_what_is_reserved_never(assets):
    found = asked(author(assets), 600)
    turns = [request.ids for request in found if not request.tag.asks]
    heats = {}
    for request in found:
        if not request.tag.asks:
            heats.setdefault(request.ids, []).append(request.temperature)
    again = [several[1:] for several in heats.values() if len(several) > 1]
    assert (
        again
        and max(map(len, again)) <= dialogues.ASKED_AGAIN
        and {heat for heats in again for heat in heats} <= set(dialogues.WARM)
    )
    kept_out = [request.ids for request in found if not request.tag.asks and request.tag.held_out]
    assert len(set(kept_out)) == len(kept_out)
    text = assets.target.tokenizer.decode
    reserved = [text(list(ids[: -len(ANSWER)])) for ids in turns[:200]]
    again = asked(author(assets, reserved=tuple(reserved)), 300)
    assert not {request.ids for request in again if not request.tag.asks} & set(turns[:200])


def test_an_answer_that_was_given_before_is_dropped(assets):
    one = author(assets)
    first, second = [request for request in asked(one, 3) if not request.tag.asks][:2]
    answer = range(3000, 3050)
    assert one.take(said(first, *answer)) and not one.take(said(second, *answer))
    assert len(one.dialogues) == 1 and one.dropped["said before"] == 1


@pytest.mark.slow
def test_the_file_grows_when_resumed_and_can_be_trained_on(assets, tmp_path, monkeypatch):
    monkeypatch.setattr(dialogues, "target_assets", lambda device: assets)
    path = tmp_path / "d.npz"
    sizes = []
    for resume in (False, True):
        seconds = count(step=0.5)
        monkeypatch.setattr(dialogues.time, "monotonic", lambda seconds=seconds: next(seconds))
        dialogues.make(Job(recipes()["dialogues"], "cpu", 1.0, resume, (str(path),)))
        sizes.append(data.read(path))
    first, more = sizes
    assert 0 < len(first) < len(more) and (more.tokens[: len(first.tokens)] == first.tokens).all()
    turns = Counter(tuple(more.of(number)[: more.prompt[number]].tolist()) for number in range(len(more)))
    assert max(turns.values()) <= 1 + dialogues.ASKED_AGAIN
    training, held_out = data.split(more)
    assert training and not more.held_out[training].any() and more.held_out[held_out].all()
    made = list(data.dialogues_of(more))
    assert list(data.dialogues_of(data.packed(made))) == made
    store = store_for(assets.target.model, "tiny", more, assets.markers)
    assert all(store.has(number) for number in range(len(more))), "what was thought while writing is kept"
