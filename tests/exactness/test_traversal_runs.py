"""The method as it is composed: whole runs on tiny models, at temperature 0 equal to one token at a time."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.exactness.test_text_methods import GREEDY, NUCLEUS, PROMPT, WARM, one_by_one
from tests.exactness.test_text_methods import _Audit as Audit
from tests.feature_worlds import tiny_net
from tests.tiny import decode, parts_for, perturbed, tiny_target
from torch import float64

from specviz.engine.interfaces import Composition
from specviz.engine.sampling import Warp
from specviz.errors import BadInput
from specviz.methods.parameters import build
from specviz.methods.registry import all_methods
from specviz.targets.text import TextTarget
from specviz.trace.meaning import check_step
from specviz.trace.schema import ACCEPTED, REJECTED, ROOT, SKIPPED

SHAPES = [
    {"shape": "sparse"},
    {"shape": "binary", "depth": 3},
    {"shape": "chain", "depth": 4},
    {"shape": "chain", "depth": 4, "drafter": "draft_model"},
]
NAMES = ["sparse", "binary", "chain", "draft model"]


def composed(values: dict[str, object], target: TextTarget, warp: Warp, noise: float = 0.02) -> Composition:
    method = all_methods()["traversal"]
    draft = TextTarget(perturbed(target.model, noise), "tiny draft", (), target.tier)
    parts = replace(parts_for(target, warp, draft), heads=lambda kind: tiny_net(target.model, kind == "eagle3"))
    return method.compose(build(method.parameters, values, "traversal"), parts)


@pytest.mark.parametrize("values", SHAPES, ids=NAMES)
def test_at_temperature_zero_the_text_is_the_targets_own(values: dict[str, object]) -> None:
    target = tiny_target()
    found = decode(target, composed(values, target, GREEDY), PROMPT, 120, GREEDY)
    assert found.ids == one_by_one("eager", float64, GREEDY)[:120]
    assert any(step.path for step in found.steps)


@pytest.mark.parametrize("values", SHAPES, ids=NAMES)
@pytest.mark.parametrize("tier", ["eager", "graph"])
def test_the_cache_equals_a_fresh_prefill_after_every_step(
    values: dict[str, object], tier: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tiny_target(tier)
    audit = Audit(target)
    monkeypatch.setattr(target, "open", audit.open)
    found = decode(target, composed(values, target, WARM), PROMPT, 40, WARM)
    assert audit.checked == len(found.steps)
    assert audit.worst < 1e-9


@pytest.mark.parametrize("warp", [WARM, NUCLEUS], ids=["warm", "nucleus"])
def test_a_perfect_draft_model_is_accepted_whole(warp: Warp) -> None:
    target = tiny_target()
    found = decode(target, composed(SHAPES[3], target, warp, noise=0.0), PROMPT, 100, warp)
    assert [len(step.path) for step in found.steps] == [4] * 20


def test_steps_tell_the_walk() -> None:
    target = tiny_target()
    found = decode(target, composed({"shape": "sparse"}, target, WARM), PROMPT, 60, WARM)
    assert {step.rule for step in found.steps if len(step.nodes) > 1} == {"traversal"}
    rescued = 0
    for step in found.steps:
        check_step(step)
        note = next(note for note in step.notes if note.type == "traversal")
        assert {node.status for node in step.nodes} <= {ROOT, ACCEPTED, REJECTED, SKIPPED}
        failed = [visit["node"] for visit in note.data["visits"] if visit["outcome"] == "failed"]
        assert [place for place, node in enumerate(step.nodes) if node.status == REJECTED] == sorted(failed)
        assert step.bonus is None or step.bonus.parent == (step.path[-1] if step.path else 0)
        rescued += len(note.data["rescued"])
    assert rescued > 0


def test_the_same_seed_gives_the_same_text_and_another_one_another() -> None:
    target = tiny_target()
    texts = [decode(target, composed({}, target, WARM), PROMPT, 40, WARM, seed).ids for seed in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"drafter": "draft_model"}, "drafts chains, and the shape is sparse"),
        ({"shape": "binary", "depth": 8}, "510 nodes"),
    ],
)
def test_combinations_that_make_no_sense_are_refused(values: dict[str, object], words: str) -> None:
    with pytest.raises(BadInput, match=words):
        composed(values, tiny_target(), WARM)
