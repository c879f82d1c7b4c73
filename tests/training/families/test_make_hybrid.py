"""What the recipe of the hybrid pair writes on its cards."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from specviz.models.drafters.lora_heads import IMITATES, named
from specviz.models.hub.packed_model import card_in
from specviz.training.common.loop import Progress
from specviz.training.families import hybrid
from specviz.training.families.hybrid import Settings
from tests.support.tiny.hybrid import pure
from tests.support.tiny.shelf import spell


@pytest.mark.parametrize("name", ["hybrid", "hybrid_draft"])
def test_the_drafter_s_card_names_the_target_it_learned_from(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    teacher, dialogues = tmp_path / "hybrid.safetensors", tmp_path / "dialogues.npz"
    teacher.write_bytes(b"the target")
    dialogues.write_bytes(b"what it said")
    monkeypatch.setattr(hybrid, "WEIGHTS", tmp_path)
    monkeypatch.setattr(hybrid, "TEACHER", teacher)
    learned_from = named(teacher)
    job: Any = SimpleNamespace(recipe=SimpleNamespace(name=name))
    state: Any = SimpleNamespace(
        settings=Settings(),
        model=pure(vocab=spell().get_vocab_size()),
        corpus=SimpleNamespace(training=[0]),
        device=torch.device("cpu"),
    )
    hybrid.finish(job, [dialogues], state, Progress(1, 60.0, 100), spell(), {"held_out_kl": 0.5})
    card = card_in(tmp_path / f"{name}.safetensors")
    assert card.get(IMITATES) == (learned_from if name == "hybrid_draft" else None)
