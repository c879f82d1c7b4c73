"""The head that ships, broken in its file in every way practitioners tell of: ``inspect`` names each."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from specviz.drafting.networks.feature_head import FeatureHead
from specviz.errors import ModelUnavailable
from specviz.inspection.forced import Reading
from specviz.inspection.passages import Passage, open_target, passages
from specviz.inspection.readings import required_layers
from specviz.inspection.verdict import Verdict, advice, judge
from specviz.models.heads.head_writer import write_head
from specviz.models.heads.heads import fit_of, load_heads
from specviz.models.heads.published import read
from specviz.models.hub.catalog import DEFAULT_TEXT_TARGET
from specviz.models.hub.published import Fit, open_repository
from specviz.prompts import prompts

Tensors = dict[str, Tensor]
Break = Callable[[dict[str, Any], Tensors, FeatureHead], None]
THETA = 100000.0


@dataclass(frozen=True)
class World:
    head: FeatureHead
    fit: Fit
    texts: list[Passage]

    def judged(self, folder: Path, broken: Break) -> Verdict:
        """The verdict on the head that ships once its files were changed."""
        write_head(self.head, folder, "flat", "someone/model")
        config, tensors = json.loads((folder / "config.json").read_text()), load_file(folder / "model.safetensors")
        broken(config, tensors, self.head)
        (folder / "config.json").write_text(json.dumps(config))
        save_file({name: value.contiguous() for name, value in tensors.items()}, folder / "model.safetensors")
        read_head = read("eagle3", open_repository(str(folder)), self.fit)
        return judge(Reading(read_head), self.texts, self.fit, 5, THETA, rounds=1)


@pytest.fixture(scope="module")
def world() -> World:
    texts = prompts("calibration")[:1]
    opened: Any = open_target(DEFAULT_TEXT_TARGET, texts[0], 40)
    loaded, target = opened.loaded, opened.target
    head = load_heads("eagle3", None, loaded, target).as_head("eagle3")
    layers = required_layers(head.config.taps, 30, 2)
    return World(head, fit_of(loaded.name, target), list(passages(DEFAULT_TEXT_TARGET, texts, 40, layers)))


def set_to(**settings: Any) -> Break:
    return lambda config, tensors, head: config.update(settings)


@pytest.mark.model
def test_as_it_ships_it_is_left_alone(world: World, tmp_path: Path) -> None:
    verdict = world.judged(tmp_path / "head", set_to())
    assert not verdict.steps and "is read correctly" in advice(verdict)


@pytest.mark.model
def test_tokens_for_offsets_are_refused_by_name(world: World, tmp_path: Path) -> None:
    def absolute(config: dict[str, Any], tensors: Tensors, head: FeatureHead) -> None:
        tensors["d2t"] += torch.arange(len(tensors["d2t"]))

    with pytest.raises(ModelUnavailable, match="holds the tokens themselves"):
        world.judged(tmp_path / "head", absolute)
