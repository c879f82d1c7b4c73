"""Curves of τ against prompt length, measured by the length suite and stored in ``assets/lengths``, one file per target.

A curve's ``kind`` is "answers" (free answers about a text) or "copies" (quotations from a text). The files hold token counts, not
speeds, because counts do not depend on the machine.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from msgspec import Meta, json

from specviz.errors import BadInput
from specviz.paths import ASSETS
from specviz.trace.schema import Frozen, one_of

FOLDER = ASSETS / "lengths"

Words = Annotated[str, Meta(min_length=1)]


class Curve(Frozen, frozen=True):
    """τ of one method at each length."""

    method: str
    kind: Annotated[str, one_of("answers", "copies")]
    tau: tuple[Annotated[float, Meta(ge=1)], ...]


class LengthCurves(Frozen, frozen=True):
    """Curves of one target. ``lengths``: token counts before the first draft, ascending; ``source``: description of the texts.

    ``date``: a day, or "FIRST to LAST" where the curves are of several.
    """

    target: Words
    source: Words
    date: Words
    lengths: Annotated[tuple[Annotated[int, Meta(ge=1)], ...], Meta(min_length=2)]
    curves: Annotated[tuple[Curve, ...], Meta(min_length=1)]

    def __post_init__(self) -> None:
        if list(self.lengths) != sorted(set(self.lengths)):
            raise ValueError("lengths are not ascending")
        for curve in self.curves:
            if len(curve.tau) != len(self.lengths):
                raise ValueError(f"the curve of {curve.method} for {curve.kind} does not have one τ per length")

    @staticmethod
    def load(path: Path) -> LengthCurves:
        """Read a file. Raises BadInput if the file is damaged."""
        try:
            return json.decode(path.read_bytes(), type=LengthCurves)
        except (OSError, ValueError) as problem:
            raise BadInput(
                f"The lengths in {path.name} cannot be read ({problem}): measure them again with "
                "`python -m specviz bench --suite length --save`."
            ) from problem

    def save(self, folder: Path = FOLDER) -> Path:
        """Write the target's file and return the path.

        Earlier curves of other methods are kept if source and lengths are equal; the date then spans both measurements.
        """
        folder.mkdir(parents=True, exist_ok=True)
        path, whole = folder / f"{Path(self.target).name}.json", self
        earlier = self.load(path) if path.exists() else self
        if (earlier.source, earlier.lengths) == (self.source, self.lengths):
            curves = {(one.method, one.kind): one for one in (*earlier.curves, *self.curves)}
            whole = self.replace(curves=tuple(curves.values()))
            if len(curves) > len(self.curves) and earlier.date != self.date:
                whole = whole.replace(date=f"{earlier.date.partition(' to ')[0]} to {self.date}")
        path.write_bytes(json.format(json.encode(whole), indent=1) + b"\n")
        return path


def measured(folder: Path = FOLDER) -> list[LengthCurves]:
    """Return the measured curves of each target. Raises BadInput if a file is damaged."""
    return [LengthCurves.load(path) for path in sorted(folder.glob("*.json"))]
