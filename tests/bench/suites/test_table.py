"""The table of every method: what a row says follows from the samples, nothing is left out, and memory is counted once."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from specviz.bench.kit.paired_runs import Sample, Samples, held_bytes
from specviz.bench.kit.report import Report, Row
from specviz.bench.suites import table
from specviz.methods.registry import all_methods


def sample(gain: float, lengths: tuple[int, ...] = (1, 2, 0)) -> Sample:
    return Sample("chat", gain, True, lengths, sum(lengths) + len(lengths), len(lengths), 9, 12, 0.0)


def test_every_method_has_a_place_and_every_system_is_a_method() -> None:
    places = [name for one in table.sections("") for name in one.methods]
    assert set(places) == set(all_methods()) - {"autoregressive"}
    assert len(set(table.SYSTEMS)) == 18 and set(table.SYSTEMS) <= set(places)


def test_a_row_tells_both_temperatures_forwards_and_memory() -> None:
    found = {
        0.0: Samples({"eagle2": [sample(1.2), sample(1.4)]}, held_bytes={"eagle2": 4_300_000}),
        1.0: Samples({"eagle2": [sample(1.1)]}),
    }
    made = table.row("text", "eagle2", found)
    assert made.value == pytest.approx(1.3)
    assert made.detail == "τ, T = 0 2.00; T = 1 1.10×; τ, T = 1 2.00; drafter forwards a step 3.0; holds 4.3 MB"
    assert list(made.cells.values()) == ["`eagle2`", "1.30×", "2.00", "1.10×", "2.00", "3.0", "4.3 MB"]
    assert "relaxed" in table.row("pictures out", "lantern_pp", {1.0: Samples({"lantern_pp": [sample(1)]})}).detail


def test_a_method_that_cannot_run_is_told_and_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    def gathered(bench: object, arms: list[SimpleNamespace], *more: object) -> Samples:
        ran = {arm.label: [sample(1.5)] for arm in arms if arm.label != "gto"}
        return Samples(ran, {"gto": "There is no gto network for this target."})

    monkeypatch.setattr(table, "gather", gathered)
    report = Report("all", {})
    table.run(report, "", (), quick=True)
    rows = {row.name: row for row in report.rows}
    assert (rows["gto · text"].value, rows["gto · text"].detail) == (None, "There is no gto network for this target.")
    last = report.rows[-1]
    assert (last.value, last.goal, last.reached) == (17, 18, False)
    assert "missing: gto" in last.detail
    short = Report("text", {})
    table.run(short, "", ("stree", "eagle2"), quick=True, only="text")
    assert [row.name for row in short.rows] == ["eagle2 · text", "stree · text, state-space target"]


def test_memory_is_counted_once_and_without_the_target() -> None:
    model = torch.nn.Linear(100, 100, bias=False)
    own = torch.zeros(1000)
    ready = SimpleNamespace(loaded=SimpleNamespace(model=model), target=SimpleNamespace(model=model))
    parts = {"own": own, "view": own[10:], "head": model.weight[:5], "store": np.zeros(500), "target": ready.target}
    found = held_bytes(SimpleNamespace(parts=parts, again=parts, call=lambda: own), ready)
    assert 4000 + 4000 <= found < 8000 + 2000


def test_weights_packed_for_the_processor_count_as_many_bytes_as_their_numbers() -> None:
    ready = SimpleNamespace(loaded=None, target=None)
    packed = torch.zeros(100, 100).to_mkldnn()
    assert 40_000 <= held_bytes([packed, packed], ready) < 41_000


def test_rows_in_columns_make_tables_of_their_own() -> None:
    report = Report("all", {"target": "tiny"})
    report.add(Row("a · text", 1.0, cells={"method": "a", "T = 0": "1.00×"}, table="text"))
    report.add(Row("b · pictures", 2.0, cells={"method": "b", "T = 1": "2.00×"}, table="pictures"))
    report.add(Row("c · text", 3.0, cells={"method": "c", "holds": "1 MB"}, table="text"))
    report.add(Row("d · text", None, detail="not run", table="text"))
    lines = report.as_table().splitlines()
    assert lines[:2] == ["all: target tiny", ""]
    assert lines[2:8] == ["text", "", "| method | T = 0 | holds |", "|---|---:|---:|", "| a | 1.00× |  |", "| c |  | 1 MB |"]
    assert "| b | 2.00× |" in lines and lines[-1] == "| d · text | – |  | not run |"
