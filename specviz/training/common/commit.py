"""Which commit of this project a recipe was run at."""

from __future__ import annotations

import subprocess
from pathlib import Path


def commit() -> str:
    """The commit's short name, or "unknown" outside a checkout."""
    command = ["git", "rev-parse", "--short", "HEAD"]
    asked = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=False)
    return asked.stdout.strip() or "unknown"
