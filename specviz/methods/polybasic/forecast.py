"""Time model of a cascade that verifies at every level, its condition for an intermediate model to pay off, and forecasts.

In Polybasic speculative decoding (Wang et al., arXiv 2510.26527) the time of N tokens is a sum over levels: N / L passes of time
T each, where L is the mean number of tokens per pass. The paper's condition for inserting a model neglects the drafter's own
time. For a new model directly above the drafter, the exact form here includes that time. Acceptance lengths were calibrated.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import msgspec

from specviz.drafting.runtimes.intermediate import IntermediateModel
from specviz.engine.cost import CostCurve
from specviz.errors import ModelUnavailable
from specviz.trace.notes.models import CascadeCosts

DEEPEST = 32
"""Maximum buffer size considered, in tokens."""
UNKNOWN = 8
"""Default buffer size in tokens without a calibration."""


@dataclass(frozen=True)
class Lengths:
    """Acceptance of a chain's levels, measured by decoding: the ``probability`` that the target accepts a token of the
    intermediate model; per pass of the intermediate model, ``below`` tokens, accepted or not, and ``calls`` drafter forwards."""

    probability: float
    below: float
    calls: float


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
    def load(path: Path) -> list[ChainLengths]:
        """Load all calibrations. Raises ModelUnavailable if the file is missing or damaged."""
        try:
            return msgspec.json.decode(path.read_bytes(), type=dict[str, list[ChainLengths]])["chains"]
        except (OSError, ValueError, KeyError) as problem:
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
        known = ChainLengths.load(path) if path.is_file() else []
        chains = {(lengths.target, lengths.drafter): asdict(lengths) for lengths in known}
        older = chains.pop((self.target, self.drafter), {"middles": {}})
        own = asdict(self)
        own["middles"] = {**older["middles"], **own["middles"]}
        path.write_text(json.dumps({"chains": [*chains.values(), own]}, indent=1) + "\n", encoding="utf-8")


def forecast(
    above: CostCurve, new: CostCurve, drafter: float, nodes: int, alone: Lengths, chain: Lengths, block: int = 0
) -> tuple[int, CascadeCosts]:
    """Return the buffer size (the optimal one if ``block`` is 0) and the forecast for inserting the model.

    ``above`` and ``new`` are milliseconds of target and intermediate passes by width, ``drafter`` those of a drafter forward;
    ``nodes`` is the size of the drafter's tree. ``alone`` are the lengths without the new model, ``chain`` those with it.
    """
    target, middle = above.at(1 + nodes), new.at(1 + nodes)
    before = (target + alone.calls * drafter) / alone.below

    def forecast_of(size: int) -> CascadeCosts:
        passes = passes_for(size, chain.below)
        gathered = passes * chain.below
        with_it = kept_of(chain.probability, gathered)
        target_block, below = above.at(1 + math.ceil(gathered)), with_it / passes
        ratio, bound = middle / target, below * (1 / alone.below - 1 / with_it)
        after = target_block / with_it + (middle + chain.calls * drafter) / below
        return CascadeCosts(
            target=target,
            target_block=target_block,
            middle=middle,
            drafter=drafter,
            without=alone.below,
            with_=with_it,
            below=below,
            ratio=ratio,
            bound=bound,
            margin=bound - ratio,
            before=before,
            gain=before / after,
        )

    size = block or max(range(1, DEEPEST + 1), key=lambda block_size: forecast_of(block_size).gain)
    return size, forecast_of(size)


def kept_of(probability: float, block: float) -> float:
    """Return the mean tokens per pass over a buffer of ``block`` tokens, each accepted with this probability if all before it
    were: 1 plus the mean of a capped geometric variable."""
    if probability >= 1:
        return 1 + block
    return 1 + probability * (1 - probability**block) / (1 - probability)


def passes_for(size: int, below: float) -> float:
    """Return the mean number of passes of ``below`` tokens each until at least ``size`` are buffered. The last pass overshoots on
    average by half of its tokens beyond the first."""
    return max(1.0, (size + (below - 1) / 2) / below)


@dataclass(frozen=True)
class WeighedModel:
    """An intermediate model, its optimal buffer size, and its forecast (None if not calibrated)."""

    intermediate: IntermediateModel
    block: int
    forecast: CascadeCosts | None

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
            f"{forecast.ratio:.2f} target passes, and by the paper's condition it pays off below {forecast.bound:.2f}"
        )

    def warning(self, candidates: Sequence[WeighedModel], recipe: str = "") -> str:
        """Return a warning about this model, the best of ``candidates``, or "" if it is expected to pay off.

        ``recipe`` is the command that calibrates it, if any.
        """
        if self.forecast is None:
            title = self.intermediate.title
            unknown = f"This target's acceptance of {title} was never calibrated, so whether it pays off is unknown"
            return f"{unknown}: `{recipe}` measures it." if recipe else f"{unknown}."
        if self.forecast.gain > 1:
            return ""
        if len(candidates) == 1:
            return f"Before the run, this intermediate model is not expected to pay off on this machine: {self.describe()}."
        descriptions = "; ".join(candidate.describe() for candidate in candidates)
        said = f"none of the {len(candidates)} intermediate models is expected to pay off on this machine: {descriptions}."
        return f"Before the run, {said}"


def weigh(
    intermediate: IntermediateModel, above: CostCurve, drafter: float, known: ChainLengths | None, nodes: int, block: int
) -> WeighedModel:  # fmt: skip
    """Return the model with its forecast; the other arguments are as for :func:`forecast`."""
    lengths = known.middles.get(intermediate.name) if known else None
    if known is None or lengths is None:
        return WeighedModel(intermediate, block or UNKNOWN, None)
    return WeighedModel(intermediate, *forecast(above, intermediate.cost(), drafter, nodes, known.alone, lengths, block))
