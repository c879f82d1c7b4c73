"""What every recipe that learns from dialogues keeps to: read together they teach what each does, and some are kept out."""

import pytest
import torch

from specviz.training import data
from specviz.training.families import falcon, feature, medusa
from tests.support.training.stand_ins import begun

JOINED = ("eagle", "eagle3", "falcon", "medusa", "small_draft")
"""Recipes that read several dialogues in one pass."""


@pytest.mark.spread(1)
@pytest.mark.parametrize("name", JOINED)
def test_dialogues_read_in_one_pass_give_the_loss_and_the_gradients_of_each_by_itself(name, tmp_path, monkeypatch):
    """Nothing is drawn: no noise, no dropout, every start, block drafters' phase 0 and every sixth place shown."""
    state = begun(name, tmp_path, monkeypatch)
    for module, constants in {feature: ("EAGLE3_NOISE", "EAGLE_NOISE"), falcon: ("NOISE",)}.items():
        for constant in constants:
            monkeypatch.setattr(module, constant, 0.0)
    for module in (feature, medusa):
        monkeypatch.setattr(module, "SHARES", (1.0,) * len(module.SHARES))
    monkeypatch.setattr(feature, "dropout", lambda values, *_: values)
    monkeypatch.setattr(torch, "randint", lambda high, size, **_: torch.zeros(size, dtype=torch.long))
    monkeypatch.setattr(
        falcon, "choose_glances", lambda net, texts, truth, *_: truth.places[truth.places % texts.tokens.shape[1] % 6 == 0]
    )
    torch.manual_seed(0)
    for value in state.optimizer.parameters.values():
        value.data.add_(0.1 * torch.randn_like(value))
    state.settle()
    steps = []
    for state.part in (1, 3):
        steps.append(state.learn_from([3, 40, 7, 21, 11]))
    alone, together = steps
    assert together.loss == pytest.approx(alone.loss, rel=1e-4)
    for key, gradient in alone.gradients.items():
        assert (together.gradients[key] - gradient).norm() <= 1e-3 * gradient.norm() + 1e-6, key


@pytest.mark.slow
@pytest.mark.parametrize("name", ["eagle3", "falcon", "medusa", "small_draft", "gto", "masked_lm", "owl"])
def test_nobody_learns_from_a_dialogue_that_is_kept_out(name, tmp_path, monkeypatch):
    state, asked, of = begun(name, tmp_path, monkeypatch), set(), data.Dialogues.of

    def noted(self, number):
        asked.add(number)
        return of(self, number)

    told = (state if hasattr(state, "dialogues") else state.store).dialogues
    training, held_out = data.split(told)
    monkeypatch.setattr(data.Dialogues, "of", noted)
    for share in (0.0, 0.3, 0.6):
        state.update(share)
    assert len(asked) > 5 and asked <= set(training) and not asked & set(held_out)
