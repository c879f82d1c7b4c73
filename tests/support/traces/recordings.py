"""The shipped recordings, found without reading more of them than their first lines."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

TRACES = Path(__file__).resolve().parents[3] / "assets" / "traces"
RECORDINGS = sorted(TRACES.glob("*.jsonl.gz"))


def run_line(path: Path) -> dict[str, Any]:
    """The ``run`` record of a recording."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return json.loads(file.readline())


def name(path: Path) -> str:
    return path.name.split(".")[0]
