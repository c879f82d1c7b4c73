"""The version of specviz, as traces and cost files name it."""

from __future__ import annotations

__version__ = "0.2.0"
