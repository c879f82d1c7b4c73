"""The recipe of the small draft model: it learns, it resumes, what it ships drafts well, and it never sees what is kept
out."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from specviz.drafters.networks.small_lm import load, save
from specviz.training import data, driver, parallel
from specviz.training.acceptance import chain_agreement, next_token_agreement, overlap
from specviz.training.driver import train
from specviz.training.families import small_draft
from specviz.training.families.small_draft import TokenTraining
from specviz.training.features import DialogueFeatures
from tests.support.training.tiny_training import END, MARKERS, VOCAB, dialogues, embedding

SHAPE = {"draft_vocab": 36, "width": 32, "layers": 6, "heads": 2, "inner": 64, "window": 64}
SETTINGS = small_draft.Settings(minutes=60, batch=4, length=64, peak=0.02, workers=1)


def state_of(settings: small_draft.Settings = SETTINGS) -> TokenTraining:
    told = dialogues(120)
    parts = data.split(told)
    model = small_draft.fresh(embedding(), MARKERS, told, parts[0], SHAPE, settings.seed)
    return TokenTraining(model, told, MARKERS, parts, settings)


def taught(updates: int) -> TokenTraining:
    made = state_of()
    stream = data.rows(made.dialogues, made.training, MARKERS, SETTINGS.length, np.random.default_rng(0))
    for update in range(updates):
        made.apply(made.learn_from(list(islice(stream, SETTINGS.batch))), SETTINGS.peak * (1 - update / updates))
    made.use_average()
    return made


@pytest.fixture(scope="module")
def learned() -> TokenTraining:
    return taught(90)


def test_an_untrained_draft_knows_word_counts_and_no_more() -> None:
    made = state_of()
    logits = made.model(torch.tensor([1, 4, 3, 7]), made.model.open(8))
    torch.testing.assert_close(logits, made.model.bias.expand(4, -1))
    count = data.draft_vocabulary(made.dialogues, made.training, 36, VOCAB, [END])[1]
    assert int(logits[0].argmax()) == int(count.argmax())


@pytest.mark.slow
def test_it_learns_to_foresee_answers_it_never_saw(learned: TokenTraining) -> None:
    found = next_token_agreement(learned.model, learned.dialogues, learned.held_out, MARKERS, learned.place)
    assert found["top1"] > 0.75 and found["top5"] > 0.9
    before = state_of()
    assert found["held_out"] < 0.5 * next_token_agreement(
        before.model, before.dialogues, before.held_out, MARKERS, before.place
    )["held_out"]  # fmt: skip


@pytest.mark.slow
def test_it_learns_in_bfloat16_where_the_processor_is_made_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, "cpu_has_bfloat16", lambda: True)
    made, seen = state_of(), []
    linear = small_draft.F.linear
    monkeypatch.setattr(small_draft.F, "linear", lambda *given: seen.append(torch.is_autocast_enabled("cpu")) or linear(*given))
    batch = list(islice(data.rows(made.dialogues, made.training, MARKERS, 64, np.random.default_rng(0)), 4))
    losses = []
    for _ in range(12):
        one = made.learn_from(batch)
        made.apply(one, 0.02)
        losses.append(one.loss)
    assert losses[-1] < losses[0] and any(seen)


@pytest.mark.slow
def test_chains_get_long(learned: TokenTraining) -> None:
    greedy = data.greedy_only(learned.dialogues, learned.held_out)[:6]
    found = chain_agreement(learned.model, learned.dialogues, greedy, MARKERS, 3, 40)
    assert found["tau"] > 2.5 and found["steps"] > 0
    assert all(found[f"five{depth}"] >= found[f"first{depth}"] for depth in (1, 2, 3))


@pytest.mark.slow
def test_the_probability_of_acceptance_is_one_between_equals_and_none_between_strangers(learned: TokenTraining) -> None:
    model = learned.model

    def itself(ids: torch.Tensor) -> torch.Tensor:
        logits = torch.full((len(ids), VOCAB), -torch.inf)
        logits[:, model.draft_ids] = model(ids, model.open(len(ids)))
        return logits

    def stranger(ids: torch.Tensor) -> torch.Tensor:
        best = itself(ids).argmin(-1, keepdim=True)
        return torch.full((len(ids), VOCAB), -torch.inf).scatter(1, best, 0.0)

    sampled = [number for number in learned.held_out if learned.dialogues.temperature[number] == 1][:3]
    drafted = partial(small_draft.Distillation.drafted, SimpleNamespace(net=model))  # type: ignore[arg-type]
    for target, low, high in ((itself, 0.9999, 1.0001), (stranger, 0.0, 0.05)):
        assert low < overlap(drafted, model.draft_ids, target, learned.dialogues, sampled, MARKERS) + 1e-9 < high


@pytest.mark.slow
def test_what_is_exported_drafts_the_same(learned: TokenTraining, tmp_path: Path) -> None:
    path = tmp_path / "small.safetensors"
    save(learned.model, path, {"licence": "Apache-2.0"})
    shipped = load(path, embedding(), torch.float32, torch.device("cpu"))
    ids = torch.tensor([*MARKERS.prefix, *learned.dialogues.of(3)[:10]])
    ours = learned.model(ids, learned.model.open(16)).argmax(-1)
    assert (shipped(ids, shipped.open(16)).argmax(-1) == ours).float().mean() > 0.9


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


@pytest.mark.slow
def test_a_stopped_training_goes_on_where_it_was(tmp_path: Path) -> None:
    checkpoint = tmp_path / "c.safetensors"
    seen: list[dict[str, float]] = []
    settings = replace(SETTINGS, minutes=0.02, every=1e-9)
    first = state_of(settings)
    progress = train(first, checkpoint, lambda entry: seen.append(dict(entry)))
    assert progress.updates == len(seen) >= 1 and {"loss", "held_out", "top1", "top5"} <= set(seen[0])
    second = state_of(replace(settings, resume=True))
    again = train(second, checkpoint, lambda entry: None)
    assert again.updates == progress.updates, "its time was over, so nothing is trained"
    for name, value in second.optimizer.averaged().items():
        torch.testing.assert_close(value, first.optimizer.averaged()[name])


def pupil() -> tuple[small_draft.SmallLM, torch.Tensor]:
    """A fresh draft model and the target's head over its vocabulary."""
    made = dialogues(40)
    model = small_draft.fresh(embedding(), MARKERS, made, range(len(made)), SHAPE, 0)
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
    found = small_draft.distilled(model, head, place, [told])
    expected, cache = 0.0, model.open(20)
    for at, token in enumerate(told.tokens[:-1]):
        logits = model(token[None], cache)[0]
        if at + 1 >= told.first and int(place[told.tokens[at + 1]]) != data.IGNORED:
            thought = (head @ told.features[at, -1]).softmax(-1)
            expected -= float((thought * logits.log_softmax(-1)).sum())
    assert float(found.detach()) == pytest.approx(expected, rel=1e-4)


def test_dialogues_read_together_teach_what_they_teach_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, "cpu_has_bfloat16", lambda: False)
    model, head = pupil()
    place, told = data.places_in(model.draft_ids, VOCAB), [read_aloud(seed, more) for seed, more in ((0, 0), (1, 3), (2, 7))]

    state = TokenTraining(model, dialogues(40), MARKERS, (range(40), range(40)), SETTINGS)

    def taught(part: int) -> driver.Step:
        state.part = part
        return state.learn(told, lambda group: small_draft.distilled(model, head, place, group), 1)

    together, one_by_one = taught(3), taught(1)
    assert together.loss == pytest.approx(one_by_one.loss, rel=1e-3)
    assert together.gradients.keys() == dict(model.named_parameters()).keys()
    for name, gradient in one_by_one.gradients.items():
        assert (together.gradients[name] - gradient).norm() < 0.01 * gradient.norm()


@pytest.mark.slow
def test_distillation_learns_what_the_target_thinks_and_not_what_was_drawn() -> None:
    model, head = pupil()
    place, told = data.places_in(model.draft_ids, VOCAB), read_aloud(1)
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    for _ in range(150):
        optimizer.zero_grad()
        small_draft.distilled(model, head, place, [told]).backward()
        optimizer.step()
    logits = model.train()(told.tokens[:-1], model.open(20))[told.first - 1 :]
    thought = (told.features[told.first - 1 : -1, -1] @ head.T).softmax(-1)
    inside = place[told.tokens[told.first :]] != data.IGNORED
    assert float((logits.softmax(-1) - thought)[inside].abs().sum(-1).max()) < 0.2
