"""Calibrated acceptance lengths of a cascade's levels, and the resulting forecasts for intermediate models."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from specviz.drafting.runtimes.intermediate import IntermediateModel
from specviz.engine.cost import CostCurve
from specviz.errors import ModelUnavailable
from specviz.methods.polybasic.cost_model import CascadeForecast, Costs, Lengths, forecast


@dataclass(frozen=True)
class ChainLengths:
    """Acceptance lengths of ``target``: ``alone`` with ``drafter`` directly below it, ``middles`` with each intermediate
    model."""

    target: str
    drafter: str
    source: str
    alone: Lengths
    middles: dict[str, Lengths]

    @staticmethod
    def load(path: Path) -> tuple[ChainLengths, ...]:
        """Load all calibrations. Raises ModelUnavailable if the file is missing or damaged."""
        try:
            return tuple(_read(fields) for fields in json.loads(path.read_text(encoding="utf-8"))["chains"])
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as problem:
            raise ModelUnavailable(
                f"The calibrated lengths in {path.name} cannot be read ({problem}): make them again with "
                f"`python -m specviz calibrate {path.stem}`."
            ) from problem

    @staticmethod
    def find(path: Path, target: str, drafter: str) -> ChainLengths | None:
        """Return the calibration of this pair, or None."""
        known = ChainLengths.load(path)
        return next((lengths for lengths in known if (lengths.target, lengths.drafter) == (target, drafter)), None)

    def save(self, path: Path) -> None:
        """Save alongside other pairs' calibrations. This pair's older results are kept for intermediate models not calibrated
        again."""
        other_pairs: list[ChainLengths] = []
        lengths_by_model = dict(self.middles)
        for lengths in ChainLengths.load(path) if path.is_file() else ():
            if (lengths.target, lengths.drafter) == (self.target, self.drafter):
                lengths_by_model = {**lengths.middles, **lengths_by_model}
            else:
                other_pairs.append(lengths)
        own = ChainLengths(self.target, self.drafter, self.source, self.alone, lengths_by_model)
        chains = [asdict(lengths) for lengths in (*other_pairs, own)]
        path.write_text(json.dumps({"chains": chains}, indent=1) + "\n", encoding="utf-8")


def _read(fields: dict[str, Any]) -> ChainLengths:
    lengths_by_model = {kind: Lengths(**setting) for kind, setting in fields["middles"].items()}
    return ChainLengths(fields["target"], fields["drafter"], fields["source"], Lengths(**fields["alone"]), lengths_by_model)


@dataclass(frozen=True)
class WeighedModel:
    """An intermediate model, its optimal buffer size, and its forecast (None if not calibrated)."""

    intermediate: IntermediateModel
    block: int
    forecast: CascadeForecast | None

    @property
    def gain(self) -> float:
        """Expected speed-up over the chain without this model; 1 if unknown."""
        return self.forecast.gain if self.forecast else 1.0

    def describe(self) -> str:
        """Return the model with its forecast, in words."""
        forecast = self.forecast
        if forecast is None:
            return f"{self.intermediate.title}, never calibrated"
        return (
            f"{self.intermediate.title}, {forecast.gain:.2f}× the speed of the chain without it: its pass takes "
            f"{forecast.ratio:.2f} target passes, and by the paper's condition it pays below {forecast.bound:.2f}"
        )


def warning(best: WeighedModel, candidates: Sequence[WeighedModel], recipe: str = "") -> str:
    """Return a warning about the best of these candidates, or an empty string if it is expected to pay off.

    ``recipe`` is the command that calibrates it, if any.
    """
    if best.forecast is None:
        unknown = f"How much of {best.intermediate.title} this target keeps was never calibrated, so whether it pays is unknown"
        return f"{unknown}: `{recipe}` finds out." if recipe else f"{unknown}."
    if best.forecast.pays:
        return ""
    if len(candidates) == 1:
        return f"Predicted before the run: this intermediate model is not expected to pay on this machine: {best.describe()}."
    descriptions = "; ".join(candidate.describe() for candidate in candidates)
    said = f"none of the {len(candidates)} intermediate models is expected to pay on this machine: {descriptions}."
    return f"Predicted before the run: {said}"


def weighed(
    intermediate: IntermediateModel, above: CostCurve, forward: float, known: ChainLengths | None, nodes: int, block: int,
    unknown: int,
) -> WeighedModel:  # fmt: skip
    """Return the model with its forecast. ``forward`` is a drafter forward in milliseconds; ``block`` 0 takes the optimal
    buffer size, or ``unknown`` without a calibration."""
    lengths = known.middles.get(intermediate.name) if known else None
    if known is None or lengths is None:
        return WeighedModel(intermediate, block or unknown, None)
    return WeighedModel(intermediate, *forecast(Costs(above, intermediate.cost(), forward, nodes), known.alone, lengths, block))
