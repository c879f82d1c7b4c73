"""The ladder for GTO, alone and with the drafter before it alongside: the text is the target's own, the notes add up."""

import pytest
import torch

from specviz.engine.interfaces import Composition
from specviz.engine.sampling import Warp
from specviz.targets.text import TextTarget
from tests.support.tiny.text import Decoded, composed, decode, parts_for, tiny_target
from tests.support.worlds.feature import tiny_net
from tests.support.worlds.text import GREEDY, PROMPT, WARM, WARPS, Audit, baseline

TREE: dict[str, object] = {"depth": 3, "width": 6, "nodes": 24}
BOTH = {**TREE, "compare": True}
SEEDS = {"eagle3": 3, "gto": 4}


def compose(values: dict[str, object], target: TextTarget, warp: Warp, seeds: dict[str, int] | None = None) -> Composition:
    """``seeds`` make the networks before and after; equal ones make equal networks."""

    def heads(kind):
        return tiny_net(target.model, True, 40, seed=(seeds or SEEDS)[kind]).runtime()

    return composed("gto", values, parts_for(target, warp).using(drafter_weights=heads))


def run(values: dict[str, object], warp: Warp, budget: int = 60, level: str = "tree", **more: object) -> Decoded:
    target = tiny_target()
    return decode(target, compose(values, target, warp, **more), PROMPT, budget, warp, 7, level)


def rewards(found: Decoded) -> list[dict[str, object]]:
    return [note.data for step in found.steps for note in step.notes if note.type == "tree_reward"]


@pytest.mark.slow
@pytest.mark.parametrize(("tier", "warped"), [("eager", "nucleus"), ("graph", "warm")])
def test_comparing_changes_neither_text_nor_cache(tier, warped, monkeypatch):
    target, warp = tiny_target(tier), WARPS[warped]
    composed, alone = compose(BOTH, target, warp), compose(TREE, target, warp)
    steps = decode(target, alone, PROMPT, 32, warp, 7).steps
    audit, opened = Audit(target), target.open

    def first_audited(capacity, taps=()):
        return audit.open(capacity, taps) if taps else opened(capacity, taps)  # the second session wants no taps

    monkeypatch.setattr(target, "open", first_audited)
    found = decode(target, composed, PROMPT, 32, warp, 7)
    assert found.ids == baseline(tier, torch.float64, warp)[:32]
    assert [step.path for step in found.steps] == [step.path for step in steps]
    assert audit.checked == len(found.steps) and audit.worst < 1e-9


@pytest.mark.slow
def test_equal_networks_earn_equal_rewards_after_every_kind_of_step():
    found = run(BOTH, WARM, 120, seeds={"eagle3": 3, "gto": 3})
    assert {len(step.path) for step in found.steps} >= {0, 1}
    for told, step in zip(rewards(found), found.steps, strict=True):
        assert told["before"] == pytest.approx(told["reward"], abs=1e-9)
        kept = [node.token for node in step.nodes if node.status != "pruned"]
        assert told["reference"]["tokens"] == kept


def test_every_step_tells_its_reward_and_comparing_adds_the_tree_before():
    alone, compared = run(TREE, GREEDY), run(BOTH, GREEDY)
    assert [told["reward"] for told in rewards(alone)] == pytest.approx([told["reward"] for told in rewards(compared)])
    for told, step in zip(rewards(compared), compared.steps, strict=True):
        inner = {node.parent for node in step.nodes if node.status != "pruned"}
        leaves = [at for at, node in enumerate(step.nodes) if at not in inner and node.status != "pruned"]
        assert [branch["node"] for branch in told["branches"]] == leaves
        assert all(0 <= branch["length"] <= 3 for branch in told["branches"])
        assert len(told["reference"]["texts"]) == len(told["reference"]["parents"])
    assert any(told["before"] != pytest.approx(told["reward"]) for told in rewards(compared))
    assert all(told["before"] is None for told in rewards(alone))


@pytest.mark.spread(1)
@pytest.mark.parametrize("level", ["off", "path"])
def test_without_a_record_nothing_is_compared(level):
    found = run(BOTH, WARM, level=level)
    assert found.ids == baseline("eager", torch.float64, WARM)[:60]
    assert not rewards(found)
