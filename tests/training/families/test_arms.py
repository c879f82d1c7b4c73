"""Domain drafters: a change is kept apart from the base, written, read back, and refused on another base."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from specviz.drafting.networks.lora import merge_lora
from specviz.drafting.networks.small_lm import SmallLM
from specviz.drafting.networks.weights import read_weights, write_weights
from specviz.errors import ModelUnavailable
from specviz.models.heads.heads import lora_of
from specviz.models.hub.packed_model import refuse_outdated
from specviz.training import data
from specviz.training.driver import Schedule, train
from specviz.training.families import arms, small_draft
from tests.support.tiny.networks import arm
from tests.support.tiny.text import tiny_target

MARKERS = data.Markers((1, 2), (3,), 0)
SETTINGS = Schedule(minutes=0.3 / 60, batch=2, part=0, warm=10, every=0.01, patience=4, peak=0.02)


def model() -> SmallLM:
    return arm(tiny_target(dtype=torch.float32), 3, draft=48)


def dialogues(step: int, count: int = 24) -> data.Dialogues:
    """Answers that count up by ``step``."""
    generator = np.random.default_rng(step)
    rows = []
    for _ in range(count):
        start = int(generator.integers(40))
        rows.append([4, 5, *((start + step * place) % 44 + 4 for place in range(16))])
    tokens = np.array([token for row in rows for token in row], dtype=np.int64)
    starts = np.arange(count + 1) * 18
    return data.Dialogues(tokens, starts, np.full(count, 2), np.zeros(count, dtype=np.float32))


@pytest.mark.slow
def test_the_factors_give_the_trained_network_and_fit_its_base_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(small_draft, "LENGTH", 24)
    monkeypatch.setattr(arms, "RANK", 4)
    net = model()
    base = {name: value.clone() for name, value in net.state_dict().items()}
    domain = arms.DomainTraining(net, dialogues(5), MARKERS, SETTINGS)
    train(domain, tmp_path / "one.safetensors")
    file = tmp_path / "arms.safetensors"
    factors = {f"code/{name}": value.detach().clone() for name, value in domain.optimizer.parameters.items()}
    write_weights(file, factors, {"arms": '["code"]', "changes": "x"})
    trained = {name: value.clone() for name, value in net.state_dict().items()}
    net.load_state_dict(base)
    merge_lora(net, lora_of(read_weights(file)[0], "code"), "arms")
    for name, value in net.state_dict().items():
        apart = float((value - trained[name]).norm() / (trained[name] - base[name]).norm().clamp_min(1e-9))
        assert apart < 0.05, "eight bits, not more"
    with pytest.raises(ModelUnavailable, match="trained for another version of small_draft.safetensors"):
        refuse_outdated(file, tmp_path / "small_draft.safetensors")
