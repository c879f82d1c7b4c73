"""The ladder for vision-language targets: every method writes the target's own text about its picture, token for token."""

import pytest
import torch

from tests.support.tiny.vision import FAMILIES, IMAGE
from tests.support.worlds.vision import GREEDY, WARM, baseline, decoded, world

Values = dict[str, object]
TREE: Values = {"depth": 3, "width": 8, "nodes": 32}


DRAFTED: dict[str, Values] = {"token_recycling": {"tree": "published"}, "eagle2": {**TREE, "rule": "match"}, "hivis": TREE}
"""A tree without a network, one from hidden states, and one that sees the picture's places; of one family, the ladder climbs by
every method."""


@pytest.mark.spread(2)
@pytest.mark.parametrize("kind", FAMILIES)
def test_one_by_one_is_the_models_own_greedy_text(kind):
    for seed in range(9):
        here, text = world(kind, seed=seed), list[int]()
        # A random model may write a picture's placeholder, after which its own forward is no reference.
        while len(text) < 8 and IMAGE not in text:
            text.append(int(here.tiny.whole(text)[-1].argmax()))
        assert decoded("autoregressive", {}, here, GREEDY, 8).ids[: len(text)] == text
        if IMAGE not in text:
            return
    raise AssertionError("no seed gave a text without placeholders")


@pytest.mark.spread(2)
@pytest.mark.parametrize("kind", [kind for kind in FAMILIES if kind != "smolvlm"])
@pytest.mark.parametrize("name", DRAFTED)
def test_trees_keep_every_familys_text(name, kind):
    run = decoded(name, DRAFTED[name], world(kind), WARM, 40)
    assert run.ids == baseline(kind, "eager", torch.float64, WARM, 40)


@pytest.mark.slow
def test_a_ratio_test_for_language_only_is_greedy_matching_at_temperature_zero():
    run = decoded("language_only", {"rule": "rejection", "gamma": 3}, world(), GREEDY, 40)
    assert run.ids == baseline("smolvlm", "eager", torch.float64, GREEDY)[:40]
    warm = decoded("language_only", {"rule": "rejection", "gamma": 3}, world(), WARM, 20)
    assert {step.rule for step in warm.steps} <= {"ratio", "without_replacement", "none"}


@pytest.mark.spread(1)
@pytest.mark.parametrize("residuals", ["on", "off", "compare"])
def test_vectors_for_steps_never_change_the_text(residuals):
    run = decoded("hivis", {**TREE, "residuals": residuals}, world(), WARM, 40)
    assert run.ids == baseline("smolvlm", "eager", torch.float64, WARM)[:40]
    told = {note.type: note.data for note in run.steps[-1].notes}
    assert ("without" in told["step_embeddings"]) == (residuals == "compare")
    assert told["visual_tokens"]["kept"] == []
    assert all((norm == 0) == (residuals == "off") for norm in told["step_embeddings"]["norms"])
