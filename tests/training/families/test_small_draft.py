"""The recipe of the small draft model: where it starts, what it loses, and what its acceptance is."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from specviz.training import data, driver
from specviz.training.families import small_draft
from specviz.training.families.small_draft import TokenTraining
from specviz.training.features import DialogueFeatures
from tests.support.training.tiny_training import END, MARKERS, VOCAB, dialogues, embedding

SHAPE = {"draft_vocab": 36, "width": 32, "layers": 6, "heads": 2, "inner": 64, "window": 64}
SETTINGS = driver.Schedule(minutes=60, batch=4, peak=0.02, workers=1)


def state_of(settings: driver.Schedule = SETTINGS) -> TokenTraining:
    told = dialogues(120)
    parts = data.split(told)
    model = small_draft.fresh(embedding(), MARKERS, told, parts[0], SHAPE)
    return TokenTraining(model, told, MARKERS, parts, settings)


def test_an_untrained_draft_knows_word_counts_and_no_more() -> None:
    made = state_of()
    logits = made.model(torch.tensor([1, 4, 3, 7]), made.model.open(8))
    torch.testing.assert_close(logits, made.model.bias.expand(4, -1))
    count = data.draft_vocabulary(made.dialogues, made.training, 36, VOCAB, [END])[1]
    assert int(logits[0].argmax()) == int(count.argmax())


def test_questions_have_no_say_in_the_gradient() -> None:
    made = state_of()
    row = next(data.rows(made.dialogues, made.training, MARKERS, 64, np.random.default_rng(0)))
    nothing = data.Row(row.tokens, np.zeros_like(row.counts))
    nothing.counts[-1] = True
    odd = data.Row(row.tokens.copy(), nothing.counts)
    odd.tokens[-1] = END
    weight = made.model.bias.detach().clone()
    made.apply(made.learn_from([odd]), 0.01)
    moved = made.model.bias.detach() - weight
    assert int(moved.argmax()) == int(made.place[END]), "only the counted token is pulled up"


def pupil() -> tuple[small_draft.SmallLM, torch.Tensor]:
    """A fresh draft model and the target's head over its vocabulary."""
    made = dialogues(40)
    model = small_draft.fresh(embedding(), MARKERS, made, range(len(made)), SHAPE)
    with torch.no_grad():
        for weight in (model.leave.weight, *(one for block in model.blocks for one in (block.out.weight, block.down.weight))):
            weight.normal_(std=0.3)
    return model, model.embedding[model.draft_ids]


def read_aloud(seed: int = 0, more: int = 0) -> DialogueFeatures:
    """A dialogue with made-up hidden states of the target, of which the last are what its head reads."""
    tokens = torch.tensor([*MARKERS.prefix, 7, 8, 9, 10, 11, 12, *range(13, 13 + more)])
    features = torch.randn(len(tokens), 2, embedding().shape[1], generator=torch.Generator().manual_seed(seed))
    return DialogueFeatures(tokens, features, len(MARKERS.prefix) + 2)


def test_distillation_is_the_cross_entropy_to_what_the_target_thinks_before_each_answer_token() -> None:
    model, head = pupil()
    place, told = data.places_in(model.draft_ids, VOCAB), read_aloud()
    found = small_draft.distilled(model, head, place, told, torch.Generator(), 1.0)
    expected, cache = 0.0, model.open(20)
    for at, token in enumerate(told.tokens[:-1]):
        logits = model(token[None], cache)[0]
        if at + 1 >= told.first and int(place[told.tokens[at + 1]]) != data.IGNORED:
            thought = (head @ told.features[at, -1]).softmax(-1)
            expected -= float((thought * logits.log_softmax(-1)).sum())
    assert float(found.detach()) == pytest.approx(expected, rel=1e-4)
