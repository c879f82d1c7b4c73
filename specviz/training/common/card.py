"""The model card that travels inside a file of weights: recipe, data, licence, cost, figures and commit."""

from __future__ import annotations

import hashlib
import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from specviz.training.common.data import HELD_OUT_EVERY


def card(
    name: str, settings: Any, data: str, spent: str, metrics: Mapping[str, Any], licence: str = "Apache-2.0, as the target's",
    **more: str,
) -> dict[str, str]:  # fmt: skip
    """The card of what ``python -m specviz train NAME`` made with these ``settings``; figures are rounded to four places."""
    return {
        "recipe": f"python -m specviz train {name} ({json.dumps(asdict(settings))})",
        "data": data,
        "licence": licence,
        "spent": spent,
        "metrics": json.dumps(_rounded(metrics)),
        "commit": commit(),
        **more,
    }


def _rounded(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _rounded(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(entry) for entry in value]
    return round(value, 4) if isinstance(value, float) else value


def print_card(path: Path, facts: Mapping[str, str]) -> None:
    """Print the line for ``assets/weights/README.md``."""
    parts = "; ".join(f"{name}: {value}" for name, value in facts.items())
    print(f"- `{path.name}` ({path.stat().st_size / 1e6:.1f} MB): {parts}", flush=True)


def dialogues_line(files: Sequence[Path], *more: str) -> str:
    """What was learned from: the dialogue files and the part that was kept out."""
    named = ", ".join(f"{file.name} sha256 {file_digest(file)}" for file in files)
    return "; ".join((f"{named}, one in {HELD_OUT_EVERY} kept out", *more))


def file_digest(file: Path) -> str:
    """The beginning of a file's SHA-256."""
    return hashlib.sha256(file.read_bytes()).hexdigest()[:16]


def commit() -> str:
    """The short name of the commit a recipe was run at, or "unknown" outside a checkout."""
    command = ["git", "rev-parse", "--short", "HEAD"]
    completed = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=False)
    return completed.stdout.strip() or "unknown"
