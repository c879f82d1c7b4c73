"""Folders of the files that ship with the code: next to the package in a checkout, inside it once installed."""

from __future__ import annotations

from pathlib import Path

PACKAGE = Path(__file__).resolve().parent
IMPORTED_FROM = PACKAGE.parent
"""Folder from which another process can import the package."""
BASE = PACKAGE if (PACKAGE / "assets").is_dir() else IMPORTED_FROM
"""Base of all paths that begin with ``assets/``."""
ASSETS = BASE / "assets"
WEIGHTS = ASSETS / "weights"
SCENES = ASSETS / "images" / "scenes"
