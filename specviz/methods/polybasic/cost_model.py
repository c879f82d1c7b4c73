"""Time model of a cascade that verifies at every level, and its condition for an intermediate model to pay off.

In Polybasic speculative decoding (Wang et al., arXiv 2510.26527) the time of N tokens is a sum over levels: N / L passes of time
T each, where L is the mean number of tokens per pass. The paper's condition for inserting a model neglects the drafter's own
time. For a new model directly above the drafter, the exact form here includes that time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from specviz.engine.cost import CostCurve
from specviz.trace.notes.models import CascadeCosts

DEEPEST = 32
"""Maximum buffer size considered, in tokens."""


@dataclass(frozen=True)
class CascadeForecast:
    """Forecast for inserting a model.

    Milliseconds: a target pass without (``above``) and with the model (``above_new``), a pass of the model itself (``new``), a
    drafter forward (``drafter``). Tokens per pass: of the target with the drafter alone (``without``) and with the model between
    (``with_it``), and tokens accepted by the target per pass of the model (``below``). Drafter forwards per pass without the
    model (``calls``) and with it (``calls_new``).
    """

    above: float
    above_new: float
    new: float
    drafter: float
    without: float
    with_it: float
    below: float
    calls: float
    calls_new: float

    @property
    def ratio(self) -> float:
        """Cost of a pass of the new model, in passes of the target."""
        return self.new / self.above

    @property
    def bound(self) -> float:
        """Ratio below which the model pays off by the published condition: L_new (1 / L - 1 / L')."""
        return self.below * (1 / self.without - 1 / self.with_it)

    @property
    def margin(self) -> float:
        """Bound minus ratio; negative if the model does not pay off."""
        return self.bound - self.ratio

    @property
    def before(self) -> float:
        """Milliseconds per token without the model."""
        return (self.above + self.calls * self.drafter) / self.without

    @property
    def after(self) -> float:
        """Milliseconds per token with the model."""
        return self.above_new / self.with_it + (self.new + self.calls_new * self.drafter) / self.below

    @property
    def gain(self) -> float:
        """Predicted speed-up of the three-model chain over the two-model one, the drafter's time included."""
        return self.before / self.after

    @property
    def pays(self) -> bool:
        """Whether the model pays off by the exact form."""
        return self.gain > 1


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
class Lengths:
    """Acceptance of a chain's levels, measured by decoding: the ``probability`` that the target accepts a token of the
    intermediate model; per pass of the intermediate model, ``below`` tokens, accepted or not, and ``calls`` drafter forwards."""

    probability: float
    below: float
    calls: float


@dataclass(frozen=True)
class Costs:
    """Milliseconds of target passes (``above``) and intermediate passes (``new``) by width, and of a drafter forward. ``nodes``
    is the size of the drafter's tree below the intermediate model."""

    above: CostCurve
    new: CostCurve
    drafter: float
    nodes: int


def forecast(costs: Costs, alone: Lengths, chain: Lengths, block: int = 0) -> tuple[int, CascadeForecast]:
    """Return the buffer size (the optimal one if ``block`` is 0) and the forecast for inserting the model. ``alone`` are the
    lengths of the target with the drafter directly below it."""
    new = costs.new.at(1 + costs.nodes)

    def forecast_of(size: int) -> CascadeForecast:
        passes = passes_for(size, chain.below)
        gathered = passes * chain.below
        with_it = kept_of(chain.probability, gathered)
        return CascadeForecast(
            above=costs.above.at(1 + costs.nodes),
            above_new=costs.above.at(1 + math.ceil(gathered)),
            new=new,
            drafter=costs.drafter,
            without=alone.below,
            with_it=with_it,
            below=with_it / passes,
            calls=alone.calls,
            calls_new=chain.calls,
        )

    size = block or min(range(1, DEEPEST + 1), key=lambda block_size: forecast_of(block_size).after)
    return size, forecast_of(size)


def as_note(forecast: CascadeForecast) -> CascadeCosts:
    """Convert a forecast to its note, for display."""
    return CascadeCosts(
        target=forecast.above,
        target_block=forecast.above_new,
        middle=forecast.new,
        drafter=forecast.drafter,
        without=forecast.without,
        with_=forecast.with_it,
        below=forecast.below,
        ratio=forecast.ratio,
        bound=forecast.bound,
        margin=forecast.margin,
        before=forecast.before,
        gain=forecast.gain,
    )
