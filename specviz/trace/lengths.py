"""Curves of τ by text length, measured by the length suite and stored in ``assets/lengths``.

A file holds one target: {"target", "source", "date", "lengths": [64, ...], "curves": [{"method", "kind", "tau": [...]}]}.
``kind`` is "answers", free answers after a text of that length, or "copies", quotations from it. Only token counts are stored,
no speeds, since counts do not depend on the machine.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from specviz.errors import BadInput
from specviz.paths import ASSETS

FOLDER = ASSETS / "lengths"
KINDS = ("answers", "copies")
REMAKE = "measure it again with `python -m specviz bench --suite length --save`"


@dataclass(frozen=True)
class Curve:
    """One method's tokens per pass, bonus included, at each of the lengths."""

    method: str
    kind: str
    tau: tuple[float, ...]


@dataclass(frozen=True)
class LengthCurves:
    """Curves of one target. ``lengths`` are tokens before the first draft, ascending; ``source`` describes the decoded texts."""

    target: str
    source: str
    date: str
    lengths: tuple[int, ...]
    curves: tuple[Curve, ...]

    def of(self, kind: str) -> list[Curve]:
        """Return the curves of this kind, in the order of measurement."""
        return [curve for curve in self.curves if curve.kind == kind]

    def after(self, earlier: LengthCurves | None) -> LengthCurves:
        """Return the curves of ``earlier`` not measured again, then these; only these if target, source or lengths differ."""
        alike = ("target", "source", "lengths")
        if earlier is None or any(getattr(self, name) != getattr(earlier, name) for name in alike):
            return self
        again = {(curve.method, curve.kind) for curve in self.curves}
        older = tuple(curve for curve in earlier.curves if (curve.method, curve.kind) not in again)
        return replace(self, curves=older + self.curves)

    @staticmethod
    def load(path: Path) -> LengthCurves:
        """Read a file. Raises BadInput, with the way out, if it is damaged."""
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
            lengths = tuple(record["lengths"])
            curves = tuple(Curve(curve["method"], curve["kind"], tuple(curve["tau"])) for curve in record["curves"])
            length_curves = LengthCurves(record["target"], record["source"], record["date"], lengths, curves)
            _check(length_curves)
        except (OSError, ValueError, KeyError, TypeError) as problem:
            raise BadInput(f"The lengths in {path.name} cannot be read ({problem}): {REMAKE}.") from problem
        return length_curves

    def save(self, folder: Path | None = None) -> Path:
        """Write the target's file and return its path. Raises BadInput for invalid curves."""
        try:
            _check(self)
        except ValueError as problem:
            raise BadInput(f"These lengths are not kept: {problem}.") from problem
        folder = folder or FOLDER
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / (re.sub(r"[^A-Za-z0-9._-]+", "-", Path(self.target).name).strip(".-") + ".json")
        path.write_text(json.dumps(asdict(self), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        return path


def _check(length_curves: LengthCurves) -> None:
    if not all(isinstance(text, str) and text for text in (length_curves.target, length_curves.source, length_curves.date)):
        raise ValueError("target, source and date are texts")
    if len(length_curves.lengths) < 2 or not all(type(length) is int and length > 0 for length in length_curves.lengths):
        raise ValueError("lengths are two or more whole numbers above 0")
    if list(length_curves.lengths) != sorted(set(length_curves.lengths)):
        raise ValueError("lengths ascend")
    if not length_curves.curves:
        raise ValueError("there is no curve")
    for curve in length_curves.curves:
        if curve.kind not in KINDS or len(curve.tau) != len(length_curves.lengths) or not all(map(_tau, curve.tau)):
            raise ValueError(f"the curve of {curve.method} for {curve.kind} has no τ for each length")


def _tau(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value >= 1


def measured(folder: Path | None = None) -> list[LengthCurves]:
    """Return every target's measured curves. Raises BadInput if a file is damaged."""
    return [LengthCurves.load(path) for path in sorted((folder or FOLDER).glob("*.json"))]


def measured_on(target: str, folder: Path | None = None) -> LengthCurves | None:
    """Return this target's curves, or None if not measured."""
    return next((curves for curves in measured(folder) if curves.target == target), None)
