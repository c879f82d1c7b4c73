"""Time model of a cascade: forecasts of the speed-up, and the paper's condition for inserting an intermediate model.

In Polybasic speculative decoding (Wang et al., arXiv 2510.26527) the time of N tokens is a sum over levels: N / L passes of time
T each, with L tokens per pass. The paper's condition for inserting a model neglects the drafter's time. The forecast
includes the drafter's time, for a model directly above the drafter. Acceptance lengths come from a calibration.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import msgspec

from specviz.engine.cost import CostCurve
from specviz.errors import ModelUnavailable
from specviz.methods.polybasic.intermediate import IntermediateModel
from specviz.trace.notes.models import CascadeCosts

DEEPEST = 32
"""Maximum buffer size in tokens."""
UNKNOWN = 8
"""Buffer size in tokens without a calibration."""


@dataclass(frozen=True)
class Lengths:
    """Measured acceptance in a cascade of models.

    ``probability``: acceptance rate of the intermediate model's tokens by the target. ``below`` and ``calls``: tokens and drafter
    forwards per pass of the intermediate model.
    """

    probability: float
    below: float
    calls: float


@dataclass(frozen=True)
class ChainLengths:
    """Acceptance lengths of ``target`` and ``drafter``: ``alone``, and with each intermediate model of ``middles``."""

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
                f"The calibrated lengths in {path.name} cannot be read ({problem}): recreate the file with "
                f"`python -m specviz calibrate {path.stem}`."
            ) from problem

    @staticmethod
    def find(path: Path, target: str, drafter: str) -> ChainLengths | None:
        """Return the calibration of ``target`` and ``drafter``, or None."""
        known = ChainLengths.load(path)
        return next((lengths for lengths in known if (lengths.target, lengths.drafter) == (target, drafter)), None)

    def save(self, path: Path) -> None:
        """Save to ``path``, which keeps the calibrations of other pairs and of other intermediate models."""
        known = ChainLengths.load(path) if path.is_file() else []
        chains = {(lengths.target, lengths.drafter): asdict(lengths) for lengths in known}
        older = chains.pop((self.target, self.drafter), {"middles": {}})
        own = asdict(self)
        own["middles"] = {**older["middles"], **own["middles"]}
        path.write_text(json.dumps({"chains": [*chains.values(), own]}, indent=1) + "\n", encoding="utf-8")


def forecast(
    above: CostCurve, new: CostCurve, drafter: float, nodes: int, alone: Lengths, chain: Lengths, block: int = 0
) -> tuple[int, CascadeCosts]:
    """Return the buffer size and the forecast for inserting an intermediate model.

    ``above`` and ``new``: milliseconds of a pass of the target and of the intermediate model, by width. ``drafter``: milliseconds
    of a drafter forward. ``nodes``: size of the drafter's tree. ``alone`` and ``chain``: acceptance without and with the
    intermediate model. ``block``: buffer size; 0: the fastest.
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
    """Return the mean tokens per target pass over a buffer of ``block`` tokens: 1 plus the mean of a capped geometric variable.

    ``probability``: acceptance rate of a token, given that all tokens before were accepted.
    """
    if probability >= 1:
        return 1 + block
    return 1 + probability * (1 - probability**block) / (1 - probability)


def passes_for(size: int, below: float) -> float:
    """Return the mean number of passes of ``below`` tokens until at least ``size`` tokens are buffered.

    The last pass overshoots by (``below`` - 1) / 2 tokens on average.
    """
    return max(1.0, (size + (below - 1) / 2) / below)


@dataclass(frozen=True)
class WeighedModel:
    """An intermediate model with a buffer size and a forecast, which is None without a calibration."""

    intermediate: IntermediateModel
    block: int
    forecast: CascadeCosts | None

    @property
    def gain(self) -> float:
        """Expected speed-up over target and drafter without this model; 1 if unknown."""
        return self.forecast.gain if self.forecast else 1.0

    def describe(self) -> str:
        """Return a phrase with the model and the forecast."""
        forecast = self.forecast
        if forecast is None:
            return f"{self.intermediate.title}, not calibrated"
        return (
            f"{self.intermediate.title}, {forecast.gain:.2f}× the speed without this model: a pass of the model takes "
            f"{forecast.ratio:.2f} target passes, and by the paper's condition must take less than {forecast.bound:.2f}"
        )

    def warning(self, candidates: Sequence[WeighedModel], recipe: str = "") -> str:
        """Return a warning unless this model, the best of ``candidates``, is expected to speed up decoding; else "".

        ``recipe``: command that calibrates this model, or "".
        """
        if self.forecast is None:
            title = self.intermediate.title
            unknown = f"The acceptance of {title} by this target was never calibrated, so the speed-up is unknown"
            return f"{unknown}: `{recipe}` measures the acceptance." if recipe else f"{unknown}."
        if self.forecast.gain > 1:
            return ""
        if len(candidates) == 1:
            return f"Before the run, this intermediate model is not expected to save time on this machine: {self.describe()}."
        descriptions = "; ".join(candidate.describe() for candidate in candidates)
        said = f"none of the {len(candidates)} intermediate models is expected to save time on this machine: {descriptions}."
        return f"Before the run, {said}"


def weigh(
    intermediate: IntermediateModel, above: CostCurve, drafter: float, known: ChainLengths | None, nodes: int, block: int
) -> WeighedModel:  # fmt: skip
    """Return the model with a buffer size and a forecast. For the other arguments see :func:`forecast`."""
    lengths = known.middles.get(intermediate.name) if known else None
    if known is None or lengths is None:
        return WeighedModel(intermediate, block or UNKNOWN, None)
    return WeighedModel(intermediate, *forecast(above, intermediate.cost(), drafter, nodes, known.alone, lengths, block))
