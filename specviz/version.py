"""The version of specviz, which traces and cost files record."""

from __future__ import annotations

__version__ = "0.2.0"
