"""Calibrated static trees: the best n of the rank paths that were accepted most often.

STAND (arXiv 2506.04708) and Token Recycling (arXiv 2408.08696) build fixed trees offline in this way.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from specviz.engine.tree import TreeShape, shape_from_paths
from specviz.errors import BadInput

Rows = tuple[tuple[tuple[int, ...], float], ...]


@dataclass(frozen=True)
class CalibratedTree:
    """Rank paths below the root with measured acceptance probabilities, best first and parents before children."""

    paths: tuple[tuple[int, ...], ...]
    probability: tuple[float, ...]
    source: str = ""

    def best(self, nodes: int) -> TreeShape:
        """Return the ``nodes`` most probable paths as a shape, or all paths if there are fewer."""
        return shape_from_paths(self.paths[:nodes])

    def save(self, path: Path, known: Mapping[int, CalibratedTree] | None = None) -> None:
        """Save as JSON, one path per line. ``known`` maps the length of the longest known context to a tree."""
        parts = [f'"source": {json.dumps(self.source)}', f'"paths": {self._rows()}']
        if known:
            trees = [f"{json.dumps(str(evidence))}: {tree._rows()}" for evidence, tree in known.items()]
            parts.append('"known": {\n' + ",\n".join(trees) + "\n}")
        path.write_text("{" + ",\n".join(parts) + "}\n")

    def _rows(self) -> str:
        rows = [[list(path), round(p, 6)] for path, p in zip(self.paths, self.probability, strict=True)]
        return "[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]"

    @staticmethod
    def load(path: Path) -> CalibratedTree:
        """Load from JSON. Raises BadInput if the file is missing or not a calibrated tree."""
        return load_all(path)[0]


@dataclass(frozen=True)
class _File:
    """Contents of a file: rank paths with their probabilities."""

    paths: Rows
    source: str = ""
    known: dict[int, Rows] = field(default_factory=dict)


def load_all(path: Path) -> dict[int, CalibratedTree]:
    """Load the tree for all positions (key 0), and the trees by length of the longest known context (n-gram order).

    Raises BadInput if the file is missing or invalid.
    """
    try:
        found = msgspec.json.decode(path.read_bytes(), type=_File)
        return {
            key: CalibratedTree(tuple(path for path, _ in rows), tuple(p for _, p in rows), found.source)
            for key, rows in {0: found.paths, **found.known}.items()
        }
    except (OSError, ValueError) as error:
        raise BadInput(f"{path.name} is not a calibrated tree ({error}); create it with: python -m specviz calibrate.") from error


def from_counts(reached: dict[tuple[int, ...], int], rounds: int, source: str = "") -> CalibratedTree:
    """Return the tree, given how often each path was accepted in ``rounds`` rounds.

    A path is accepted at most as often as its parent. Ordering by count, with shorter paths first among equals, thus puts parents
    before children.
    """
    ordered = sorted(reached, key=lambda path: (-reached[path], len(path), path))
    return CalibratedTree(tuple(ordered), tuple(reached[path] / max(1, rounds) for path in ordered), source)
