"""The recipes of masked language models: what is hidden and what it counts, that stages resume and the base stays."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from specviz.drafting.networks.lora import TALL, merge_lora
from specviz.drafting.networks.masked_lm import MaskedLM
from specviz.drafting.networks.small_lm import SmallLM
from specviz.training import data
from specviz.training.driver import Schedule
from specviz.training.families import masked
from specviz.training.families.masked import block_agreement
from tests.support.training.tiny_masked import SETTINGS, fresh, state_of, taught
from tests.support.training.tiny_training import MARKERS, VOCAB, dialogues, embedding, inputs

STAGES = replace(SETTINGS, later=8)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(masked, "RANK", 8)
    monkeypatch.setattr(masked, "REACH", 6)


def probability(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


@pytest.fixture(scope="module")
def learned() -> MaskedLM:
    made = state_of()
    taught(made, 150)
    return made.model


def test_the_start_reads_text_as_the_small_draft_model_did_where_it_could_look_both_ways_it_does() -> None:
    model = fresh()
    ids = torch.arange(5, 15)[None]
    blank = torch.zeros(1, 10, dtype=torch.bool)
    one = model.features(ids[:, :1], blank[:, :1])
    start = SmallLM(model.config, embedding(), model.draft_ids)
    start.load_state_dict({name: value for name, value in model.state_dict().items() if name != "blank"})
    torch.testing.assert_close(one, start.features(torch.zeros(1, 1, dtype=torch.long), ids[:, :1]))
    assert model.blank.shape == (1, 16)


def test_every_answer_token_is_hidden_with_its_rows_probability_and_counts_the_inverse_of_it() -> None:
    rows = [next(data.rows(dialogues(), list(range(40)), MARKERS, 47, probability(seed))) for seed in range(400)]
    (made,) = masked.in_parts(masked.standard(rows, probability(1)), 400)
    counted = torch.from_numpy(np.stack([row.counts for row in rows]))
    assert not made.blank[:, 0].any() and not made.blank[:, 1:][~counted].any(), "questions are never hidden"
    assert (made.weight[~made.blank] == 0).all()
    assert float(made.weight.sum()) == pytest.approx(1.0, abs=0.05), "the inverse probability makes up for what is not hidden"
    hidden = made.blank[:, 1:].sum(1) / counted.sum(1)
    assert float(hidden.min()) < 0.15 and float(hidden.max()) > 0.9


def test_a_continuation_hides_nothing_before_its_cut_and_a_refinement_hides_the_end_alone() -> None:
    tokens = np.arange(100, 140)
    seen = set()
    for seed in range(80):
        one = masked.continuation(tokens, 12, 0.5, probability(seed))
        assert len(one.tokens) == 40 and not one.blank[:12].any()
        assert set(np.unique(one.weight[one.blank])) <= {2.0}
        two = masked.refinement(tokens, 12, 6, 1.5, probability(seed))
        hidden = int(two.blank.sum())
        assert 1 <= hidden <= 6 and two.blank[-hidden:].all() and 13 <= len(two.tokens) <= 40
        assert not two.blank[:12].any()
        expected = 1.5 ** np.arange(hidden - 1, -1, -1)
        np.testing.assert_allclose(two.weight[-hidden:], expected / expected.sum(), rtol=1e-6)
        seen.add(hidden)
    assert seen == set(range(1, 7)), "the earliest counts most, and every length comes up"


def test_padding_and_parts_change_no_gradient() -> None:
    model = fresh()
    made = [masked.refinement(np.array([*MARKERS.prefix, *dialogues().of(at)]), 8, 6, 1.1, probability(at)) for at in range(5)]
    place = data.places_in(model.draft_ids, VOCAB)
    leaves = list(model.parameters())

    def gradients(size: int) -> list[torch.Tensor]:
        parts = [masked.loss(model, place, part)[0] for part in masked.in_parts(made, size)]
        return list(torch.autograd.grad(sum(parts), leaves))

    for one, other in zip(gradients(5), gradients(1), strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-4)


def test_the_learned_answers_of_a_milestone_are_the_first_that_were_read(monkeypatch: pytest.MonkeyPatch) -> None:
    told, asked, judged = dialogues(120), list[int](), list[list[int]]()
    monkeypatch.setattr(masked, "EARLY", 8)
    turn = data._turn
    monkeypatch.setattr(data, "_turn", lambda told, number, markers: asked.append(number) or turn(told, number, markers))
    made = state_of(fresh())
    monkeypatch.setattr(
        masked, "block_agreement", lambda model, told, numbers, *_: judged.append(numbers) or {"tau": 1.0 + len(judged)}
    )  # type: ignore[func-returns-value]
    next(made.stream)
    assert made.measure() == {"tau": 2.0, "gap": 1.0}
    held_out, learned = data.split(told)[1], list(dict.fromkeys(asked))[:8]
    assert judged == [data.greedy_only(told, numbers)[:12] for numbers in (held_out, learned)]


def blind(model: MaskedLM) -> float:
    """The loss on the last tokens of answers that were kept out, all of them hidden at once."""
    told, place = dialogues(120), data.places_in(model.draft_ids, VOCAB)
    made = [
        masked.refinement(np.array([*MARKERS.prefix, *told.of(number)]), 3 + int(told.prompt[number]), 6, 1.2, probability(seed))
        for number in data.split(told)[1] for seed in range(20)
    ]  # fmt: skip
    with torch.no_grad():
        return float(sum(masked.loss(model, place, part)[0] for part in masked.in_parts(made, 60)))


def stages(model: MaskedLM, stage: str = "", settings: Schedule = STAGES) -> masked.DeerTraining:
    made = masked.DeerTraining(model, inputs(count=120), settings)
    if stage:
        made.enter(stage)
    return made


@pytest.mark.slow
def test_the_stages_train_a_change_and_leave_the_base_as_it_was(learned: MaskedLM) -> None:
    import copy

    model = copy.deepcopy(learned)
    losses, made = [blind(model)], stages(model)
    for share in (0.0, 0.4):
        for number in range(60):
            made.update(share, 0.02 * (1 - number / 60))
        with made.using(made.optimizer.averaged()):
            losses.append(blind(model))
    assert made.advanced and losses[2] < 0.97 * losses[0] and losses[2] < losses[1], losses
    made.use(made.optimizer.averaged())
    assert made.change is not None
    change = made.change
    again = copy.deepcopy(learned).eval()
    assert any(bool(value.any()) for key, value in change.factors.items() if key.endswith(TALL))
    merge_lora(again, change.factors, "deer")
    ids = torch.tensor([*MARKERS.prefix, *dialogues().of(3)[:8]])
    torch.testing.assert_close(again.eval()(ids, 4), model(ids, 4), atol=1e-4, rtol=1e-3)
    assert torch.equal(again.bias, learned.bias) and torch.equal(again.embedding, learned.embedding)


@pytest.mark.slow
def test_agreement_counts_blocks_by_hand(learned: MaskedLM) -> None:
    told = dialogues(120)
    number = data.split(told)[1][0]
    found = block_agreement(learned, told, [number], MARKERS, 3, 100)
    text = [*MARKERS.prefix, *told.of(number)]
    at, answer, lengths = len(text) - len(told.answer(number)), told.answer(number).tolist(), []
    while at + 4 <= len(text):
        best = learned.draft_ids[learned(torch.tensor(text[:at]), 3).argmax(-1)].tolist()
        right = [one == other for one, other in zip(best, text[at:], strict=False)]
        lengths.append(right.index(False) if False in right else 3)
        at += lengths[-1] + 1
    assert found["tau"] == pytest.approx(np.mean(lengths) + 1) and found["steps"] == len(lengths)
    assert found["longest"] == max(lengths) and len(answer) > 4
    assert found["first1"] == pytest.approx(np.mean([length > 0 for length in lengths]))
