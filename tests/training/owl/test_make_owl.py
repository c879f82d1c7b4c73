"""OWL's recipe on a tiny target: the probe is taught first and then stays, and each stage resumes where it stopped."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from specviz.drafters.networks.recurrent_net import RecurrentConfig
from specviz.errors import BadInput
from specviz.training.common import data
from specviz.training.common.features import FeatureStore
from specviz.training.common.loop import train
from specviz.training.feature.recipes import TrainInputs
from specviz.training.owl import make_owl, owl
from specviz.training.owl.make_owl import DRAFTING, OwlTraining, Settings
from tests.support.tiny.text import tiny_llama
from tests.support.training.tiny_training import END, MARKERS, VOCAB, dialogues

SETTINGS = Settings(minutes=0.03, every=1e-9, batch=4, fresh=2, kept=8, places=4)


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows as short as the tiny answers, and a network no wider than the target."""
    narrow = partial(RecurrentConfig, width=24, entry=24, word=24)
    monkeypatch.setattr(make_owl, "RecurrentConfig", narrow)
    monkeypatch.setattr(owl, "LENGTH", 16)
    monkeypatch.setattr(owl, "EARLIEST", 2)
    monkeypatch.setattr(owl.some_places, "__defaults__", (16,))
    monkeypatch.setattr(make_owl, "FITTED", 8)
    monkeypatch.setattr(make_owl, "DEPTH", 2)


def state_of(settings: Settings = SETTINGS) -> OwlTraining:
    model = tiny_llama(dtype=torch.float32, vocab=VOCAB)
    made = dialogues()
    training, held_out = data.split(made)
    target = SimpleNamespace(model=model, device=torch.device("cpu"), tokenizer_hash="abc")
    assets = SimpleNamespace(target=target, embedding=model.get_input_embeddings().weight.detach(), markers=MARKERS)
    store = FeatureStore(model, made, MARKERS, (1, 2))
    ids = torch.tensor([END, *range(5, 40)])
    inputs = TrainInputs(assets, Path(__file__), store, training, held_out, ids)  # type: ignore[arg-type]
    return OwlTraining(inputs, settings)


def moved(state: OwlTraining, before: dict[str, torch.Tensor]) -> set[str]:
    return {name for name, value in state.net.named_parameters() if not torch.equal(value, before[name])}


def weights(state: OwlTraining) -> dict[str, torch.Tensor]:
    return {name: value.detach().clone() for name, value in state.net.named_parameters()}


def test_the_probe_is_taught_alone_and_then_stays() -> None:
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


def test_every_dialogue_is_read_before_any_twice() -> None:
    state = state_of()
    state.begin()
    count = len(state.inputs.training)
    numbers = [next(state.stream)[0] for _ in range(3 * count)]
    once = len(set(numbers))
    assert once > 10, "of those that are long enough"
    for start in range(0, len(numbers) - once, once):
        assert len(set(numbers[start : start + once])) == once


def test_a_milestone_tells_the_gap_to_learned_answers() -> None:
    state = state_of()
    state.begin()
    state.update(0.0)
    state.update(0.5)
    assert set(state.visited) <= set(state.inputs.training) and not set(state.visited) & set(state.held_out)
    known = [number for number in state.visited if state.inputs.store.dialogues.temperature[number] == 0]
    figures = state.measure()
    assert figures["read"] == len(state.visited)
    assert figures["gap"] == pytest.approx(state.accepted(known[: make_owl.SHOWN])["tau"] - figures["tau"])


def test_a_token_that_a_second_window_reads_again_is_no_other_one() -> None:
    state = state_of()
    state.begin()
    own, reads = state.stream, list[tuple[int, int]]()

    def noted() -> Iterator[tuple[int, int, np.ndarray]]:
        for number, offset, window in own:
            assert np.array_equal(window, state.inputs.store.ids(number)[offset : offset + owl.LENGTH])
            reads.extend((number, offset + place) for place in range(owl.LENGTH))
            yield number, offset, window

    state.stream = noted()
    state.update(0.0)
    for _ in range(30):
        state.progress.tokens += state.update(0.5).tokens
    assert state.distinct == len(set(reads)) < len(reads)
    assert state.measure()["distinct"] == min(state.distinct, state.progress.tokens)
    state.progress.history.append({"distinct": 1e9})
    assert state.measure()["distinct"] == 1e9, "what an earlier sitting had read"


def test_the_network_learns() -> None:
    state = state_of()
    state.begin()
    state.update(0.0)
    losses = [state.update(0.2, 0.004).loss for _ in range(30)]
    assert sum(losses[-5:]) < 0.95 * sum(losses[:5])


@pytest.mark.parametrize(("probing", "stage"), [(0.0, DRAFTING), (1.0, "")])
def test_either_stage_goes_on_where_it_was_stopped(probing: float, stage: str, tmp_path: Path) -> None:
    settings = replace(SETTINGS, probing=probing)
    first = state_of(settings)
    progress = train(first, tmp_path / "c.safetensors", lambda entry: None)
    assert progress.updates > 0 and progress.stage == stage
    second = state_of(replace(settings, resume=True))
    again = train(second, tmp_path / "c.safetensors", lambda entry: None)
    assert again.updates == progress.updates and second.optimizer.updates == first.optimizer.updates, "its time was over"
    for name, value in first.net.named_parameters():
        assert torch.equal(value, dict(second.net.named_parameters())[name]), name


def test_dialogues_that_are_all_too_short_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owl, "LENGTH", 500)
    with pytest.raises(BadInput, match="No dialogue has 500 tokens"):
        next(owl.windows(dialogues(), MARKERS, [1, 2], np.random.default_rng(0)))
