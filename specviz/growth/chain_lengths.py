"""What the levels of a chain of models accepted in a calibration run, and whether a model for the middle pays by that."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from specviz.engine.cost import CostCurve
from specviz.engine.insertion import Costs, Insertion, Lengths, forecast
from specviz.errors import ModelUnavailable


@dataclass(frozen=True)
class ChainLengths:
    """``alone`` are the lengths of ``target`` with ``drafter`` right below it, ``middles`` those with each model between."""

    target: str
    drafter: str
    source: str
    alone: Lengths
    middles: dict[str, Lengths]

    @staticmethod
    def load(path: Path) -> ChainLengths:
        """Read it. Raises ModelUnavailable where it is missing or damaged."""
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            middles = {kind: Lengths(**one) for kind, one in found["middles"].items()}
            return ChainLengths(found["target"], found["drafter"], found["source"], Lengths(**found["alone"]), middles)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as problem:
            raise ModelUnavailable(
                f"The calibrated lengths in {path.name} cannot be read ({problem}): make them again with "
                f"`python -m specviz calibrate {path.stem}`."
            ) from problem

    def save(self, path: Path) -> None:
        """Write it."""
        middles = {kind: asdict(one) for kind, one in self.middles.items()}
        data = {**{"target": self.target, "drafter": self.drafter, "source": self.source}, "alone": asdict(self.alone)}
        path.write_text(json.dumps({**data, "middles": middles}, indent=1) + "\n", encoding="utf-8")


class Costed(Protocol):
    """A model for the middle, as far as choosing between several goes."""

    name: str
    title: str
    branches: bool
    cost: Callable[[], CostCurve]


@dataclass(frozen=True)
class Weighed:
    """A model for the middle, the buffer that suits it, and what it is expected to do; None where nobody calibrated it."""

    middle: Any
    block: int
    forecast: Insertion | None

    @property
    def gain(self) -> float:
        """Expected speed-up over the chain without it; unknown counts as none."""
        return self.forecast.gain if self.forecast else 1.0

    def warning(self) -> str:
        """What the user should know, or nothing."""
        found = self.forecast
        if found is None:
            return f"How much of {self.middle.title} this target keeps was never calibrated, so whether it pays is unknown."
        if found.pays:
            return ""
        return (
            f"No model in the middle is expected to pay on this machine. The best is {self.middle.title}: its pass costs "
            f"{found.ratio:.2f} of the target's and may cost {found.bound:.2f} (margin {found.margin:+.2f}); with the drafter's "
            f"time the chain of three runs at {found.gain:.2f} times the chain of two."
        )


def weighed(
    middle: Costed, above: CostCurve, forward: float, known: ChainLengths | None, nodes: int, block: int, unknown: int
) -> Weighed:
    """``forward`` is a drafter forward in passes of the target over one token; ``block`` 0 takes the buffer that pays most,
    or ``unknown`` where nothing is known.
    """
    lengths = known.middles.get(middle.name) if known else None
    if known is None or lengths is None:
        return Weighed(middle, block or unknown, None)
    costs = Costs(above, middle.cost(), forward * above.at(1), nodes)
    return Weighed(middle, *forecast(costs, known.alone, lengths, block))
