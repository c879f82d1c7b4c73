"""Folders of what ships beside the code: next to the package in a checkout, inside it where it was installed."""

from __future__ import annotations

from pathlib import Path

PACKAGE = Path(__file__).resolve().parent
IMPORTED_FROM = PACKAGE.parent
"""The folder in which another process finds the package."""
BASE = PACKAGE if (PACKAGE / "assets").is_dir() else IMPORTED_FROM
"""What paths beginning with ``assets/`` are relative to."""
ASSETS = BASE / "assets"
WEIGHTS = ASSETS / "weights"
SCENES = ASSETS / "images" / "scenes"
