"""The first run on a GPU, as far as a machine without one can tell: its parts, their limits, and what it leaves."""

import fcntl
import json
import math
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch

from specviz.bench.first_run import __main__ as first_run
from specviz.bench.first_run import clock, parts, suites
from specviz.bench.first_run.sizes import DRY
from specviz.bench.report import Report
from specviz.engine import regions
from specviz.errors import SpecvizError
from tests.support.devices import CPU, EMULATED, device_named
from tests.support.tiny.text import tiny_llama

ROOT = Path(__file__).resolve().parents[2]
GOALS = {
    "share of the memory's bandwidth": (60, False),
    "autoregressive vs transformers.generate": (2, False),
    "autoregressive vs transformers.generate, compiled": (1, False),
    "recording costs": (3, True),
}


@pytest.fixture(autouse=True)
def compiling_apart(monkeypatch):
    """A part, which has a process of its own, lets passes wait for the compiler."""
    monkeypatch.setattr(regions.Regions, "background", regions.Regions.background)


def report():
    return Report("first run", {})


def test_a_pass_reads_every_weight_once_and_of_an_untied_embedding_one_row():
    model = tiny_llama(dtype=torch.float32)
    weights = sum(one.numel() for one in model.parameters())
    cached = 2 * 2 * 2 * 8 * 10  # keys and values of two layers, two heads of eight, ten tokens
    assert clock.bytes_of_a_pass(model, 10) == 4 * (weights - 48 * 32 + cached)


@pytest.mark.spread(1)
@pytest.mark.parametrize("name", [CPU, EMULATED])
@pytest.mark.parametrize("part", ["clock", "recording"])
def test_the_clock_runs_on_a_model_of_random_weights(part, name):
    with device_named(name) as device:
        found = measured(part, replace(DRY, device=device))
    assert found.rows and all(row.value is not None and math.isfinite(row.value) for row in found.rows)
    for row in found.rows:
        assert row.goal is None or (row.goal, row.at_most) == GOALS[row.name.rpartition(": ")[2]]
    assert any(row.goal is not None for row in found.rows)


def measured(name, sizes):
    part, found = parts.PARTS[name], report()
    getattr(clock, part.function)(found, *filter(None, [part.argument]), sizes)
    return found


@pytest.mark.slow
def test_the_clock_times_compiled_passes_and_says_if_there_are_none(monkeypatch):
    sizes = replace(DRY, tiers=("graph", "compiled"))
    rows = [row for row in measured("clock", sizes).rows if ", compiled: " in row.name]
    assert len(rows) == 2 and all(row.value > 0 for row in rows)
    monkeypatch.setattr(regions, "load", Mock(side_effect=RuntimeError("no compiler")))
    with pytest.raises(SpecvizError, match="no compiler"):
        measured("clock", sizes)


def test_libraries_that_are_too_old_are_refused_before_anything_runs(monkeypatch, capsys):
    wanted = next(line for line in (ROOT / "requirements.txt").read_text().splitlines() if line.startswith("transformers"))
    assert f">={'.'.join(map(str, first_run.OLDEST))}," in wanted
    monkeypatch.setattr(first_run, "version", lambda name: "5.17.0")
    with pytest.raises(SystemExit):
        first_run.main(["--cpu"])
    assert "transformers 5.17.0 is too old: 5.23 or newer" in capsys.readouterr().err


def test_a_method_that_cannot_run_leaves_why():
    from specviz.bench.kit import Bencher

    row = suites.compare(Bencher("no-such-model", 4), "text", "prompt_lookup", ["a"])
    assert row.value is None and "no-such-model" in row.detail


@pytest.mark.parametrize("compiled", [True, False])
def test_a_run_that_stayed_uncompiled_is_no_row_of_the_compiled_tier(compiled):
    passes = SimpleNamespace(compiled=compiled, take_news=lambda: ["The compiler failed."])
    ready = SimpleNamespace(target=SimpleNamespace(tier="graph", decoder=SimpleNamespace(regions=passes)))
    run = SimpleNamespace(ids=(1,), per_token=1.0, tau=1.0)
    bench = SimpleNamespace(prepared=lambda *given: ready, timed_run=lambda one: run)
    row = suites.compare(bench, "fused", "prompt_lookup", ["a"])
    assert (row.value, "tier compiled" in row.detail) == ((1.0, True) if compiled else (None, False))
    assert compiled or row.detail == "The compiler failed."


ROW = {
    "name": "one",
    "value": 0.7,
    "unit": "×",
    "goal": 1.0,
    "at_most": True,
    "detail": "",
    "cells": {},
    "table": "",
    "reached": True,
}
WRITE = f"import json, sys; json.dump({{'rows': [{ROW}]}}, open(sys.argv[1], 'w'))"
HOLD = (
    "import fcntl, sys, threading; fcntl.flock(open(sys.argv[1]), fcntl.LOCK_EX); "
    "print('held', flush=True); threading.Event().wait()"
)
STUBS = {
    "good": WRITE,
    "bad": "raise SystemExit('the device fell off')",
    "slow": f"{WRITE}; import subprocess; "
    f'child = subprocess.Popen([sys.executable, "-c", {HOLD!r}, sys.argv[2]], stdout=subprocess.PIPE); '
    "child.stdout.readline(); open(sys.argv[2], 'w').write('held'); child.wait()",
    "last": WRITE,
}


@pytest.mark.slow
def test_a_part_that_fails_or_hangs_leaves_its_error_and_the_others_go_on(tmp_path):
    lock = tmp_path / "lock"
    lock.touch()
    file, limits = tmp_path / "run.json", {**dict.fromkeys(STUBS, 60.0), "slow": 3.0}
    parts.run(
        file, list(STUBS), False, 600.0, lambda line: None,
        lambda name, rows: [sys.executable, "-c", STUBS[name], str(rows), str(lock)], limits,
    )  # fmt: skip
    record = json.loads(file.read_text())
    assert [part["state"] for part in record["parts"].values()] == ["done", "failed", "timed out", "done"]
    assert "the device fell off" in record["parts"]["bad"]["error"] and "3 s" in record["parts"]["slow"]["error"]
    assert sum(row["reached"] for part in record["parts"].values() for row in part["rows"]) == 3
    assert record["device"]["name"] and set(record["versions"]) == {"python", "torch", "cuda", "transformers", "commit"}
    assert lock.read_text() == "held", "the hanging part had started another process"
    with lock.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)  # which ended with it


def test_what_the_whole_time_has_no_room_for_is_not_begun(tmp_path):
    record = parts.run(tmp_path / "run.json", ["good"], False, 0.0, lambda line: None, limits={"good": 9.0})
    assert record["parts"]["good"]["state"] == "not begun"


def test_a_file_of_tests_that_were_all_skipped_is_no_pass(tmp_path):
    file = tmp_path / "tests.xml"
    file.write_text("<testsuites><testsuite><testcase name='a'><skipped/></testcase></testsuite></testsuites>")
    with pytest.raises(SpecvizError, match="1 were skipped"):
        suites.rows_of_junit(file)
    file.write_text("<testsuites><testcase name='a'/><testcase name='b'><failure/></testcase></testsuites>")
    passed, failed = suites.rows_of_junit(file)
    assert (passed.value, failed.value, failed.reached, failed.detail) == (1.0, 1.0, False, "b")


def script(*arguments):
    return subprocess.run(
        ["bash", str(ROOT / "specviz" / "bench" / "gpu_first_run.sh"), *arguments], capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHON": sys.executable},
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, part in parts.PARTS.items() if part.module == "suites"])
def test_a_dry_run_of_a_suite_leaves_rows(name, tmp_path):
    first_run.measure(name, DRY, tmp_path / "rows.json")
    rows = json.loads((tmp_path / "rows.json").read_text())["rows"]
    assert rows and all(row["value"] is not None for row in rows), rows


@pytest.mark.slow
def test_a_dry_run_goes_through_its_parts_and_says_that_it_measured_nothing(tmp_path):
    file = tmp_path / "gpu_first_run.json"
    ran = script("--cpu", "--out", str(file), "--parts", "recording")
    record = json.loads(file.read_text())
    assert ran.returncode == 0, ran.stdout + ran.stderr
    (part,) = record["parts"].values()
    assert part["state"] == "done" and part["rows"]
    assert record["dry"] and "dry run, no measurement" in ran.stdout
