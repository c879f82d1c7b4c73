"""Published heads go through the very drafters that ours do: whole runs on a tiny target, by the method's own name."""

from types import SimpleNamespace

import pytest
from torch import float64

from specviz.errors import ModelUnavailable
from specviz.models.heads.heads import drafting_heads, is_shipped
from tests.support.tiny.published_heads import (
    CONFIG,
    EAGLE4,
    NARROW,
    eagle4_tensors,
    feature_tensors,
    narrow_tensors,
    parallel_tensors,
    saved,
)
from tests.support.tiny.text import composed, decode, parts_for, tiny_target
from tests.support.worlds.text import GREEDY, PROMPT, WARM, baseline


def published(name, values, target, warp, folder):
    loaded = SimpleNamespace(name="tiny", tokenizer_hash="none of ours")
    parts = parts_for(target, warp).using(drafter_weights=lambda kind: drafting_heads(kind, str(folder), loaded, target),
        uses_shipped_weights=is_shipped(str(folder)), draft_name=str(folder),
    )  # fmt: skip
    return composed(name, values, parts)


EAGLE2 = {"depth": 3, "width": 4, "nodes": 16, "rule": "match"}


@pytest.mark.spread(1)
@pytest.mark.parametrize(
    ("method", "values", "warp"),
    [
        ("eagle", {"rule": "match"}, GREEDY), ("eagle2", EAGLE2, GREEDY), ("eagle3", EAGLE2, WARM),
        ("ddd", {"nodes": 16}, GREEDY), ("traversal", {}, GREEDY), ("reader", {"drafter": "eagle3", "nodes": 16}, GREEDY),
    ],
)  # fmt: skip
def test_published_feature_heads_draft_a_whole_run(tmp_path, method, values, warp):
    first_kind = method in ("eagle", "eagle2")
    tensors, config = (narrow_tensors(), NARROW) if first_kind else (feature_tensors(), CONFIG)
    folder, target = saved(tmp_path, tensors, config), tiny_target()
    composition = published(method, values, target, warp, folder)
    assert composition.hidden_state_layers == ((2,) if first_kind else (0, 1, 2))
    found = decode(target, composition, PROMPT, 60, warp, 7)
    assert found.ids == baseline("eager", float64, warp)[:60] and any(step.path for step in found.steps)


def test_a_head_that_chooses_candidates_drafts_a_whole_run(tmp_path):
    folder, target = saved(tmp_path, eagle4_tensors(), EAGLE4), tiny_target()
    found = decode(target, published("eagle3", EAGLE2, target, WARM, folder), PROMPT, 60, WARM, 7)
    assert found.ids == baseline("eager", float64, WARM)[:60] and any(step.path for step in found.steps)
    sampled = decode(target, published("eagle3", {"rule": "without_replacement"}, target, WARM, folder), PROMPT, 60, WARM, 7)
    assert len(sampled.ids) == 60 and any(step.path for step in sampled.steps)


def test_published_parallel_heads_draft_a_whole_run(tmp_path):
    folder, target = saved(tmp_path, parallel_tensors(4), None), tiny_target()
    composition = published("medusa", {"rule": "match"}, target, WARM, folder)
    (said,) = composition.warnings
    assert "published 63 paths" in said and str(folder) in said
    found = decode(target, composition, PROMPT, 80, WARM, 7)
    assert {step.verified for step in found.steps[:4]} == {63}, "nobody counted which paths of these heads are right"
    assert found.ids == baseline("eager", float64, WARM)[:80]
    assert any(step.path for step in found.steps)


def test_a_kind_without_a_known_layout_says_which_have_one(tmp_path):
    folder, target = saved(tmp_path, feature_tensors(), CONFIG), tiny_target()
    with pytest.raises(
        ModelUnavailable,
        match="cannot be used as owl: published heads are read for dflash, dream, dspark, eagle, eagle3 and medusa",
    ):
        published("owl", {}, target, GREEDY, folder)
