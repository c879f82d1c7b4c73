"""What the block drafter's recipe writes: weights that load again, their card, and nothing before all is measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from specviz.drafters.networks.block_net import load
from specviz.drafters.networks.weights import read_weights
from specviz.training.common.loop import Progress
from specviz.training.families import falcon
from specviz.training.registry import Job, recipes
from tests.training.families.test_falcon import SETTINGS, fresh, inputs_of


def test_what_is_written_loads_again_and_its_card_says_what_was_spent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(falcon, "WEIGHTS", tmp_path)
    monkeypatch.setenv("SPECVIZ_CACHE", str(tmp_path / "cache"))
    given = inputs_of()
    net = fresh(given)
    job = Job(recipes()["falcon"], "cpu", 1.0, False)
    falcon.finish(job, given, net, SETTINGS, Progress(7, 120.0, 4242), {"gap": 0.25})
    path = tmp_path / "falcon.safetensors"
    card = read_weights(path)[1]
    assert "7 updates, 4242 answer tokens" in card["spent"] and card["tokenizer_hash"] == "abc"
    assert {"first1", "first2", "blind2", "tau", "chain_tau_per_forward", "chain_first4"} <= set(json.loads(card["metrics"]))
    target = given.assets.target.model
    again = load(path, given.assets.embedding, target.lm_head.weight, torch.float32, torch.device("cpu"))
    seen = given.store.get([3])[0]
    ours, theirs = (one(seen.tokens[None, 1:], seen.features[None, :-1, -1]).detach() for one in (net, again))
    assert float((ours - theirs).norm() / ours.norm()) < 0.1


def test_measuring_that_breaks_off_leaves_what_ships_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(falcon, "WEIGHTS", tmp_path)
    monkeypatch.setenv("SPECVIZ_CACHE", str(tmp_path / "cache"))

    def stopped(*asked: object) -> dict[str, float]:
        raise KeyboardInterrupt

    monkeypatch.setattr(falcon, "levels", stopped)
    shipped = tmp_path / "falcon.safetensors"
    shipped.write_bytes(b"what ships")
    given = inputs_of()
    with pytest.raises(KeyboardInterrupt):
        falcon.finish(Job(recipes()["falcon"], "cpu", 1.0, False), given, fresh(given), SETTINGS, Progress(), {})
    assert shipped.read_bytes() == b"what ships"
