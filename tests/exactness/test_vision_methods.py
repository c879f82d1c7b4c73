"""The ladder for vision-language targets: every method writes the target's own text about its picture, token for token."""

from __future__ import annotations

import pytest
import torch

from tests.support.tiny.vision import FAMILIES, IMAGE
from tests.support.worlds.vision import GREEDY, WARM, baseline, decoded, world

Values = dict[str, object]
TREE: Values = {"depth": 3, "width": 8, "nodes": 32}
MODEL_FREE: list[tuple[str, Values]] = [
    ("prompt_lookup", {"shortest": 1}),
    ("token_recycling", {"tree": "published"}),
    ("stand", {"rule": "match", "nodes": 40}),
    ("suffix_decoding", {}),
]
TRAINED: list[tuple[str, Values]] = [
    ("eagle2", {**TREE, "rule": "match"}),
    ("hivis", TREE),
    ("language_only", {"gamma": 3}),
    ("dream", {**TREE, "keep": 0.5}),
]


@pytest.mark.spread(2)
@pytest.mark.parametrize("kind", FAMILIES)
def test_one_by_one_is_the_models_own_greedy_text(kind: str) -> None:
    for seed in range(9):
        here, text = world(kind, seed=seed), list[int]()
        # A random model may write a picture's placeholder, after which its own forward is no reference.
        while len(text) < 8 and IMAGE not in text:
            text.append(int(here.tiny.whole(text)[-1].argmax()))
        assert decoded("autoregressive", {}, here, GREEDY, 8).ids[: len(text)] == text
        if IMAGE not in text:
            return
    raise AssertionError("no seed gave a text without placeholders")


@pytest.mark.spread(1)
@pytest.mark.parametrize(("name", "values"), MODEL_FREE)
@pytest.mark.parametrize("kind", FAMILIES)
def test_methods_without_a_model_work_on_every_family(kind: str, name: str, values: Values) -> None:
    run = decoded(name, values, world(kind), WARM, 40)
    assert run.ids == baseline(kind, "eager", torch.float64, WARM, 60)[:40]


@pytest.mark.spread(1)
@pytest.mark.parametrize("kind", [kind for kind in FAMILIES if kind != "smolvlm"])
@pytest.mark.parametrize(("name", "values"), [TRAINED[0], *(pytest.param(*one, marks=pytest.mark.slow) for one in TRAINED[1:3])])
def test_drafters_keep_every_familys_text(kind: str, name: str, values: Values) -> None:
    run = decoded(name, values, world(kind), WARM, 40)
    assert run.ids == baseline(kind, "eager", torch.float64, WARM, 60)[:40]


@pytest.mark.slow
def test_a_ratio_test_for_language_only_is_greedy_matching_at_temperature_zero() -> None:
    run = decoded("language_only", {"rule": "rejection", "gamma": 3}, world(), GREEDY, 80)
    assert run.ids == baseline("smolvlm", "eager", torch.float64, GREEDY)[:80]
    warm = decoded("language_only", {"rule": "rejection", "gamma": 3}, world(), WARM, 20)
    assert {step.rule for step in warm.steps} <= {"ratio", "without_replacement", "none"}


@pytest.mark.spread(1)
@pytest.mark.parametrize("residuals", ["on", "off", "compare"])
def test_vectors_for_steps_never_change_the_text(residuals: str) -> None:
    run = decoded("hivis", {**TREE, "residuals": residuals}, world(), WARM, 40)
    assert run.ids == baseline("smolvlm", "eager", torch.float64, WARM)[:40]
    told = {note.type: note.data for note in run.steps[-1].notes}
    assert ("without" in told["step_embeddings"]) == (residuals == "compare")
    assert told["visual_tokens"]["kept"] == []
    assert all((norm == 0) == (residuals == "off") for norm in told["step_embeddings"]["norms"])
