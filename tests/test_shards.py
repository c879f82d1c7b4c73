"""A run of the suite shared among machines leaves no test out."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def test_the_workflow_runs_every_part() -> None:
    workflow = (ROOT / ".github" / "workflows" / "ci.yml").read_text("utf-8")
    (listed,), (parts,) = re.findall(r"part: \[(.+)\]", workflow), re.findall(r"--shard .+/(\d+)", workflow)
    assert [int(part) for part in listed.split(",")] == list(range(1, int(parts) + 1))


@pytest.mark.slow
def test_parts_share_out_the_tests() -> None:
    def collected(*options: str) -> list[str]:
        command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-n0", "-m", "", "tests/trace", *options]
        listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=True).stdout
        return [line for line in listed.splitlines() if "::" in line]

    parts = [collected("--shard", f"{part}/2") for part in (1, 2)]
    assert all(parts) and sorted(sum(parts, [])) == sorted(collected())
