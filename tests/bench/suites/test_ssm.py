"""The suite on state-space targets: equal nodes on both sides, what is called equal is equal, no row without a number."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from specviz.bench.kit.measure import TimedRun
from specviz.bench.kit.report import Report
from specviz.bench.runner import SHORT, SUITES
from specviz.bench.suites import ssm
from specviz.drafters.language_model import DraftModel, SessionModel
from specviz.engine.sampling import Warp
from specviz.methods.parameters import build
from specviz.methods.registry import all_methods
from tests.support.tiny.hybrid import hybrid, near, target
from tests.support.tiny.text import decode, parts_for

MODEL = hybrid()
TARGET, DRAFT = target(MODEL), target(near(MODEL, 0.02))


class TinyBench:
    """Runs methods on the tiny hybrid; a prompt is a word whose letters are tokens. A tree's step costs 2, a chain's 3."""

    def prepared(self, method: str, prompt: str, temperature: float = 0.0, parameters: dict[str, Any] | None = None) -> Any:
        card = all_methods()[method]
        draft = DraftModel("near", 1 << 20, lambda room: SessionModel(DRAFT.open(room), DRAFT), (), DRAFT)
        parts = parts_for(TARGET, Warp(temperature)).using(draft_model=lambda: draft)  # type: ignore[arg-type]
        values = build(card.parameters, parameters or {}, method)
        ids = [ord(letter) - 97 for letter in prompt]
        return SimpleNamespace(parts=parts, target=TARGET, prompt_ids=ids, card=card, values=values)

    def timed_run(self, ready: Any, seed: int = 0, record: str = "off") -> TimedRun:
        composed = ready.card.compose(ready.values, ready.parts)
        run = decode(TARGET, composed, ready.prompt_ids, 24, ready.parts.warp, seed, record)  # type: ignore[arg-type]
        cost = 3 if getattr(ready.values, "width", 0) == 1 else 2
        return TimedRun(float(cost * len(run.steps)), tuple(run.steps), tuple(run.ids))


def reported(part: Any) -> dict[str, Any]:
    report = Report("test", {})
    part(report, TinyBench(), ["hello", "again"])
    return {row.name: row for row in report.rows}


@pytest.mark.slow
def test_tree_and_chain_have_as_many_nodes() -> None:
    bench = TinyBench()
    for nodes in ssm.BUDGETS:
        for ready in ssm._tree_and_chain(bench, "hello", nodes, 0.0):  # type: ignore[arg-type]
            verified = [step.verified for step in bench.timed_run(ready).steps]
            assert max(verified) == nodes


@pytest.mark.slow
def test_ratios_have_the_tree_on_top(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ssm, "BUDGETS", (6,))
    found = reported(ssm.against_chains)
    assert len(found) == 4
    for temperature in ("0", "0.8"):
        row = found[f"tree over chain of 6 nodes, T = {temperature}: τ"]
        ours, theirs = (float(part) for part in row.detail.removeprefix("τ ").split(" and "))
        assert row.value == pytest.approx(ours / theirs, rel=0.02)
        assert found[f"tree over chain of 6 nodes, T = {temperature}: time"].value > 0


@pytest.mark.slow
def test_the_tree_that_users_get_is_set_against_chains_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ssm, "TEMPERATURES", (0.0,))
    monkeypatch.setattr(ssm, "_faster", lambda bench, slow, fast: slow.values.nodes / fast.values.nodes)
    tree = TinyBench().prepared("stree", "hello").values
    assert ssm.BUDGETS == (4, 8, 12) and (tree.depth, tree.width, tree.nodes) == (4, 3, 12)
    found = reported(ssm.default_against_chains)
    names = {f"the default tree over a chain of {n} nodes, T = 0: {of}" for n in (4, 8, 12) for of in ("τ", "time")}
    assert set(found) == names and all(row.value > 0 and row.goal == 1.0 for row in found.values())
    assert found["the default tree over a chain of 8 nodes, T = 0: time"].value == pytest.approx(8 / 12), "chain over tree"
    assert len({found[name].detail.split()[1] for name in names if name.endswith("τ")}) == 1, "the same tree for each chain"


@pytest.mark.slow
def test_every_tree_writes_what_the_target_writes() -> None:
    row = reported(ssm.exact)["token for token the autoregressive run"]
    assert row.value == 100 and row.detail == "12 of 12 runs"


def test_memory_is_read_from_what_the_passes_recorded() -> None:
    row = reported(ssm.memory)["memory: a state a node over activations"]
    state, activations = 2 * 4 * 16 * 8, 2 * (64 + 2 * 2 * 8 + 4)
    assert row.value == pytest.approx(state / activations, rel=1e-6)


def test_paths_hold_more_nodes_than_the_tree() -> None:
    row = reported(ssm.against_paths)["one pass over the tree, against its paths"]
    nodes, _, along = _counts(row)
    assert along > nodes > 2 and row.value > 0


def _counts(row: Any) -> tuple[int, int, int]:
    numbers = [int(word) for word in row.detail.split(":")[0].replace(",", "").split() if word.isdigit()]
    return numbers[0], numbers[1], numbers[2]


@pytest.mark.slow
@pytest.mark.slow
def test_speeds_are_told_for_methods_without_a_model_too() -> None:
    found = reported(ssm.speeds)
    assert {name.split(",")[0] for name in found} >= {"stree", *ssm.MODEL_FREE}
    assert all(row.value > 0 and "τ" in row.detail for row in found.values())


def test_the_suite_is_listed_and_takes_the_hybrid_by_itself() -> None:
    assert "ssm" in SUITES and "ssm" in SHORT
