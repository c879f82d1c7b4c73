"""The recipe of the small draft model: it learns, it resumes, what it ships drafts well, and it never sees what is kept
out."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch

from specviz.drafters.networks.small_lm import load
from specviz.training.common import data, trainer
from specviz.training.draft_model import small_draft
from specviz.training.draft_model.make_small_draft import card_line, card_of
from tests.training.tiny_training import END, MARKERS, VOCAB, dialogues, embedding

SHAPE = {"draft_vocab": 36, "width": 32, "layers": 6, "heads": 2, "inner": 64, "window": 64}
SETTINGS = small_draft.Settings(minutes=60, batch=4, length=64, peak=0.02, every=10**9, workers=1)


def bench() -> small_draft.Bench:
    return small_draft.prepare(embedding(), MARKERS, dialogues(120), SHAPE, seed=0)


def taught(updates: int) -> small_draft.Bench:
    made = bench()
    stream = data.rows(made.dialogues, made.training, MARKERS, SETTINGS.length, np.random.default_rng(0))
    for update in range(updates):
        small_draft.update(made, list(islice(stream, SETTINGS.batch)), SETTINGS.peak * (1 - update / updates), SETTINGS)
    small_draft.use_average(made)
    return made


@pytest.fixture(scope="module")
def learned() -> small_draft.Bench:
    return taught(90)


def test_an_untrained_draft_knows_word_counts_and_no_more() -> None:
    made = bench()
    logits = made.model(torch.tensor([1, 4, 3, 7]), made.model.open(8))
    torch.testing.assert_close(logits, made.model.bias.expand(4, -1))
    count = data.draft_vocabulary(made.dialogues, made.training, 36, VOCAB, [END])[1]
    assert int(logits[0].argmax()) == int(count.argmax())


def test_it_learns_to_foresee_answers_it_never_saw(learned: small_draft.Bench) -> None:
    found = small_draft.next_token_agreement(learned.model, learned.dialogues, learned.held_out, MARKERS, learned.to_draft)
    assert found["top1"] > 0.75 and found["top5"] > 0.9
    before = bench()
    assert found["held_out"] < 0.5 * small_draft.next_token_agreement(
        before.model, before.dialogues, before.held_out, MARKERS, before.to_draft
    )["held_out"]  # fmt: skip


def test_it_learns_in_bfloat16_where_the_processor_is_made_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer, "cpu_has_bfloat16", lambda: True)
    made, seen = bench(), []
    linear = small_draft.F.linear
    monkeypatch.setattr(small_draft.F, "linear", lambda *given: seen.append(torch.is_autocast_enabled("cpu")) or linear(*given))
    batch = list(islice(data.rows(made.dialogues, made.training, MARKERS, 64, np.random.default_rng(0)), 4))
    losses = [small_draft.update(made, batch, 0.02, SETTINGS) for _ in range(12)]
    assert losses[-1] < losses[0] and any(seen)


def test_chains_get_long(learned: small_draft.Bench) -> None:
    found = small_draft.measure(learned, dialogues=6, depth=3, runs=40)
    assert found.tau > 2.5 and found.steps > 0
    assert len(found.top1) == 3 and all(near >= hit for hit, near in zip(found.top1, found.top5, strict=True))


def test_the_probability_of_acceptance_is_one_between_equals_and_none_between_strangers(learned: small_draft.Bench) -> None:
    model = learned.model

    def itself(ids: torch.Tensor) -> torch.Tensor:
        logits = torch.full((len(ids), VOCAB), -torch.inf)
        logits[:, model.draft_ids] = model(ids, model.open(len(ids)))
        return logits

    def stranger(ids: torch.Tensor) -> torch.Tensor:
        best = itself(ids).argmin(-1, keepdim=True)
        return torch.full((len(ids), VOCAB), -torch.inf).scatter(1, best, 0.0)

    assert small_draft.measure_overlap(learned, itself, 3) == pytest.approx(1.0, abs=1e-4)
    assert small_draft.measure_overlap(learned, stranger, 3) < 0.05


def test_what_is_exported_drafts_the_same(learned: small_draft.Bench, tmp_path: Path) -> None:
    path = tmp_path / "weights" / "small.safetensors"
    small_draft.export(learned, path, {"licence": "Apache-2.0"})
    shipped = load(path, embedding(), torch.float32, torch.device("cpu"))
    ids = torch.tensor([*MARKERS.prefix, *learned.dialogues.of(3)[:10]])
    ours = learned.model(ids, learned.model.open(16)).argmax(-1)
    assert (shipped(ids, shipped.open(16)).argmax(-1) == ours).float().mean() > 0.9


def test_questions_have_no_say_in_the_gradient() -> None:
    made = bench()
    row = next(data.rows(made.dialogues, made.training, MARKERS, 64, np.random.default_rng(0)))
    nothing = data.Row(row.tokens, np.zeros_like(row.counts))
    nothing.counts[-1] = True
    odd = data.Row(row.tokens.copy(), nothing.counts)
    odd.tokens[-1] = END
    weight = made.model.bias.detach().clone()
    small_draft.update(made, [odd], 0.01, SETTINGS)
    moved = made.model.bias.detach() - weight
    assert int(moved.argmax()) == int(made.to_draft[END]), "only the counted token is pulled up"


def test_a_stopped_training_goes_on_where_it_was(tmp_path: Path) -> None:
    checkpoint = tmp_path / "c.safetensors"
    seen: list[dict[str, float]] = []
    first = bench()
    settings = replace(SETTINGS, minutes=0.02, every=1)
    progress = small_draft.train(first, settings, checkpoint, lambda entry: seen.append(dict(entry)))
    assert progress.updates == len(seen) >= 1 and {"loss", "held_out", "top1", "top5"} <= set(seen[0])
    second = bench()
    again = small_draft.train(second, replace(settings, resume=True), checkpoint, lambda entry: None)
    assert again.updates == progress.updates, "its time was over, so nothing is trained"
    for name, value in second.optimizer.averaged().items():
        torch.testing.assert_close(value, first.optimizer.averaged()[name])


def test_the_card_says_what_was_spent_and_found(learned: small_draft.Bench, tmp_path: Path) -> None:
    file = tmp_path / "d.npz"
    data.write(file, learned.dialogues)
    progress = trainer.Progress(90, 120.0, 4242, [{"top1": 0.9, "top5": 0.95, "held_out": 0.4, "loss": 0.3}])
    found = {3: small_draft.measure(learned, 3, 3, 10)}
    card = card_of("small_draft", file, torch.device("cpu"), progress, found, SETTINGS, 0.5)
    line = card_line(file, card)
    for said in ("4242 answer tokens", "2 minutes on cpu", "Apache-2.0", "tau_depth_3", "d.npz sha256", "commit"):
        assert said in line
