"""OWL's recipe on a tiny target: the probe is taught first and then stays, and each stage resumes where it stopped."""

import pytest
import torch

from specviz.errors import BadInput
from specviz.training.driver import Schedule
from specviz.training.families import owl
from specviz.training.families.owl import DRAFTING, OwlTraining
from tests.support.training.tiny_training import END, MARKERS, dialogues, inputs, short_windows

SETTINGS = Schedule(minutes=0.03, every=1e-9, decay=0.02, patience=8, batch=8)


@pytest.fixture(autouse=True)
def short(monkeypatch):
    """Windows as short as the tiny answers, and a network no wider than the target."""
    short_windows(monkeypatch)
    monkeypatch.setattr(owl, "ANSWERED", 4)
    monkeypatch.setattr(owl, "FITTED", 8)
    monkeypatch.setattr(owl, "PLACES", 4)
    monkeypatch.setattr(owl, "KEPT", 1)
    monkeypatch.setattr(owl, "DEPTH", 2)


def state_of(settings=SETTINGS):
    return OwlTraining(inputs((1, 2), torch.tensor([END, *range(5, 40)])), settings)


def moved(state, before):
    return {name for name, value in state.net.named_parameters() if not torch.equal(value, before[name])}


def weights(state):
    return {name: value.detach().clone() for name, value in state.net.named_parameters()}


def test_the_probe_is_taught_alone_and_then_stays():
    state = state_of()
    state.begin()
    before = weights(state)
    state.update(0.0)
    assert moved(state, before) == {"probe"}
    state.update(0.5)
    assert state.progress.stage == DRAFTING and state.optimizer.updates == 1
    probe = weights(state)
    state.update(0.6)
    assert "probe" not in moved(state, probe) and {"later.weight", "leave.weight"} <= moved(state, probe)
    assert state.measure().keys() >= {"tau", "tau_without_probe", "first1"}


def test_dialogues_that_are_all_too_short_are_refused(monkeypatch):
    monkeypatch.setattr(owl, "LENGTH", 500)
    with pytest.raises(BadInput, match="No dialogue has 500 tokens, 4 of them in the answer"):
        owl.Windows(dialogues(), MARKERS, [1, 2])
